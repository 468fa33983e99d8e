"""When a worker process takes jobs: only once the daemon was seen to take work, and not while it is away."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.errors import AmbiguousError, CollimateDrainingError, CollimateError, UnreachableError
from collimate_rl.protocol.bounds import MAX_LINE_BYTES
from worker.backend import MAX_FAILED, NOT_A_TEMPLATE, PROBE_LABEL, Backend, BackendState, remembering
from worker.intake import TRY_ANYWAY_S, Intake
from worker.pause import NodePause, pause_file

DOWN = BackendState(up=False, reason="refused")
UP = BackendState(up=True, isolation="namespaces")


class Daemon:
    """States as they will be found, the last one again and again."""

    def __init__(self, *states: BackendState) -> None:
        self.states = list(states)
        self.looks = 0
        self.asked: list[str | None] = []

    def __call__(self, template: str | None = None) -> BackendState:
        self.looks += 1
        self.asked.append(template)
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def intake(daemon: Daemon, clock: Clock, folder: Path, *, allow_unisolated: bool = False) -> Intake:
    pause = NodePause(pause_file(str(folder), "n1"), clock=clock)
    return Intake(daemon, pause, allow_unisolated=allow_unisolated, clock=clock, uniform=lambda _low, high: high)


def test_closed_until_a_look_finds_the_daemon_up(tmp_path: Path) -> None:
    clock, daemon = Clock(), Daemon(DOWN, DOWN, UP)
    gate = intake(daemon, clock, tmp_path)
    assert not gate.may_take()
    assert not gate.may_take()
    assert daemon.looks == 1
    clock.now += 600.0
    assert not gate.may_take()
    clock.now += 6.0
    assert gate.may_take()
    assert gate.may_take()
    assert daemon.looks == 3


def test_a_drain_found_at_the_first_look_is_the_nodes_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draining = BackendState(up=False, reason="going", draining=True, templates=("py",))
    clock, daemon = Clock(), Daemon(draining, draining, UP)
    first, second = intake(daemon, clock, tmp_path), intake(daemon, clock, tmp_path)
    caplog.set_level(logging.INFO, logger="collimate.worker")
    assert not first.may_take()
    assert not second.may_take()
    clock.now += 600.0
    assert first.may_take()
    assert second.may_take()
    assert [getattr(record, "event", "") for record in caplog.records] == ["backend_down", "backend_up"]


def test_an_unreachable_daemon_closes_it_for_a_while_only(tmp_path: Path) -> None:
    clock, daemon = Clock(), Daemon(UP, DOWN)
    gate = intake(daemon, clock, tmp_path)
    assert gate.may_take()
    gate.failed(UnreachableError("refused"))
    assert not gate.may_take()
    clock.now += TRY_ANYWAY_S
    assert gate.may_take()


def test_a_draining_daemon_closes_it_until_a_probe_works(tmp_path: Path) -> None:
    clock, daemon = Clock(), Daemon(UP, DOWN, DOWN, UP)
    gate = intake(daemon, clock, tmp_path)
    assert gate.may_take()
    gate.failed(CollimateDrainingError("going"), "py")
    for _ in range(2):
        assert not gate.may_take()
        clock.now += 6.0
    assert gate.may_take()
    assert daemon.asked == [None, "py", "py", "py"]


def test_a_pause_is_the_whole_nodes(tmp_path: Path) -> None:
    clock, daemon = Clock(), Daemon(UP, UP, DOWN, UP)
    one, other = (intake(daemon, clock, tmp_path) for _ in range(2))
    assert one.may_take()
    assert other.may_take()
    one.failed(CollimateDrainingError("going"))
    assert not other.may_take()
    assert not one.may_take()
    assert daemon.looks == 3  # the node looks once for all its processes
    late = intake(Daemon(UP), clock, tmp_path)
    assert not late.may_take()
    clock.now += 6.0
    assert one.may_take()
    assert other.may_take()
    assert late.may_take()


@pytest.mark.parametrize("error", [AmbiguousError("reset"), CollimateError("full", 503, "at_capacity")])
def test_other_errors_leave_it_open(error: CollimateError, tmp_path: Path) -> None:
    gate = intake(Daemon(UP), Clock(), tmp_path)
    assert gate.may_take()
    gate.failed(error)
    assert gate.may_take()


def test_an_unisolated_daemon_is_refused_unless_allowed(tmp_path: Path) -> None:
    bare = BackendState(up=True, isolation="none")
    gate = intake(Daemon(bare), Clock(), tmp_path)
    assert not gate.may_take()
    assert "--allow-unisolated" in str(gate.refused)
    assert intake(Daemon(bare), Clock(), tmp_path, allow_unisolated=True).may_take()


class Client:
    """A daemon's answers: `health` and `created` are dicts or errors."""

    def __init__(self, health: Any, created: Any = None) -> None:
        self.answers = {"health": health, "created": created}
        self.templates: list[str] = []
        self.labels: list[str | None] = []
        self.deleted: list[str] = []

    def _answer(self, name: str) -> Any:
        if isinstance(self.answers[name], Exception):
            raise self.answers[name]
        return self.answers[name]

    def health(self) -> dict[str, Any]:
        return self._answer("health")  # type: ignore[no-any-return]

    def create_session(
        self, template_id: str, *, egress: Mapping[str, Any] | None = None, label: str | None = None
    ) -> dict[str, Any]:
        self.templates.append(template_id)
        self.labels.append(label)
        return self._answer("created")  # type: ignore[no-any-return]

    def delete_session(self, session_id: str) -> dict[str, Any]:
        self.deleted.append(session_id)
        return {"deleted": True, "session_id": session_id}

    def get_session(self, session_id: str) -> dict[str, Any]:
        raise AssertionError

    def list_sessions(self) -> list[dict[str, Any]]:
        raise AssertionError

    def session_exec(self, session_id: str, **_: Any) -> dict[str, Any]:
        raise AssertionError

    def exec_once(self, template_id: str, **_: Any) -> dict[str, Any]:
        raise AssertionError


