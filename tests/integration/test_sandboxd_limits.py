"""Capacity, idle and age limits, and the class `LocalCollimateBackend`, in this process."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from collimate_rl import guest
from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.local_backend import LocalCollimateBackend
from collimate_rl.sandboxd.config import DEFAULT_CATALOG, Limits, Template
from tests.fixtures.held_jobs import exec_of, job_of
from tests.fixtures.resources import zygotes
from tests.fixtures.sandbox_daemon import one_core
from tests.fixtures.sandboxd_wire import eventually

pytestmark = pytest.mark.usefixtures("sandbox_daemon")  # skips where the isolation can't be had


def backend(**settings: Any) -> LocalCollimateBackend:
    """With one warm interpreter per template."""
    with one_core():
        return LocalCollimateBackend(**{"isolation": "namespaces", **settings})


def client_of(served: LocalCollimateBackend) -> CollimateClient:
    return CollimateClient(served.base_url, retries=0)


def code_of(error: pytest.ExceptionInfo[CollimateError]) -> tuple[int | None, str | None]:
    return error.value.status, error.value.error_code


@pytest.fixture
def narrow() -> Iterator[CollimateClient]:
    """One exec at a time, hardly any waiting, two sessions."""
    with backend(limits=Limits(max_inflight=1, admission_wait_s=0.3, max_sessions=2)) as served:
        yield client_of(served)


def test_at_capacity_after_waiting_and_nothing_ran(narrow: CollimateClient) -> None:
    session = narrow.create_session("py")["session_id"]
    holder = threading.Thread(target=lambda: narrow.exec_once("py", command="sleep 2"))
    holder.start()
    eventually(lambda: narrow.health()["running"] == 1, "the exec runs")
    with pytest.raises(CollimateError) as refused:
        narrow.session_exec(session, command="touch ran")
    assert code_of(refused) == (503, "at_capacity")
    holder.join(30)
    assert narrow.session_exec(session, command="ls")["stdout"] == ""
    assert narrow.get_session(session)["exec_count"] == 1


@pytest.mark.parametrize("isolation", ["namespaces", "none"])
def test_forks_wait_for_their_turn_and_no_more_run_than_may(isolation: str) -> None:
    text = "import time; print(time.monotonic()); time.sleep(0.3); print(time.monotonic())"
    limits = Limits(max_inflight=2, admission_wait_s=60)
    with backend(isolation=isolation, limits=limits) as served, ThreadPoolExecutor(16) as pool:
        client = client_of(served)
        answers = list(pool.map(lambda _: client.exec_once("py", code=text, timeout_seconds=2), range(16)))
        assert (client.health()["running"], client.health()["queued"]) == (0, 0)
    spans = [tuple(map(float, answer["stdout"].split())) for answer in answers]
    assert max(sum(began <= at < ended for began, ended in spans) for at, _ in spans) == 2
    # What an exec waited for its turn is no part of its time: the last ones waited longer than that.
    assert [answer["exit_code"] for answer in answers] == [0] * 16


def test_all_execs_wait_in_one_line() -> None:
    text = "import time; print(time.monotonic())"
    with backend(limits=Limits(max_inflight=1, admission_wait_s=60)) as served, ThreadPoolExecutor(8) as pool:
        client = client_of(served)
        session = client.create_session("py")["session_id"]
        asked = [pool.submit(client.exec_once, "py", code=f"{text}; time.sleep(2)")]
        eventually(lambda: client.health()["running"] == 1, "the exec runs")
        for n in range(1, 6):
            ask, where = (client.session_exec, session) if n == 4 else (client.exec_once, "py")
            asked.append(pool.submit(ask, where, code=text))
            eventually(lambda n=n: client.health()["queued"] == n, "it waits")  # type: ignore[misc]
        began = [float(each.result(60)["stdout"]) for each in asked]
    # Two that have their forks at the same time may change places; nobody passes two who came before.
    assert all(began[n] < began[n + 2] for n in range(4))


def test_forks_that_die_before_their_turn_are_told_as_execs_of_which_nothing_ran() -> None:
    others = set(zygotes(os.getpid()))  # what further daemons of this process have
    limits = Limits(max_inflight=2, admission_wait_s=60)
    with backend(limits=limits) as served, ThreadPoolExecutor(4) as pool:
        client = client_of(served)
        at_work = [pool.submit(client.exec_once, "py", command="sleep 60") for _ in range(2)]
        eventually(lambda: client.health()["running"] == 2, "the execs run")
        waiting = [
            pool.submit(client.exec_once, "py", command="echo ran"),
            pool.submit(client.exec_once, "py", **exec_of(job_of("def solve(x): return x", [1]))),
        ]
        eventually(lambda: _waits_for_its_turn(served) == 2, "their forks wait")
        for pid in set(zygotes(os.getpid())) - others:
            os.kill(pid, signal.SIGKILL)
        assert all(each.exception(60) is not None for each in at_work)
        errors = [each.exception(60) for each in waiting]
        told = [(each.status, each.error_code) for each in errors if isinstance(each, CollimateError)]
        assert told == [(503, "session_bringup_failed")] * 2
        health = client.health()
        assert (health["running"], health["queued"], health["unclean_forks"]) == (0, 0, 0)


def _waits_for_its_turn(served: LocalCollimateBackend) -> int:
    """How many forks there are that wait: `health` counts those with them that have none yet."""
    assert served._daemon is not None
    assert served._daemon._service is not None
    return served._daemon._service.admission.queued


def test_a_fork_whose_turn_does_not_come_is_given_up() -> None:
    with backend(limits=Limits(max_inflight=1, admission_wait_s=0.3)) as served, ThreadPoolExecutor(4) as pool:
        client = client_of(served)
        first = pool.submit(client.exec_once, "py", command="sleep 2; echo done")
        eventually(lambda: client.health()["running"] == 1, "the exec runs")
        others = [pool.submit(client.exec_once, "py", command="echo ran") for _ in range(3)]
        refused = [other.exception(30) for other in others]
        assert [(each.status, each.error_code) for each in refused if isinstance(each, CollimateError)] == [
            (503, "at_capacity")
        ] * 3
        assert first.result(30)["stdout"] == "done\n"
        health = client.health()
        assert (health["running"], health["queued"], health["unclean_forks"]) == (0, 0, 0)


def test_at_most_so_many_sessions(narrow: CollimateClient) -> None:
    ids = [narrow.create_session("py")["session_id"] for _ in range(2)]
    with pytest.raises(CollimateError) as refused:
        narrow.create_session("py")
    assert code_of(refused) == (503, "at_capacity")
    narrow.delete_session(ids[0])
    narrow.create_session("py")
    assert len(narrow.list_sessions()) == 2


def test_idle_sessions_are_ended_and_busy_ones_are_not() -> None:
    with backend(limits=Limits(idle_limit_s=1.0)) as served:
        client = client_of(served)
        idle, busy = (client.create_session("py")["session_id"] for _ in range(2))
        assert client.session_exec(busy, command="sleep 3; echo done")["stdout"] == "done\n"
        with pytest.raises(CollimateError) as gone:
            client.session_exec(idle, command="true")
        assert code_of(gone) == (404, "no_such_session")
        assert client.get_session(busy)["exec_count"] == 1


def test_old_sessions_are_ended_even_when_busy() -> None:
    with backend(limits=Limits(age_limit_s=1.0)) as served:
        client = client_of(served)
        old = client.create_session("py")["session_id"]
        with pytest.raises(CollimateError) as gone:
            client.session_exec(old, command="sleep 60")
        assert code_of(gone) == (410, "session_gone")
        eventually(lambda: client.list_sessions() == [], "the session is ended")


def open_files() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            # The one that listed the folder.
            continue
    return found


def test_the_class_leaves_nothing_behind() -> None:
    gc.collect()
    before = open_files(), threading.active_count()
    with backend() as served:
        assert served.isolation == "namespaces"
        assert served.base_url.startswith("http://127.0.0.1:")
        with CollimateClient(served.base_url) as client:
            assert client.exec_once("py", code="print(1)")["stdout"] == "1\n"
            client.create_session("py")
    eventually(lambda: open_files() <= before[0], "descriptors back")
    eventually(lambda: threading.active_count() <= before[1], "threads back")
    with pytest.raises(RuntimeError):
        _ = backend().base_url


def test_names_and_templates_are_the_callers_to_choose() -> None:
    small = Template(memory_mb=64, pids=8, tmpfs_mb=1)
    with backend(templates={"small": small, "big": Template()}) as served:
        client = client_of(served)
        assert client.templates() == ["small", "big"]
        fill = "try:\n    open('f', 'wb').write(bytes(2 << 20))\nexcept OSError as e: print(e.errno)"
        assert client.exec_once("small", code=fill)["stdout"] == "28\n"
        assert client.exec_once("big", code=fill)["stdout"] == ""
        forks = "import os\nn = 0\ntry:\n    while n < 20:\n        if os.fork() == 0: os._exit(0)\n        n += 1\n"
        forks += "except OSError: pass\nprint(n)"
        assert client.exec_once("small", code=forks)["stdout"] == "7\n"
        assert client.exec_once("big", code=forks)["stdout"] == "20\n"
        grow = "x = bytearray(200 << 20)\nprint(len(x))"
        assert client.exec_once("small", code=grow)["exit_code"] in (1, 137)
        assert client.exec_once("big", code=grow)["stdout"] == f"{200 << 20}\n"
    with backend(templates=["only"]) as served:
        assert client_of(served).templates() == ["only"]


def test_what_tests_of_adapters_need(tmp_path: Any) -> None:
    asked: list[tuple[str, str, dict[str, Any]]] = []

    def endpoints(session_id: str, template_id: str, body: dict[str, Any]) -> dict[int, str]:
        asked.append((session_id, template_id, body))
        return {8000: "127.0.0.1:1234"}

    with backend(endpoints_fn=endpoints) as served:
        created = client_of(served).create_session("py")
        assert created["endpoints"] == {"8000": "127.0.0.1:1234"}
        assert asked == [(created["session_id"], "py", {"template_id": "py"})]
    with backend(drop_session_id=True) as served, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CollimateError):
            client_of(served).create_session("py")


def test_guest_programs_run_from_the_zygotes_code_objects() -> None:
    """The program's text is recognised, and what differs by a byte is compiled in the fork as any other code."""
    text = guest.programs()["cases"]
    with backend() as served:
        client = client_of(served)
        known, other = client.exec_once("py", code=text), client.exec_once("py", code=text + "\n")
    assert "<collimate cases>" in known["stdout"]
    assert "<collimate cases>" not in other["stdout"]
    assert known["exit_code"] == other["exit_code"] == 1


def test_the_default_catalog() -> None:
    with backend() as served:
        assert client_of(served).templates() == list(DEFAULT_CATALOG)
