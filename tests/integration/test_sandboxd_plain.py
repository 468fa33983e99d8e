"""`--isolation none`: the same API over plain processes, and how loudly it says what it is."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.local_backend import LocalCollimateBackend
from tests.fixtures.sandbox_daemon import start_daemon
from tests.fixtures.sandboxd_wire import call, descendants, eventually


@pytest.fixture(scope="module")
def plain() -> Iterator[CollimateClient]:
    """A client of a backend without isolation."""
    with LocalCollimateBackend(isolation="none") as served, CollimateClient(served.base_url, retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("fields", "exit_code", "stdout"),
    [
        ({"code": "print(6 * 7)"}, 0, "42\n"),
        ({"code": "import sys; print(sys.argv, __name__); sys.exit(3)"}, 3, "['-c'] __main__\n"),
        ({"command": "echo a; echo b >&2; exit 4"}, 4, "a\nb\n"),
        ({"command": "kill -9 $$"}, 137, ""),
        ({"commands": [["echo", "a"], ["sh", "-c", "exit 5"], ["echo", "b"]]}, 5, "a\n"),
        ({"commands": [["sh", "-c", "kill -9 $$"]]}, 137, ""),
        ({"code": "print(open('a/b').read(), end='')", "files": [{"path": "a/b", "content": "x"}]}, 0, "x\n"),
        ({"code": "import os; os.write(1, b'\\xff')"}, 0, "\ufffd"),
    ],
)
def test_execs(plain: CollimateClient, fields: dict[str, Any], exit_code: int, stdout: str) -> None:
    answer = plain.exec_once("py", **fields)
    assert (answer["exit_code"], answer["stdout"], answer["seed_ack"]) == (exit_code, stdout, "off")


def test_seed(plain: CollimateClient) -> None:
    answers = [plain.exec_once("py", code="import random; print(random.random())", seed="ab" * 32) for _ in range(2)]
    assert answers[0]["stdout"] == answers[1]["stdout"]


def test_a_timeout_kills_what_the_exec_started(plain: CollimateClient) -> None:
    before = descendants(os.getpid())
    command = "echo begun; sleep 300 & (setsid sleep 300 &) ; sleep 300"
    answer = plain.exec_once("py", command=command, timeout_seconds=1)
    assert answer["exit_code"] == -1
    assert answer["stdout"].startswith("begun\n")
    assert "timed out" in answer["stdout"]
    eventually(lambda: descendants(os.getpid()) <= before, "the processes gone")


def test_a_daemon_that_holds_stdout(plain: CollimateClient) -> None:
    answer = plain.exec_once("py", command="(setsid sleep 300 &) ; echo done")
    assert (answer["stdout"], answer["exit_code"]) == ("done\n", 0)


def test_output_is_capped(plain: CollimateClient) -> None:
    answer = plain.exec_once("py", code="import os\nfor _ in range(20): os.write(1, b'x' * (1 << 20))")
    assert len(answer["stdout"]) == 16 << 20
    assert answer["truncated"] is True


def test_sessions(plain: CollimateClient) -> None:
    session = plain.create_session("py")["session_id"]
    plain.session_exec(session, command="echo kept > file")
    assert plain.session_exec(session, code="print(open('file').read())")["stdout"] == "kept\n\n"
    errors: list[CollimateError] = []

    def wait() -> None:
        with pytest.raises(CollimateError) as gone:
            plain.session_exec(session, command="touch up; sleep 60")
        errors.append(gone.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: "up" in plain.session_exec(session, command="ls")["stdout"], "the exec runs")
    assert plain.delete_session(session)["deleted"] is True
    waiter.join(30)
    assert errors[0].error_code == "session_gone"


def test_health_says_what_it_is(plain: CollimateClient) -> None:
    health = plain.health()
    assert health["isolation"] == "none"
    assert health["status"] == "ok"
    assert any("no isolation" in note for note in health["notes"])


def test_the_daemon_warns_and_ends_clean() -> None:
    daemon = start_daemon("--isolation", "none")
    answer = call(daemon.socket_path, "POST", "/v1/exec", {"template_id": "py", "code": "print(1)"})[1]
    assert answer["stdout"] == "1\n"
    words = daemon.log.read_text()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    shutil.rmtree(daemon.folder, ignore_errors=True)
    assert "ISOLATION IS OFF" in words


def test_auto_falls_back_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from collimate_rl.sandboxd import namespaces
    from collimate_rl.sandboxd.jail import BwrapMissing

    def missing() -> None:
        raise BwrapMissing("bubblewrap is nowhere")

    monkeypatch.setattr(namespaces, "find_bwrap", missing)
    served = LocalCollimateBackend()
    with pytest.warns(RuntimeWarning, match="WITHOUT isolation"):
        served.start()
    try:
        assert served.isolation == "none"
        assert CollimateClient(served.base_url).exec_once("py", code="print(1)")["stdout"] == "1\n"
    finally:
        served.close()
