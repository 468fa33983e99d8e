"""The gateway's client against a scripted server: what it sends, what it makes of refusals, what it sends again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from collimate_rl import (
    DemoTierLimit,
    ForkGroup,
    GatewayClient,
    GatewayError,
    Ready,
    Sandbox,
    Session,
    Template,
    TemplateBakeFailed,
    TemplateHandle,
    rollout_once,
)
from collimate_rl.client import CollimateClient
from collimate_rl.errors import AmbiguousError, CollimateError, MalformedAnswer
from collimate_rl.transport import SessionClient
from tests.fixtures.scripted_server import EXEC_ANSWER, ScriptedServer, answer, hang_up

KEY = "col_demo_abcd1234_" + "s" * 32
MADE = {"id": "sbx-1", "template": "py", "fork_time_ms": 0.7, "create_time_ms": 3.0}
DELETED = {"deleted": True, "id": "sbx-1"}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def client(server: ScriptedServer, slept: list[float]) -> Iterator[GatewayClient]:
    with GatewayClient(KEY, server.base_url, sleep=slept.append, uniform=lambda low, high: high) as made:
        yield made


def said(status: int, code: str, message: str = "no", extra: str = "") -> Any:
    return answer({"code": code, "message": message}, status, extra)


def asked(server: ScriptedServer) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in server.requests]


def test_a_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLIMATE_API_KEY", raising=False)
    with pytest.raises(ValueError, match="COLLIMATE_API_KEY"):
        GatewayClient()
    with pytest.raises(ValueError, match="ASCII"):
        GatewayClient("col_pro_x\r\nX: y")
    monkeypatch.setenv("COLLIMATE_API_KEY", KEY)
    monkeypatch.setenv("COLLIMATE_BASE_URL", "https://gateway.example/")
    made = GatewayClient()
    assert (made.base_url, made.tier, made.fan_out) == ("https://gateway.example", "demo", 4)
    assert GatewayClient("col_ent_x").fan_out == 64
    assert GatewayClient("some other key".replace(" ", "-")).fan_out == 4
    assert "s" * 32 not in repr(made)


def test_it_is_a_session_client(client: GatewayClient) -> None:
    assert isinstance(client, SessionClient)


def test_the_session_surface(server: ScriptedServer, client: GatewayClient) -> None:
    server.script = [
        answer(MADE, 201),
        answer(EXEC_ANSWER),
        answer({**MADE, "labels": {"collimate": "mine"}}),
        answer({"sandboxes": [MADE]}),
        answer(DELETED),
    ]
    made = client.create_session("py", egress={"mode": "none"}, label="mine")
    assert (made["session_id"], made["template_id"], made["fork_time_ms"]) == ("sbx-1", "py", 0.7)
    assert client.session_exec("sbx-1", command="true", timeout_seconds=5)["exit_code"] == 0
    assert client.get_session("sbx-1")["label"] == "mine"
    assert [one["session_id"] for one in client.list_sessions()] == ["sbx-1"]
    assert client.delete_session("sbx-1") == {**DELETED, "session_id": "sbx-1"}
    assert server.requests[0].json == {"template": "py", "labels": {"collimate": "mine"}, "egress": {"mode": "none"}}
    assert asked(server) == [
        ("POST", "/v1/sandboxes"),
        ("POST", "/v1/sandboxes/sbx-1/exec"),
        ("GET", "/v1/sandboxes/sbx-1"),
        ("GET", "/v1/sandboxes"),
        ("DELETE", "/v1/sandboxes/sbx-1"),
    ]


@pytest.mark.parametrize("outcome", ["ran", "failed", "lost"])
def test_exec_once_deletes_whatever_the_exec_did(server: ScriptedServer, client: GatewayClient, outcome: str) -> None:
    second = {"ran": answer(EXEC_ANSWER), "failed": said(400, "bad_request"), "lost": hang_up}[outcome]
    server.script = [answer(MADE, 201), second, answer(DELETED)]
    if outcome == "ran":
        assert rollout_once("py", "true", client=client).fork_time_ms == 0.5
    else:
        with pytest.raises(GatewayError if outcome == "failed" else AmbiguousError):
            client.exec_once("py", command="true")
    assert [method for method, _ in asked(server)] == ["POST", "POST", "DELETE"]


def test_a_deletion_that_fails_does_not_cost_the_answer(server: ScriptedServer, client: GatewayClient) -> None:
    server.script = [answer(MADE, 201), answer({**EXEC_ANSWER, "fork_time_ms": 0}), said(403, "forbidden")]
    assert client.exec_once("py", command="true")["fork_time_ms"] == 0.7


def test_daemon_codes_for_what_is_not_there(server: ScriptedServer, client: GatewayClient) -> None:
    server.default = said(404, "not_found")
    for code, call in (
        ("no_template", lambda: client.create_session("x")),
        ("no_such_session", lambda: client.get_session("x")),
        ("no_such_session", lambda: client.session_exec("x", command="true")),
        ("not_found", lambda: client.get_sandbox("x")),
        ("no_such_session", lambda: Sandbox.attach(client, "x")),
    ):
        with pytest.raises(GatewayError) as caught:
            call()
        assert (caught.value.error_code, caught.value.code, caught.value.status) == (code, code, 404)
    assert client.delete_session("x")["deleted"] is False


@pytest.mark.parametrize("status", [403, 429])
def test_the_demo_tiers_own_words(server: ScriptedServer, client: GatewayClient, status: int) -> None:
    words = "You are on the demo tier: 8 sandboxes at once. Write to us."
    server.default = said(status, "demo_tier_limit", words, "Retry-After: 1\r\n")
    for call in (lambda: client.create_session("py"), client.images):
        with pytest.raises(DemoTierLimit) as caught:
            call()
        assert str(caught.value) == words
        assert caught.value.is_infra
    assert len(server.requests) == 2


CODES = ("unauthorized", "forbidden", "quota_exceeded", "insufficient_credits", "network_requires_pro")


@pytest.mark.parametrize("code", CODES)
def test_what_is_never_sent_again(server: ScriptedServer, client: GatewayClient, code: str) -> None:
    server.default = said(429, code)
    for call in (client.images, lambda: client.create_sandbox("py"), lambda: client.delete_sandbox("x")):
        with pytest.raises(GatewayError) as caught:
            call()
        assert caught.value.is_infra
        assert caught.value.is_misconfigured
    assert len(server.requests) == 3


def test_no_room_is_waited_for_as_long_as_the_gateway_says(
    server: ScriptedServer, client: GatewayClient, slept: list[float]
) -> None:
    full = said(503, "at_capacity", extra="Retry-After: 2\r\n")
    server.script = [full, full, answer(MADE, 201)]
    assert client.create_sandbox("py")["id"] == "sbx-1"
    assert len(server.requests) == 3
    assert slept == [2 + 0.15, 2 + 0.3]
    server.script = [said(503, "at_capacity", extra="Retry-After: 60\r\n")]
    with pytest.raises(GatewayError) as caught:
        client.create_sandbox("py")
    assert caught.value.error_code == "at_capacity"
    assert caught.value.retry_after_s == 60
    assert len(server.requests) == 4


def test_posts_that_are_idempotent_are_sent_again_and_others_not(server: ScriptedServer, client: GatewayClient) -> None:
    broken = said(502, "upstream_error")
    for call in (
        lambda: client.create_template("t", "img"),
        lambda: client.expect_width("t", 4),
        lambda: client.release_template("t"),
    ):
        server.requests.clear()
        server.script = [broken, hang_up, answer({"id": "t"})]
        assert call()["id"] == "t"
        assert len(server.requests) == 3
    for call in (
        lambda: client.create_sandbox("py"),
        lambda: client.exec("x", "true"),
        lambda: client.fork("x", 2),
        lambda: client.suspend("x"),
        lambda: client.connect_url("x", 80),
    ):
        server.requests.clear()
        server.script = [broken]
        with pytest.raises(GatewayError):
            call()
        assert len(server.requests) == 1


def test_a_daemons_error_behind_the_gateway(server: ScriptedServer, client: GatewayClient) -> None:
    server.script = [answer({"error": "it is over", "error_code": "session_gone"}, 410)]
    with pytest.raises(GatewayError, match="it is over") as caught:
        client.exec("x", "true")
    assert (caught.value.status, caught.value.error_code) == (410, "session_gone")


def test_answers_that_are_none(server: ScriptedServer, client: GatewayClient) -> None:
    for told, call in (
        ([], client.images),
        ({"images": [{}]}, client.images),
        ({"template": "py"}, lambda: client.create_sandbox("py")),
        ({"children": 3}, lambda: client.fork("x")),
        ({"expires_at": "now"}, lambda: client.connect_url("x", 80)),
        ({"exit_code": "0"}, lambda: client.exec("x", "true")),
    ):
        server.script = [answer(told)]
        with pytest.raises(MalformedAnswer):
            call()


def test_tunnels_say_what_to_do(server: ScriptedServer, client: GatewayClient) -> None:
    server.script = [said(403, "forbidden", "no"), said(409, "port_not_exposed")]
    with pytest.raises(GatewayError, match="Pro feature"):
        client.connect_url("x", 8000)
    with pytest.raises(GatewayError, match=r"port 8000 .*ports=\[8000\]") as caught:
        client.connect_url("x", 8000)
    assert caught.value.code == "port_not_exposed"
    server.script = [said(409, "sandbox_suspended", "resume it first"), answer({"url": "wss://x", "e": 1})]
    with pytest.raises(GatewayError, match=r"^resume it first"):
        client.connect_url("x", 8000)
    assert client.cdp_url("x", ttl_seconds=99999) == "wss://x"
    assert server.requests[-1].json == {"port": 9222, "ttl_seconds": 3600, "protocol": "cdp"}
    for port, options in ((0, {}), (65536, {}), (True, {}), (80, {"protocol": "udp"}), (80, {"ttl_seconds": 0})):
        with pytest.raises(ValueError, match=r"port|protocol|ttl"):
            client.connect_url("x", port, **options)


def test_a_daemons_sandbox_has_no_tunnels(server: ScriptedServer) -> None:
    with CollimateClient(server.base_url) as daemon:
        sandbox = Sandbox.adopt(daemon, "s1")
        for call in (lambda: sandbox.connect_url(80), sandbox.cdp_url, lambda: sandbox.port_forward(80)):
            with pytest.raises(CollimateError, match="gateway only"):
                call()


STATUS = {"id": "t1", "name": "mine", "image": "img", "phase": "Pending", "declared": 2, "warm": 0, "frozen": 0}


def test_a_bake_is_waited_for(server: ScriptedServer, client: GatewayClient) -> None:
    live = {**STATUS, "phase": "Live", "warm": 1, "frozen": 1, "converge_state": "converged"}
    server.script = [answer(STATUS, 201), answer(STATUS), answer(STATUS), answer({**STATUS, "warm": 1}), answer(live)]
    ready = Ready(cmd="true", ports=[8000], env={"A": "1"})
    handle = Template.bake("img:1", name="mine", ready=ready, width=2, cold_fraction=0.5, client=client)
    seen: list[Any] = []
    status = handle.wait(on_update=seen.append, sleep=lambda _: None)
    assert (status.is_live, status.is_converged, status.total, len(seen)) == (True, True, 2, 3)
    assert server.requests[0].json == {
        "name": "mine",
        "image": "img:1",
        "ready": {"cmd": "true", "ports": [8000], "env": {"A": "1"}},
        "pool": {"width": 2, "cold_fraction": 0.5},
    }


def test_a_bake_that_fails(server: ScriptedServer, client: GatewayClient) -> None:
    failed = {**STATUS, "phase": "Failed", "error": "no such tag", "build_fails": 3}
    handle = TemplateHandle(client, "t1")
    server.default = answer(failed)
    with pytest.raises(TemplateBakeFailed, match="no such tag") as caught:
        handle.wait(sleep=lambda _: None)
    assert caught.value.status.build_fails == 3
    clock = iter(range(100))
    with pytest.raises(TemplateBakeFailed):
        handle.wait(timeout=5, fail_fast=False, sleep=lambda _: None, clock=lambda: float(next(clock)))
    assert len(server.requests) == 6
    server.default = answer(STATUS)
    clock = iter(range(100))
    with pytest.raises(TimeoutError, match="Pending"):
        handle.wait(timeout=2, sleep=lambda _: None, clock=lambda: float(next(clock)))


def children(*names: str) -> Any:
    return answer({"parent": "sbx-1", "children": [{"id": name} for name in names]})


def test_a_group_is_chunked_and_whole(server: ScriptedServer, client: GatewayClient) -> None:
    server.script = [children("a", "b", "c", "d"), children("e", "f")]
    parent = Session.adopt(client, "sbx-1", template="py")
    group = parent.fork_group(6, labels=list("uvwxyz"))
    assert [child.id for child in group] == list("abcdef")
    assert [request.json for request in server.requests] == [
        {"count": 4, "labels": ["u", "v", "w", "x"]},
        {"count": 2, "labels": ["y", "z"]},
    ]
    server.default = answer(EXEC_ANSWER)
    assert [result.ok for result in group.exec_each(["true"] * 6)] == [True] * 6
    server.default = answer({"deleted": True})
    with group:
        pass
    assert {path for method, path in asked(server) if method == "DELETE"} == {f"/v1/sandboxes/{c}" for c in "abcdef"}
    assert parent.id == "sbx-1"


@pytest.mark.parametrize("second", ["refused", "short"])
def test_a_group_that_cannot_be_whole_leaves_none(server: ScriptedServer, client: GatewayClient, second: str) -> None:
    server.script = [children("a", "b", "c", "d"), said(429, "demo_tier_limit") if second == "refused" else children()]
    server.default = answer({"deleted": True})
    parent = Session.adopt(client, "sbx-1", template="py")
    with pytest.raises(GatewayError):
        parent.fork_group(5)
    assert sorted(path[-1] for method, path in asked(server) if method == "DELETE") == ["a", "b", "c", "d"]


def test_map_runs_all_and_raises_the_first(client: GatewayClient) -> None:
    parent = Session.adopt(client, "sbx-1", template="py")
    group = ForkGroup(parent, [Session.adopt(client, name) for name in "abc"])
    ran: list[str] = []

    def fails(child: Session, item: int) -> int:
        ran.append(str(child.id))
        if item:
            raise KeyError(item)
        return item

    with pytest.raises(KeyError, match="1"):
        group.map(fails, [0, 1, 2])
    assert sorted(ran) == ["a", "b", "c"]
    assert group.map(lambda child: child.id) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="2 items for 3"):
        group.map(fails, [1, 2])


def test_ready_is_checked() -> None:
    assert Ready().to_wire() == {}
    assert Ready(http="/health", http_timeout_s=3.0, network=False).to_wire() == {
        "http": "/health",
        "http_timeout_s": 3.0,
        "network": False,
    }
    with pytest.raises(ValueError, match="port"):
        Ready(ports=[0])
    with pytest.raises(ValueError, match="http_timeout_s"):
        Ready(http_timeout_s=0)
