"""Callers that hang up: what runs goes on, what waits for a place is dropped before it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.fixtures.hostile_daemon import daemon_of_its_own
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.sandboxd_wire import UnixConnection, call, eventually, session_exec


@pytest.fixture
def narrow_daemon() -> Iterator[RunningDaemon]:
    """One exec at a time."""
    with daemon_of_its_own("--max-inflight", "1") as daemon:
        yield daemon


def test_what_waits_is_dropped_with_its_caller_and_what_runs_goes_on(narrow_daemon: RunningDaemon) -> None:
    path = narrow_daemon.socket_path
    session = call(path, "POST", "/v1/sessions", {"template_id": "py"})[1]["session_id"]
    target = f"/v1/sessions/{session}/exec"
    first = UnixConnection(path)
    first.request("POST", target, body=json.dumps({"command": "touch begun; sleep 3; touch ran"}))
    eventually(lambda: call(path, "GET", "/v1/health")[1]["running"] == 1, "the first exec's place")
    second = UnixConnection(path)
    second.request("POST", target, body=json.dumps({"command": "touch late"}))
    eventually(lambda: call(path, "GET", "/v1/health")[1]["queued"] == 1, "the second in line")
    first.close()
    second.close()
    assert session_exec(path, session, command="ls")["stdout"] == "begun\nran\n"
    assert call(path, "GET", f"/v1/sessions/{session}")[1]["exec_count"] == 2
