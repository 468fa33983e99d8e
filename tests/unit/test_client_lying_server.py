"""A server that lies: whatever it says, a client's methods give an answer or a `CollimateError`, and no other error."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from collimate_rl import (
    CollimateClient,
    CollimateError,
    FleetView,
    GatewayClient,
    Sandbox,
    Template,
    UnitTestReward,
    grade,
    rollout_once,
)
from collimate_rl._retry import retry_after_s
from collimate_rl._transport import Answer
from collimate_rl.sandbox import ExecResult

ROUNDS = 150
KEY = f"col_pro_aaaaaaaa_{'b' * 32}"
SPEC = UnitTestReward([{"input": 1, "expected": 1}])

SANDBOX = {"id": "a", "session_id": "a", "template": "py", "template_id": "py", "labels": {}, "endpoints": {}}
EXEC = {"stdout": "", "stderr": "", "exit_code": 0, "exec_time_ms": 1, "seed": "ab" * 32, "seed_ack": "off"}
LISTS = {"images": [{"id": "py"}], "templates": [{"id": "t", "name": "t"}], "sandboxes": [{"id": "a"}]}
FORKS = {"children": [{"id": "c"}, {"id": "d"}], "parent": "a", "fork_kind": "files", "fork_time_ms": 1}
POOL = {"phase": "Live", "declared": 1, "warm": 1, "frozen": 0, "converge_state": "converged", "error": None}
NODES = {"per_node": [{"node": "n", "warm": 1, "frozen": 0}], "url": "ws://x", "deleted": True}
TRUE = {**SANDBOX, **EXEC, **LISTS, **FORKS, **POOL, **NODES}
LIES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e308, 10**400, float("nan"), float("inf")),
    *("", "x", "\ud800", "\0", "a" * 10_000, [], {}, [[]], [{}], [None], {"id": 3}, {"id": None}, {"a": {"b": []}}),
]
BODIES = [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, b'"\\ud800"', b"null", b"NaN"]
STATUSES = [*[200] * 12, 201, 204, 302, 400, 401, 403, 404, 404, 409, 410, 413, 429, 500, 502, 503, 504, 599, 999]
CODES = [
    "not_found",
    "demo_tier_limit",
    "at_capacity",
    "rate_limited",
    "draining",
    "forbidden",
    "session_gone",
    3,
    None,
]
RETRY_AFTER = [
    *("-5", "NaN", "inf", "1e9", "99999999999999999999", "\u0664", "", "0", "1, 2", "x" * 5000),
    *("Mon, 01 Jan 99999 00:00:00 GMT", "Mon, 01 Jan 0000 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +2300"),
    *("Fri, 31 Dec 9999 23:59:59 -2300", f"Mon, 01 Jan 2026 00:00:00 +{'9' * 30}", "Mon, 99 Jan 2026 99:99:99 GMT"),
]


class Liar:
    """A transport whose answers are the truth with a few fields wrong, or no answer of this API at all."""

    address = "http://liar"

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def close(self) -> None:
        pass

    def request(
        self, method: str, path: str, body: bytes | None = None, *, headers: Any = None, timeout_s: float
    ) -> Answer:
        chosen = self._random
        status = chosen.choice(STATUSES)
        told: Mapping[str, str] = {"retry-after": chosen.choice(RETRY_AFTER)} if chosen.random() < 0.3 else {}
        what = chosen.random()
        if what < 0.05:
            return Answer(status=status, body=chosen.choice(BODIES), headers=told)
        answer: Any = chosen.choice(LIES) if what < 0.15 else TRUE
        if isinstance(answer, dict):
            answer = dict(answer)
            for name in chosen.choices(list(TRUE), k=chosen.randint(0, 3)):
                answer.pop(name, None)
                if chosen.random() < 0.7:
                    answer[name] = chosen.choice(LIES)
            if status >= 400:
                answer |= {"code": chosen.choice(CODES), "message": chosen.choice(["no", 3, None])}
        return Answer(status=status, body=json.dumps(answer).encode(), headers=told)


def daemon(seed: str) -> CollimateClient:
    return CollimateClient(retries=1, sleep=lambda _: None, transport=Liar(seed))


def gateway(seed: str) -> GatewayClient:
    return GatewayClient(KEY, "http://liar", retries=1, sleep=lambda _: None, transport=Liar(seed))


def use_a_sandbox(client: Any) -> None:
    with Sandbox("py", client=client) as sandbox:
        sandbox.exec("true")
        sandbox.upload_bytes("p", b"data")
        sandbox.download("p")


def use_a_group(client: GatewayClient) -> None:
    with client.session("py") as session, session.fork_group(2) as group:
        group.exec_each("true")
        session.suspend()
        session.resume()
        session.connect_url(80)


def use_an_env(client: GatewayClient) -> None:
    with client.env("t", width=3) as env:
        env.status()
        env.sandbox().close()


def look_at_the_fleet(client: GatewayClient) -> None:
    status = FleetView(client, include_public=True).status()
    json.dumps([status.summary(), status.as_dict(), status.total, status.converged])


SESSIONS: dict[str, Callable[[Any], object]] = {
    "health": lambda client: client.health(),
    "templates": lambda client: client.templates(),
    "create_session": lambda client: client.create_session("py"),
    "get_session": lambda client: client.get_session("a"),
    "list_sessions": lambda client: client.list_sessions(),
    "delete_session": lambda client: client.delete_session("a"),
    "session_exec": lambda client: ExecResult.from_wire(client.session_exec("a", command="true")),
    "exec_once": lambda client: client.exec_once("py", command="true"),
    "rollout_once": lambda client: rollout_once("py", "true", client=client),
    "Sandbox": use_a_sandbox,
    "attach": lambda client: Sandbox.attach(client, "a").exec("true"),
    "grade": lambda client: grade(client, "py", "def solve(x):\n    return x\n", SPEC),
}
GATEWAY: dict[str, Callable[[GatewayClient], object]] = {
    "images": lambda client: client.images(),
    "usage": lambda client: client.usage(),
    "create_template": lambda client: client.create_template("n", "i"),
    "list_templates": lambda client: client.list_templates(),
    "get_template": lambda client: client.get_template("t"),
    "delete_template": lambda client: client.delete_template("t"),
    "expect_width": lambda client: client.expect_width("t", 3),
    "release_template": lambda client: client.release_template("t"),
    "create_sandbox": lambda client: client.create_sandbox("py"),
    "list_sandboxes": lambda client: client.list_sandboxes(),
    "fork": lambda client: client.fork("a", 2),
    "suspend": lambda client: client.suspend("a"),
    "connect_url": lambda client: client.connect_url("a", 80),
    "cdp_url": lambda client: client.cdp_url("a"),
    "delete_sandbox": lambda client: client.delete_sandbox("a"),
    "bake": lambda client: Template.bake("py", client=client).wait(timeout=0),
    "attach": lambda client: Template.attach("t", client=client).status(),
    "group": use_a_group,
    "env": use_an_env,
    "fleet": look_at_the_fleet,
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("make", [daemon, gateway], ids=["daemon", "gateway"])
def test_sessions(make: Callable[[str], Any], name: str) -> None:
    client = make(name)
    for _ in range(ROUNDS):
        survive(lambda: SESSIONS[name](client))


@pytest.mark.parametrize("name", GATEWAY)
def test_what_only_a_gateway_has(name: str) -> None:
    client = gateway(name)
    for _ in range(ROUNDS):
        survive(lambda: GATEWAY[name](client))


def survive(call: Callable[[], object]) -> None:
    try:
        call()
    except (CollimateError, TimeoutError):
        pass  # said in our words: a lie that was noticed, or one that looks like a refusal


@pytest.mark.parametrize("text", RETRY_AFTER)
def test_a_retry_after_is_seconds_or_nothing(text: str) -> None:
    told = retry_after_s(text)
    assert told is None or 0 <= told < float("inf")
