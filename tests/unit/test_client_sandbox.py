"""Sandbox and ExecResult without a daemon: what a peer that lies gets, and what never leaves a session behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import AmbiguousError, CollimateError, CollimateTaskError, MalformedAnswer
from collimate_rl.sandbox import ExecResult, Sandbox, rollout_once
from tests.fixtures.scripted_server import EXEC_ANSWER, ScriptedServer, answer, hang_up, refuse

CREATED = {"session_id": "s-1", "template_id": "py", "fork_time_ms": 0.4, "create_time_ms": 2.0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    with ScriptedServer(Path(os.path.relpath(tmp_path / "s"))) as started:
        yield started


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[CollimateClient]:
    with CollimateClient(server.base_url, timeout=20, retries=0) as made:
        yield made


def asked(server: ScriptedServer) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in server.requests]


def test_threads_start_and_close_one_session(server: ScriptedServer, client: CollimateClient) -> None:
    server.default = answer(CREATED)
    sandbox = Sandbox("py", client=client)
    for call, method in ((sandbox.start, "POST"), (sandbox.close, "DELETE")):
        before = len(server.requests)
        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [request.method for request in server.requests[before:]] == [method]


@pytest.mark.parametrize("field", ["fork_time_ms", "create_time_ms"])
def test_a_create_whose_times_are_none_leaves_no_session(
    server: ScriptedServer, client: CollimateClient, field: str
) -> None:
    server.script = [answer({**CREATED, field: 10**400}), answer({"deleted": True})]
    with pytest.raises(MalformedAnswer), Sandbox("py", client=client):
        raise AssertionError("it was entered")
    assert asked(server) == [("POST", "/v1/sessions"), ("DELETE", "/v1/sessions/s-1")]


def test_exec_result_from_the_wire() -> None:
    result = ExecResult.from_wire(EXEC_ANSWER)
    assert result == ExecResult("hello\n", "", 0, 0.5, 1.5, 2.0, "ab" * 32, "off")
    assert result.ok
    assert result.raw is EXEC_ANSWER
    assert not ExecResult.from_wire({"stdout": "", "exit_code": -1}).ok


@pytest.mark.parametrize(
    "fields",
    [
        {"exit_code": None},
        {"exit_code": "0"},
        {"exit_code": 0.0},
        {"exit_code": True},
        {"stdout": None},
        {"stdout": b"x"},
        {"stderr": 7},
        {"fork_time_ms": "fast"},
        {"exec_time_ms": float("nan")},
        {"total_time_ms": True},
        {"seed": 7},
        {"seed_ack": []},
    ],
)
def test_an_exec_answer_with_a_wrong_field(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        ExecResult.from_wire({**EXEC_ANSWER, **fields})


def test_a_context_forks_once_and_deletes_once(server: ScriptedServer, client: CollimateClient) -> None:
    server.script = [answer(CREATED, 201), answer(EXEC_ANSWER), answer({"deleted": True, "session_id": "s-1"})]
    with Sandbox("py", client=client, egress={"mode": "none"}, default_timeout=7, default_seed="cd" * 32) as sandbox:
        assert (sandbox.session_id, sandbox.fork_time_ms, sandbox.warm_hit) == ("s-1", 0.4, True)
        assert sandbox.exec("true").stdout == "hello\n"
    assert asked(server) == [
        ("POST", "/v1/sessions"),
        ("POST", "/v1/sessions/s-1/exec"),
        ("DELETE", "/v1/sessions/s-1"),
    ]
    assert server.requests[0].json == {"template_id": "py", "egress": {"mode": "none"}}
    assert server.requests[1].json == {"command": "true", "timeout_seconds": 7, "seed": "cd" * 32}
    assert not sandbox.is_started


@pytest.mark.parametrize(("fork_time_ms", "warm"), [(1.0, True), (1.1, False), (None, False)])
def test_warm_hit(server: ScriptedServer, client: CollimateClient, fork_time_ms: float | None, warm: bool) -> None:
    server.script = [answer({**CREATED, "fork_time_ms": fork_time_ms}, 201)]
    assert Sandbox("py", client=client).start().warm_hit is warm


def test_a_delete_that_fails_does_not_hide_what_happened_inside(
    server: ScriptedServer, client: CollimateClient, caplog: pytest.LogCaptureFixture
) -> None:
    def work(fail: bool) -> None:
        server.script = [answer(CREATED, 201), refuse(500, "internal")]
        with Sandbox("py", client=client):
            if fail:
                raise CollimateTaskError(1, "the caller's own")

    work(fail=False)
    with pytest.raises(CollimateTaskError):
        work(fail=True)
    assert "s-1" in caplog.text
    server.script = [answer(CREATED, 201), refuse(500, "internal")]
    with pytest.raises(CollimateError) as refused:
        Sandbox("py", client=client).start().close()
    assert refused.value.error_code == "internal"


def test_attach_asks_and_adopt_does_not(server: ScriptedServer, client: CollimateClient) -> None:
    server.script = [answer({"session_id": "s-9", "template_id": "py"}), refuse(404, "no_such_session")]
    sandbox = Sandbox.attach(client, "s-9", default_timeout=5)
    assert (sandbox.template, sandbox.session_id, sandbox.default_timeout) == ("py", "s-9", 5)
    with pytest.raises(CollimateError) as gone:
        Sandbox.attach(client, "s-9")
    assert gone.value.error_code == "no_such_session"
    before = len(server.requests)
    with Sandbox.adopt(client, "s-8", template="py") as adopted:
        assert adopted.session_id == "s-8"
        assert len(server.requests) == before
    assert asked(server)[before:] == [("DELETE", "/v1/sessions/s-8")]


def test_settings_that_cannot_be(client: CollimateClient) -> None:
    with pytest.raises(ValueError, match="default_seed"):
        Sandbox("py", client=client, default_seed="xyz")
    with pytest.raises(ValueError, match="session_id"):
        Sandbox.adopt(client, "")
    with pytest.raises(ValueError, match="template"):
        Sandbox("", client=client).start()
    with pytest.raises(CollimateError, match="no session"):
        Sandbox("py", client=client).upload_bytes("f", b"x")


def test_a_lost_answer_during_an_upload_is_followed_by_a_clean_up(
    server: ScriptedServer, client: CollimateClient
) -> None:
    server.script = [hang_up]
    with pytest.raises(AmbiguousError):
        Sandbox.adopt(client, "s-1").upload_bytes("f", b"x")
    first, second = (request.json["command"] for request in server.requests)
    assert "base64 -d" in first
    assert second.startswith("rm -f ./f.")


def test_rollout_once(server: ScriptedServer, client: CollimateClient) -> None:
    assert rollout_once("py", code="print(1)", seed="ab" * 32, client=client).ok
    assert asked(server) == [("POST", "/v1/exec")]
    assert server.requests[0].json == {
        "template_id": "py",
        "code": "print(1)",
        "seed": "ab" * 32,
        "timeout_seconds": 60,
    }