def state_of(health: Any, created: Any = None) -> tuple[BackendState, Client]:
    client = Client(health, created)
    return Backend("", client=client).ready(), client


def test_a_healthy_daemon_is_probed_by_a_fork_that_is_deleted() -> None:
    health = {"status": "ok", "templates": ["py", "other"], "isolation": "namespaces", "version": "1"}
    state, client = state_of(health, {"session_id": "s1"})
    assert (state.up, state.templates, state.isolation) == (True, ("py", "other"), "namespaces")
    assert (client.templates, client.labels, client.deleted) == (["py"], [None], ["s1"])
    failing = {**health, "failed_templates": {f"t{n:02}": "no\nmodule " * 100 for n in range(50)} | {"odd": 3}}
    state, _ = state_of(failing, {"session_id": "s1"})
    assert (state.up, len(state.failed)) == (True, MAX_FAILED)
    assert state.failed["t00"].startswith("no module no module ")
    assert len(state.failed["t00"]) <= MAX_LINE_BYTES
    _, labelling = state_of({**health, "capabilities": ["label"]}, {"session_id": "s1"})
    assert labelling.labels == [PROBE_LABEL]


def test_a_daemon_whose_health_fails_says_all_the_same_what_it_has() -> None:
    told = {"status": "failing", "templates": [], "failed_templates": {"py": "no module"}, "isolation": "namespaces"}
    failing = CollimateError("no template could be brought up", 503, "session_bringup_failed")
    failing.answer = told
    state, _ = state_of(failing)
    assert (state.up, state.templates, state.failed) == (False, (), {"py": "no module"})
    assert (state.reason, state.isolation) == ("no template could be brought up", "namespaces")
    assert state_of(CollimateError("no health", 503))[0].templates is None


def test_templates_of_the_look_before_stand_while_a_daemon_names_none() -> None:
    had = BackendState(up=True, templates=("py", "numpy"), failed={"go": "no"})
    away, failing = BackendState(up=False), BackendState(up=False, templates=(), failed={"py": "no memory"})
    assert remembering(away, had) == BackendState(up=False, templates=had.templates, failed=had.failed)
    assert remembering(failing, had) == BackendState(up=False, templates=had.templates, failed=failing.failed)
    less = BackendState(up=True, templates=())
    for state, before in ((away, None), (failing, None), (failing, away), (less, had), (had, failing)):
        assert remembering(state, before) == state
    assert remembering(away, failing) == failing


def test_a_fork_that_fails_is_down_whatever_health_says() -> None:
    error = CollimateDrainingError("going away")
    state, _ = state_of({"status": "ok", "templates": ["py"]}, error)
    assert (state.up, state.reason) == (False, "going away")


@pytest.mark.parametrize(("status", "up"), [("ok", True), ("draining", False), (None, False)])
def test_the_status_decides(status: str | None, up: bool) -> None:
    assert state_of({"status": status, "templates": []})[0].up is up


def test_a_session_socket_without_health_is_probed_blindly() -> None:
    state, client = state_of(CollimateError("no such path", 404), CollimateError("unknown", 404, "no_template"))
    assert (state.up, state.templates) == (True, None)
    assert client.templates == [NOT_A_TEMPLATE]
    assert (
        not Backend("", client=Client(CollimateError("no such path", 404), CollimateDrainingError("going")))
        .ready("py")
        .up
    )
    assert not state_of(CollimateError("no such path", 404), UnreachableError("refused"))[0].up


def test_a_daemon_that_is_not_there_is_down() -> None:
    state, client = state_of(UnreachableError("refused"))
    assert (state.up, client.templates) == (False, [])


@pytest.mark.parametrize("templates", [None, "py", [1, 2]])
def test_templates_that_are_no_list_of_names_stay_unknown(templates: Sequence[Any] | None) -> None:
    assert state_of({"status": "ok", "templates": templates})[0].templates is None


@pytest.mark.parametrize("error", [CollimateDrainingError("draining"), UnreachableError("refused")])
def test_a_pause_that_cannot_be_written_fails_no_batch(tmp_path: Path, error: CollimateError) -> None:
    clock, daemon = Clock(), Daemon(UP, DOWN, UP)
    gate = intake(daemon, clock, tmp_path)
    assert gate.may_take()
    (tmp_path / "n1").rmdir()
    (tmp_path / "n1").write_text("")
    gate.failed(error, "py")
    assert not gate.may_take()
    clock.now += 6.0
    assert gate.may_take()
