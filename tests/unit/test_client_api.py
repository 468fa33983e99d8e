"""CollimateClient: what it sends, what it takes for an answer, and when it sends again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from collimate_rl import client as client_module
from collimate_rl._retry import NON_IDEMPOTENT, RetryPolicy
from collimate_rl._transport import Answer
from collimate_rl.client import CollimateClient
from collimate_rl.errors import (
    AmbiguousError,
    CollimateDrainingError,
    CollimateError,
    MalformedAnswer,
    UnreachableError,
)
from collimate_rl.gateway import GatewayClient
from collimate_rl.transport import SessionClient, connect
from tests.fixtures.scripted_server import EXEC_ANSWER, ScriptedServer, answer, frame, hang_up, raw, refuse

INFO = {"session_id": "s-1", "template_id": "py", "age_secs": 1, "idle_secs": 0, "exec_count": 2}
HEALTH = {"status": "ok", "sessions": 0, "running": 0, "max_inflight": 4, "queued": 0, "templates": ["py"]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    with ScriptedServer(Path(os.path.relpath(tmp_path / "s"))) as started:
        yield started


@pytest.fixture
def pauses() -> list[tuple[float, float]]:
    """(the widest pause allowed, the pause taken), for each pause."""
    return []


@pytest.fixture
def client(server: ScriptedServer, pauses: list[tuple[float, float]]) -> Iterator[CollimateClient]:
    widest: list[float] = []

    def uniform(low: float, high: float) -> float:
        assert low == 0.0
        widest.append(high)
        return high

    with CollimateClient(
        server.base_url,
        timeout=20,
        sleep=lambda seconds: pauses.append((widest[-1], seconds)),
        uniform=uniform,
    ) as made:
        yield made


def last(server: ScriptedServer) -> tuple[str, str]:
    return server.requests[-1].method, server.requests[-1].path


# What is sent


def test_it_is_a_session_client(client: CollimateClient) -> None:
    assert isinstance(client, SessionClient)


def test_exec_once_sends_what_it_was_given(server: ScriptedServer, client: CollimateClient) -> None:
    got = client.exec_once(
        "py",
        code="print('\udcff')",
        files=[{"path": "a", "content": "b"}],
        timeout_seconds=7,
        seed="cd" * 32,
        egress={"mode": "none"},
    )
    assert got == EXEC_ANSWER
    assert last(server) == ("POST", "/v1/exec")
    assert server.requests[-1].json == {
        "template_id": "py",
        "code": "print('\udcff')",
        "files": [{"path": "a", "content": "b"}],
        "timeout_seconds": 7,
        "seed": "cd" * 32,
        "egress": {"mode": "none"},
    }


def test_session_exec_sends_commands_in_order(server: ScriptedServer, client: CollimateClient) -> None:
    client.session_exec("s/1?", commands=[("echo", "a"), ["false"]])
    assert last(server) == ("POST", "/v1/sessions/s%2F1%3F/exec")
    assert server.requests[-1].json == {"commands": [["echo", "a"], ["false"]], "timeout_seconds": 30}
    client.session_exec("s", commands=["echo a"])
    assert server.requests[-1].json["commands"] == ["echo a"], "the server's to refuse, and no argv of letters"


def test_sessions(server: ScriptedServer, client: CollimateClient) -> None:
    server.script = [
        answer({"session_id": "s-1", "template_id": "py", "fork_time_ms": 0.4, "create_time_ms": 2.0}, 201),
        answer(INFO),
        answer([INFO]),
        answer({"deleted": True, "session_id": "s-1"}),
    ]
    assert client.create_session("py")["session_id"] == "s-1"
    assert server.requests[-1].json == {"template_id": "py"}
    assert client.get_session("s-1") == INFO
    assert client.list_sessions() == [INFO]
    assert client.delete_session("s-1")["deleted"] is True
    assert [(request.method, request.path) for request in server.requests] == [
        ("POST", "/v1/sessions"),
        ("GET", "/v1/sessions/s-1"),
        ("GET", "/v1/sessions"),
        ("DELETE", "/v1/sessions/s-1"),
    ]


def test_health_and_templates(server: ScriptedServer, client: CollimateClient) -> None:
    server.script = [answer(HEALTH), answer(HEALTH)]
    assert client.health()["status"] == "ok"
    assert client.templates() == ["py"]
    assert last(server) == ("GET", "/v1/health")


@pytest.mark.parametrize("refusal", [refuse(404, "no_such_session"), refuse(410, "session_gone")])
def test_deleting_what_is_gone_is_no_error(server: ScriptedServer, client: CollimateClient, refusal: Any) -> None:
    server.script = [refusal]
    assert client.delete_session("s-1") == {"deleted": False, "session_id": "s-1"}


def test_a_delete_that_broke_and_then_finds_nothing_is_done(server: ScriptedServer, client: CollimateClient) -> None:
    server.script = [hang_up, answer({"deleted": False, "session_id": "s-1"}, 404)]
    assert client.delete_session("s-1")["deleted"] is False
    assert len(server.requests) == 2


@pytest.mark.parametrize("ask", [CollimateClient.images, CollimateClient.list_images])
def test_images_are_the_gateways(client: CollimateClient, ask: Callable[[CollimateClient], Any]) -> None:
    with pytest.raises(CollimateError, match="gateway only"):
        ask(client)


def test_an_empty_session_id_never_reaches_the_list_of_sessions(client: CollimateClient) -> None:
    for call in (client.get_session, client.delete_session, client.session_exec):
        with pytest.raises(ValueError, match="session_id"):
            call("")


@pytest.mark.parametrize(
    ("client_timeout", "timeout_seconds", "expected"), [(120.0, 30, 120.0), (120.0, 100, 130), (1, 5, 35)]
)
def test_an_exec_is_waited_for_beyond_its_own_limit(
    client_timeout: float, timeout_seconds: int, expected: float
) -> None:
    class Recording:
        address = "nowhere"

        def __init__(self) -> None:
            self.waits: list[float] = []

        def request(
            self,
            method: str,
            path: str,
            body: bytes | None = None,
            *,
            headers: Mapping[str, str] | None = None,
            timeout_s: float,
        ) -> Answer:
            self.waits.append(timeout_s)
            return Answer(status=200, body=b'{"stdout":"","exit_code":0}')

        def close(self) -> None: ...

    transport = Recording()
    made = CollimateClient(timeout=client_timeout, transport=transport)
    made.exec_once("py", code="1", timeout_seconds=timeout_seconds)
    made.session_exec("s", code="1", timeout_seconds=timeout_seconds)
    assert transport.waits == [expected, expected]


# When it is sent again


@pytest.mark.parametrize("code", ["at_capacity", "session_bringup_failed", "draining"])
def test_an_exec_is_sent_again_after_a_refusal_before_any_work(
    server: ScriptedServer, client: CollimateClient, pauses: list[tuple[float, float]], code: str
) -> None:
    server.script = [refuse(503, code), refuse(503, code)]
    assert client.exec_once("py", code="1")["exit_code"] == 0
    assert len(server.requests) == 3
    assert pauses == [(0.15, 0.15), (0.3, 0.3)]


@pytest.mark.parametrize(
    "behave",
    [
        hang_up,
        refuse(500, "internal"),
        answer({"error": "x"}, 502),
        raw(frame(b"<html>", 504)),
        refuse(429, "rate_limited"),
        refuse(410, "session_gone"),
        refuse(404, "no_template"),
        raw(b"garbage\r\n\r\n", keep=False),
        raw(frame(b"not json")),
    ],
)
def test_an_exec_is_never_sent_again_after_anything_else(
    server: ScriptedServer, client: CollimateClient, behave: Any
) -> None:
    for call in (client.exec_once, client.session_exec, client.create_session):
        server.script = [behave]
        server.requests.clear()
        with pytest.raises(CollimateError):
            call("x")
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_get_is_sent_again(server: ScriptedServer, client: CollimateClient, status: int) -> None:
    server.script = [answer({"error": "x"}, status), hang_up, answer(INFO)]
    assert client.get_session("s-1") == INFO
    assert len(server.requests) == 3


def test_a_get_is_sent_four_times_at_most(server: ScriptedServer, client: CollimateClient) -> None:
    server.default = refuse(500, "internal")
    with pytest.raises(CollimateError) as caught:
        client.health()
    assert len(server.requests) == 4
    assert (caught.value.status, caught.value.error_code) == (500, "internal")


@pytest.mark.parametrize("status", [400, 404, 409, 413])
def test_a_get_that_is_refused_for_good_is_sent_once(
    server: ScriptedServer, client: CollimateClient, status: int
) -> None:
    server.default = answer({"error": "x"}, status)
    with pytest.raises(CollimateError):
        client.health()
    assert len(server.requests) == 1


def test_a_drain_that_outlasts_the_retries(server: ScriptedServer, client: CollimateClient) -> None:
    server.default = refuse(503, "draining", "going away")
    for call in (client.exec_once, client.create_session, client.get_session):
        with pytest.raises(CollimateDrainingError, match="going away") as caught:
            call("x")
        assert (caught.value.status, caught.value.error_code) == (503, "draining")


def test_a_daemon_that_is_down(tmp_path: Path) -> None:
    pauses: list[float] = []
    made = CollimateClient(unix_socket=os.path.relpath(tmp_path / "none"), sleep=pauses.append)
    with pytest.raises(UnreachableError) as caught:
        made.exec_once("py", code="1")
    assert caught.value.error_code == "unreachable"
    assert caught.value.is_infra
    assert len(pauses) == 3


def test_the_sum_of_the_pauses_is_bounded() -> None:
    pauses: list[float] = []

    def refused() -> None:
        raise CollimateError("full", 503, "at_capacity")

    policy = RetryPolicy(retries=5000, backoff_s=1.0, budget_s=30.0)
    with pytest.raises(CollimateError):
        policy.run(refused, rule=NON_IDEMPOTENT, sleep=pauses.append, uniform=lambda low, high: high)
    assert sum(pauses) == 30.0
    assert pauses == [1.0, 2.0, 4.0, 8.0, 15.0]


# What a peer that lies gets


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("exec_once", []),
        ("exec_once", {"stdout": "x"}),
        ("exec_once", {"stdout": None, "exit_code": 0}),
        ("exec_once", {"stdout": "", "exit_code": "0"}),
        ("exec_once", {"stdout": "", "exit_code": True}),
        ("session_exec", {"stdout": [], "exit_code": 0}),
        ("create_session", {}),
        ("create_session", {"session_id": ""}),
        ("create_session", {"session_id": 7}),
        ("create_session", None),
        ("get_session", "s-1"),
        ("delete_session", 1),
        ("list_sessions", {}),
        ("list_sessions", [1]),
        ("health", []),
        ("templates", {"templates": [1]}),
        ("templates", {"templates": "py"}),
    ],
)
def test_an_answer_of_another_shape_is_typed(
    server: ScriptedServer, client: CollimateClient, call: str, body: Any
) -> None:
    server.script = [answer(body)]
    arguments = [] if call in ("health", "templates", "list_sessions") else ["s-1"]
    with pytest.raises(MalformedAnswer) as caught:
        getattr(client, call)(*arguments)
    assert isinstance(caught.value, AmbiguousError)
    assert len(server.requests) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 200_000, b"1" * 10_000, b"<html></html>"])
def test_a_body_that_is_no_json_is_typed(server: ScriptedServer, client: CollimateClient, content: bytes) -> None:
    for status in (200, 400):
        server.script = [raw(frame(content, status))]
        with pytest.raises(CollimateError):
            client.exec_once("py", code="1")


def test_a_redirect_is_not_followed(server: ScriptedServer, client: CollimateClient) -> None:
    server.script = [answer({}, 302, "Location: http://elsewhere/\r\n")]
    with pytest.raises(MalformedAnswer, match="302"):
        client.health()


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ({"error": "no such template", "error_code": "no_template"}, "no_template", "no such template"),
        ({"code": "quota_exceeded", "message": "too much"}, "quota_exceeded", "too much"),
        ({"error": {"a": 1}, "error_code": 7}, None, "error"),
        ([], None, "400"),
        ({"error": "x" * 100_000}, None, "xxx"),
    ],
)
def test_a_refusal_carries_its_code_and_words(
    server: ScriptedServer, client: CollimateClient, body: Any, code: str | None, text: str
) -> None:
    server.script = [answer(body, 400)]
    with pytest.raises(CollimateError, match=text) as caught:
        client.create_session("py")
    assert (caught.value.status, caught.value.error_code) == (400, code)
    assert len(str(caught.value)) < 5000


# Making one


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"retries": -1},
        {"backoff": -1},
        {"retry_budget": float("nan")},
        {"base_url": "ftp://daemon"},
        {"unix_socket": "/" + "x" * 200},
    ],
)
def test_a_setting_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        CollimateClient(**options)


def test_defaults() -> None:
    made = CollimateClient()
    assert (made.base_url, made.timeout, made.retries, made.backoff, made.retry_budget, made.unix_socket) == (
        "http://127.0.0.1:8080",
        120.0,
        3,
        0.15,
        30.0,
        None,
    )
    assert CollimateClient.for_node_socket().unix_socket == "/run/collimate-session/serve.sock"
    assert CollimateClient.for_node_socket("/run/x", timeout=5).timeout == 5


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("COLLIMATE_SERVE_SOCKET", "COLLIMATE_API_KEY", "COLLIMATE_SERVE_URL", "COLLIMATE_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client_module, "SESSION_SOCKET", str(tmp_path / "serve.sock"))
    return monkeypatch


def where(found: SessionClient) -> str:
    assert isinstance(found, CollimateClient | GatewayClient)
    return found._sender.address


def test_the_order_of_connect(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert where(connect()) == "http://127.0.0.1:8080"
    (tmp_path / "serve.sock").touch()
    assert where(connect()) == where(CollimateClient.from_env()) == f"unix:{tmp_path}/serve.sock"
    environment.setenv("COLLIMATE_SERVE_URL", "http://url:1")
    assert where(connect()) == where(CollimateClient.from_env()) == "http://url:1"
    environment.setenv("COLLIMATE_API_KEY", "col_pro_x")
    assert where(connect()) == "https://api.collimate.ai"
    environment.setenv("COLLIMATE_BASE_URL", "https://gateway.example")
    assert where(connect()) == "https://gateway.example"
    assert where(CollimateClient.from_env()) == "http://url:1"
    environment.setenv("COLLIMATE_SERVE_SOCKET", "/run/env")
    assert where(connect()) == where(CollimateClient.from_env()) == "unix:/run/env"
    assert where(connect("http://base:2")) == "http://base:2"
    assert where(connect("https://base:2", api_key="col_pro_x")) == "https://base:2"
    assert where(connect("http://base:2", api_key="col_pro_x", unix_socket="/run/s", retries=0)) == "unix:/run/s"
