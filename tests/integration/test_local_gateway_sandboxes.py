"""Sandboxes through the local gateway: tenants, caps, execs, forks, suspension, usage and rates."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.sandboxd.config import Limits
from tests.fixtures.local_gateways import RunningGateway
from tests.fixtures.sandboxd_wire import call, eventually


class Tenant:
    """One key, and what is done with it."""

    def __init__(self, gateway: RunningGateway, tier: str = "pro") -> None:
        self.gateway = gateway
        self.key = gateway.key(tier)

    def make(self, **fields: Any) -> tuple[int, Any]:
        return self.gateway.call(self.key, "POST", "/v1/sandboxes", {"template": "py", **fields})

    def sandbox(self, **fields: Any) -> str:
        status, made = self.make(**fields)
        assert status == 201, made
        return str(made["id"])

    def ask(self, sandbox: str, verb: str, **body: Any) -> tuple[int, Any]:
        return self.gateway.call(self.key, "POST", f"/v1/sandboxes/{sandbox}/{verb}", body)

    def run(self, sandbox: str, command: str) -> str:
        status, ran = self.ask(sandbox, "exec", command=command)
        assert (status, ran.get("exit_code")) == (200, 0), ran
        return str(ran["stdout"])

    def get(self, sandbox: str) -> tuple[int, Any]:
        return self.gateway.call(self.key, "GET", f"/v1/sandboxes/{sandbox}")

    def delete(self, sandbox: str) -> tuple[int, Any]:
        return self.gateway.call(self.key, "DELETE", f"/v1/sandboxes/{sandbox}")


@pytest.fixture
def tenant(local_gateway: RunningGateway) -> Tenant:
    return Tenant(local_gateway)


def test_a_sandbox_from_create_to_delete(tenant: Tenant) -> None:
    status, made = tenant.make(label="one", labels={"run": "a"}, secret_refs=["token"])
    assert status == 201
    assert {"id", "template", "fork_time_ms", "create_time_ms"} <= set(made)
    assert made["notes"]
    status, ran = tenant.ask(made["id"], "exec", code="import sys; print(7 * 6); sys.exit(3)", seed="ab" * 32)
    assert (status, ran["stdout"], ran["exit_code"], ran["seed"]) == (200, "42\n", 3, "ab" * 32)
    told = tenant.get(made["id"])[1]
    assert (told["template"], told["label"], told["labels"], told["exec_count"]) == ("py", "one", {"run": "a"}, 1)
    assert [one["id"] for one in tenant.gateway.call(tenant.key, "GET", "/v1/sandboxes")[1]["sandboxes"]] == [
        made["id"]
    ]
    assert tenant.delete(made["id"]) == (200, {"deleted": True, "id": made["id"]})
    assert (
        tenant.delete(made["id"])[0]
        == tenant.get(made["id"])[0]
        == tenant.ask(made["id"], "exec", command="")[0]
        == 404
    )


def test_another_keys_sandbox_is_not_found(tenant: Tenant) -> None:
    sandbox = tenant.sandbox()
    stranger = Tenant(tenant.gateway, "ent")
    answers = [stranger.get(sandbox), stranger.delete(sandbox)]
    answers += [stranger.ask(sandbox, verb) for verb in ("exec", "fork", "suspend", "resume", "connect-url")]
    assert {(status, answer["code"]) for status, answer in answers} == {(404, "not_found")}
    assert stranger.gateway.call(stranger.key, "GET", "/v1/sandboxes")[1] == {"sandboxes": []}
    assert tenant.run(sandbox, "echo still here") == "still here\n"


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"template": "nope"}, 404, "not_found"),
        ({"template": None}, 400, "bad_request"),
        ({"label": 3}, 400, "bad_request"),
        ({"labels": [1]}, 400, "bad_request"),
        ({"egress": {"mode": "open"}}, 400, "bad_request"),
        ({"egress": {"mode": "none"}}, 400, "bad_request"),
    ],
)
def test_creates_that_cannot_be(tenant: Tenant, fields: dict[str, Any], status: int, code: str) -> None:
    got, answer = tenant.make(**fields)
    assert (got, answer["code"]) == (status, code)


def test_the_daemons_refusals_come_through(tenant: Tenant) -> None:
    sandbox = tenant.sandbox()
    status, answer = tenant.ask(sandbox, "exec", command="echo", seed="zz")
    assert (status, answer["error_code"]) == (400, "invalid_seed")
    status, answer = tenant.ask(sandbox, "exec", command="x" * 200_000)
    assert (status, answer["error_code"]) == (413, "command_too_large")
    assert tenant.ask(sandbox, "exec")[0] == 400


def test_a_body_that_is_no_json_is_told_in_the_gateways_shape(tenant: Tenant) -> None:
    request = urllib.request.Request(
        f"{tenant.gateway.base_url}/v1/sandboxes", data=b"{", headers={"Authorization": f"Bearer {tenant.key}"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    with caught.value as error:
        assert (error.code, json.loads(error.read())["code"]) == (400, "bad_request")


def test_a_sandbox_that_the_daemon_ended_is_gone(own_gateway: Callable[..., RunningGateway]) -> None:
    tenant = Tenant(own_gateway(limits=Limits(age_limit_s=0.5)), "demo")
    made = [tenant.sandbox() for _ in range(8)]
    eventually(lambda: tenant.get(made[0])[0] == 404, "the daemon never ended it")
    eventually(lambda: tenant.make()[0] == 201, "ended sandboxes still count")
    assert tenant.ask(made[1], "exec", command="true")[1]["code"] == "not_found"


def test_egress_on_a_demo_key(local_gateway: RunningGateway) -> None:
    tenant = Tenant(local_gateway, "demo")
    assert tenant.make(egress={"allow": ["example.org"]})[1]["code"] == "network_requires_pro"
    status, answer = tenant.make(egress={"mode": "none"})
    assert (status, "vsock-only" in answer["message"]) == (400, True)


def test_a_demo_key_holds_eight_sandboxes(local_gateway: RunningGateway) -> None:
    tenant = Tenant(local_gateway, "demo")
    answers: list[tuple[int, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(tenant.make())) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [answer["id"] for status, answer in answers if status == 201]
    assert len(made) == 8
    assert {(s, a["code"]) for s, a in answers if s != 201} == {(429, "demo_tier_limit")}
    status, answer, headers = local_gateway.call_with_headers(tenant.key, "POST", "/v1/sandboxes", {"template": "py"})
    assert (status, headers["Retry-After"]) == (429, "1")
    assert "8 sandboxes" in answer["message"]
    assert tenant.ask(made[0], "fork", count=1)[1]["code"] == "demo_tier_limit"
    tenant.delete(made[0])
    assert tenant.make()[0] == 201


@pytest.mark.parametrize(("tier", "fan_out", "code"), [("demo", 4, "demo_tier_limit"), ("pro", 32, "quota_exceeded")])
def test_fan_out_has_the_tiers_cap(local_gateway: RunningGateway, tier: str, fan_out: int, code: str) -> None:
    tenant = Tenant(local_gateway, tier)
    parent = tenant.sandbox()
    status, answer = tenant.ask(parent, "fork", count=fan_out + 1)
    assert (status, answer["code"]) == (403, code)
    assert str(fan_out) in answer["message"]
    status, answer = tenant.ask(parent, "fork", count=fan_out)
    assert (status, len(answer["children"])) == (200, fan_out)
    for child in answer["children"]:
        tenant.delete(child["id"])


def test_forks_have_the_parents_files_and_are_their_own(tenant: Tenant) -> None:
    parent = tenant.sandbox()
    noise = base64.b64encode(bytes(range(256)) * 300).decode()
    tenant.run(parent, f"mkdir -p a/b /tmp/t && echo {noise} | base64 -d > a/b/noise")
    tenant.run(parent, "echo run > /tmp/t/x && ln -s a l")
    tenant.run(parent, "chmod 500 a/b && umask 0 && touch 'with space\"' && sleep 600 & echo started")
    status, answer = tenant.ask(parent, "fork", count=2, labels=["left", "right"])
    assert (status, answer["parent"], answer["fork_kind"]) == (200, parent, "files")
    left, right = (child["id"] for child in answer["children"])
    assert [tenant.get(one)[1]["label"] for one in (left, right)] == ["left", "right"]
    look = "sha256sum a/b/noise /tmp/t/x; stat -c '%a %n' a/b; readlink l; ls; ls -A /tmp /dev/shm"
    assert tenant.run(left, look) == tenant.run(right, look) == tenant.run(parent, look)
    tenant.run(left, "echo changed > /tmp/t/x")
    assert tenant.run(right, "cat /tmp/t/x") == tenant.run(parent, "cat /tmp/t/x") == "run\n"
    assert tenant.run(left, "pgrep -c sleep || true") == "0\n"


def test_a_fork_of_too_many_files_is_refused_whole(tenant: Tenant) -> None:
    parent = tenant.sandbox()
    tenant.run(parent, "head -c 20000000 /dev/urandom > big")
    status, answer = tenant.ask(parent, "fork", count=2)
    assert (status, answer.get("code")) == (413, "fork_too_large")
    assert len(tenant.gateway.call(tenant.key, "GET", "/v1/sandboxes")[1]["sandboxes"]) == 1
    assert tenant.run(parent, "ls -A /dev/shm") == ""


def test_suspended_processes_stand_still_and_go_on(tenant: Tenant) -> None:
    sandbox = tenant.sandbox()
    tenant.run(sandbox, "(while true; do echo >> ticks; sleep 0.02; done) > /dev/null 2>&1 &")
    for _ in range(2):
        status, answer = tenant.ask(sandbox, "suspend")
        assert (status, answer["state"], answer["suspend_kind"]) == (200, "suspended", "stopped")
    for verb in ("exec", "fork"):
        assert tenant.ask(sandbox, verb, command="echo", count=1)[1]["code"] == "sandbox_suspended"
    assert tenant.get(sandbox)[1]["state"] == "suspended"
    for _ in range(2):
        assert tenant.ask(sandbox, "resume") == (200, {"id": sandbox, "state": "running"})
    before = int(tenant.run(sandbox, "wc -l < ticks"))
    eventually(lambda: int(tenant.run(sandbox, "wc -l < ticks")) > before, "the loop never went on")


def test_a_suspended_sandbox_is_deleted(tenant: Tenant) -> None:
    sandbox = tenant.sandbox()
    tenant.ask(sandbox, "suspend")
    assert tenant.delete(sandbox)[0] == 200


def test_no_suspension_under_a_running_exec(tenant: Tenant) -> None:
    sandbox = tenant.sandbox()
    answers: list[Any] = []
    command = "touch begun; while [ ! -e go ]; do sleep 0.02; done"
    thread = threading.Thread(target=lambda: answers.append(tenant.ask(sandbox, "exec", command=command)))
    thread.start()
    eventually(lambda: "begun" in tenant.run(sandbox, "ls"), "the exec never began")
    status, answer = tenant.ask(sandbox, "suspend")
    assert (status, answer["code"]) == (409, "sandbox_busy")
    tenant.run(sandbox, "touch go")
    thread.join()
    assert answers[0][1]["exit_code"] == 0


def test_usage_is_counted_by_key(tenant: Tenant) -> None:
    sandbox = tenant.sandbox()
    tenant.run(sandbox, "true")
    tenant.ask(sandbox, "fork", count=2)
    status, told = tenant.gateway.call(tenant.key, "GET", "/v1/usage")
    assert status == 200
    counts = {name: told["totals"][name] for name in ("sandboxes", "forks", "execs", "tunnels")}
    assert counts == {"sandboxes": 3, "forks": 2, "execs": 1, "tunnels": 0}
    past = "from=2020-01-01T00:00:00Z&to=2020-02-01T00:00:00Z"
    told = tenant.gateway.call(tenant.key, "GET", f"/v1/usage?{past}")[1]
    assert (told["from"], told["totals"]["execs"]) == ("2020-01-01T00:00:00Z", 0)
    assert tenant.gateway.call(tenant.key, "GET", "/v1/usage?from=yesterday")[0] == 400


def test_too_many_requests_are_told_to_wait(own_gateway: Callable[..., RunningGateway]) -> None:
    gateway = own_gateway(requests_per_second=0.01)
    key, other = gateway.key(), gateway.key()
    assert gateway.call(key, "GET", "/v1/images")[0] == 200
    status, answer, headers = gateway.call_with_headers(key, "GET", "/v1/images")
    assert (status, answer["code"]) == (429, "rate_limited")
    assert int(headers["Retry-After"]) >= 1
    assert gateway.call(other, "GET", "/v1/images")[0] == 200


def test_a_full_node_is_at_capacity_before_anything_is_made(own_gateway: Callable[..., RunningGateway]) -> None:
    tenant = Tenant(own_gateway(limits=Limits(max_sessions=2)))
    parent = tenant.sandbox()
    status, answer, headers = tenant.gateway.call_with_headers(
        tenant.key, "POST", f"/v1/sandboxes/{parent}/fork", {"count": 2}
    )
    assert (status, answer["code"], headers["Retry-After"]) == (503, "at_capacity", "1")
    assert tenant.make()[0] == 201
    assert tenant.make()[1]["code"] == "at_capacity"


def test_in_front_of_a_daemon_elsewhere(own_gateway: Callable[..., RunningGateway], daemon_socket: str) -> None:
    def sessions() -> set[str]:
        return {session["session_id"] for session in call(daemon_socket, "GET", "/v1/sessions")[1]}

    before = sessions()
    tenant = Tenant(own_gateway(backend=f"unix:{daemon_socket}"))
    sandbox = tenant.sandbox(label="mine")
    assert len(sessions() - before) == 1
    assert tenant.run(sandbox, "echo hello > x; cat x") == "hello\n"
    child = tenant.ask(sandbox, "fork", count=1)[1]["children"][0]["id"]
    assert tenant.run(child, "cat x") == "hello\n"
    assert tenant.ask(sandbox, "suspend")[1]["suspend_kind"] == "refuses_execs"
    assert tenant.ask(sandbox, "exec", command="true")[1]["code"] == "sandbox_suspended"
    for one in (sandbox, child):
        assert tenant.delete(one)[0] == 200
    assert sessions() - before == set()


def test_a_daemon_that_does_not_answer_is_the_upstreams_fault(
    own_gateway: Callable[..., RunningGateway], tmp_path: Any
) -> None:
    from collimate_rl.localgateway.refusals import Refusal

    with pytest.raises(Refusal, match="does not answer"):
        own_gateway(backend=f"unix:{tmp_path}/none.sock")
