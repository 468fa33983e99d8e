"""The local gateway's keys, catalog and templates, over real HTTP and real bakes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.localgateway.keys import KeyRing, make_key, parse_key
from tests.fixtures.local_gateways import PORT, RunningGateway

PHASES = ["Pending", "Converting", "Distributing", "Live"]


def baked(gateway: RunningGateway, key: str, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    """A template once it is Live and converged, or Failed; and the phases seen on the way, in order."""
    status, made = gateway.call(key, "POST", "/v1/templates", {"name": "mine", "image": "py", **fields})
    assert status in (200, 201), made
    seen = [made["phase"]]
    deadline = time.monotonic() + 60
    while True:
        _, now = gateway.call(key, "GET", f"/v1/templates/{made['id']}")
        if now["phase"] != seen[-1]:
            seen.append(now["phase"])
        if now["phase"] == "Failed" or now["converge_state"] == "converged":
            return now, seen
        assert time.monotonic() < deadline, now
        time.sleep(0.01)


@pytest.mark.parametrize(
    "key", [None, "", "col_pro_12345678_short", make_key("pro").text], ids=["none", "empty", "short", "of another"]
)
def test_only_known_keys_are_let_in_and_health_needs_none(local_gateway: RunningGateway, key: str | None) -> None:
    status, answer = local_gateway.call(key, "GET", "/v1/images")
    assert (status, answer["code"]) == (401, "unauthorized")
    assert answer["message"]
    assert local_gateway.call(None, "GET", "/v1/health")[1]["status"] == "ok"


def test_keys_are_read_in_three_ways() -> None:
    whole = make_key("ent")
    assert parse_key(whole.text) == parse_key(f"ent:{whole.key_id}:{whole.secret}") == whole
    assert parse_key("demo").tier.name == "demo"
    for wrong in ("gold", "col_gold_12345678_" + "0" * 32, "pro:x:y", ""):
        with pytest.raises(ValueError, match="key is"):
            parse_key(wrong)
    with pytest.raises(ValueError, match="id of its own"):
        KeyRing([whole, whole])


def test_what_is_not_there_says_so(local_gateway: RunningGateway) -> None:
    key = local_gateway.key()
    assert local_gateway.call(key, "GET", "/v1/nothing")[1]["code"] == "not_found"
    assert local_gateway.call(key, "PUT", "/v1/templates", {})[0] == 405
    for path in ("templates/tpl-0", "sandboxes/sbx-0"):
        for method in ("GET", "DELETE"):
            status, answer = local_gateway.call(key, method, f"/v1/{path}")
            assert (status, answer["code"]) == (404, "not_found")


def test_the_catalog_is_what_the_daemon_forks(local_gateway: RunningGateway) -> None:
    rows = local_gateway.call(local_gateway.key(), "GET", "/v1/images")[1]["images"]
    assert {row["id"] for row in rows} == {"py", "python", "dkr-python311", "web"}
    assert all(set(row) == {"id", "name", "image", "visibility", "tier", "description"} for row in rows)
    assert {row["visibility"] for row in rows} == {"public"}


def test_a_bake_goes_through_its_phases_and_converges(local_gateway: RunningGateway) -> None:
    key = local_gateway.key()
    ready = {"cmd": "test $GREETING = hello", "env": {"GREETING": "hello"}}
    template, seen = baked(
        local_gateway, key, image="docker.io/library/python:3.12", ready=ready, pool={"width": 50, "cold_fraction": 0.2}
    )
    assert seen == [phase for phase in PHASES if phase in seen]
    assert seen[0] == "Pending"
    assert seen[-1] == "Live"
    assert (template["declared"], template["warm"], template["frozen"]) == (50, 40, 10)
    assert [(node["warm"], node["frozen"]) for node in template["per_node"]] == [(40, 10)]
    assert (template["error"], template["build_fails"]) == (None, 0)
    status, sandbox = local_gateway.call(key, "POST", "/v1/sandboxes", {"template": "mine"})
    assert (status, sandbox["template"]) == (201, template["id"])
    ran = local_gateway.call(key, "POST", f"/v1/sandboxes/{sandbox['id']}/exec", {"command": "echo $GREETING"})[1]
    assert ran["stdout"] == "hello\n"


def test_the_same_template_again_is_the_same(local_gateway: RunningGateway) -> None:
    key = local_gateway.key()
    first, _ = baked(local_gateway, key, pool={"width": 2})
    status, again = local_gateway.call(
        key, "POST", "/v1/templates", {"name": "mine", "image": "py", "pool": {"width": 5}}
    )
    assert (status, again["id"], again["phase"]) == (200, first["id"], "Live")
    assert local_gateway.call(key, "GET", f"/v1/templates/{first['id']}")[1]["declared"] == 5
    other, _ = baked(local_gateway, key, ready={"cmd": "true"})
    assert other["id"] != first["id"]
    listed = local_gateway.call(key, "GET", "/v1/templates")[1]["templates"]
    assert [one["id"] for one in listed] == [first["id"], other["id"]]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"image": "no-such-image:1"}, "has py, python"),
        ({"ready": {"cmd": "echo missing part; exit 3", "http_timeout_s": 0.2}}, "missing part"),
        ({"ready": {"http": ":8080/health", "http_timeout_s": 0.2}}, "nothing answers on port 8080"),
        ({"ready": {"ports": [80]}}, "between 1,024 and 65,535"),
        ({"ready": {"network": True}}, "vsock-only"),
    ],
)
def test_a_bake_that_cannot_be_fails_and_says_why(
    local_gateway: RunningGateway, fields: dict[str, Any], told: str
) -> None:
    key = local_gateway.key()
    failed, _ = baked(local_gateway, key, **fields)
    assert (failed["phase"], failed["build_fails"]) == ("Failed", 1)
    assert told in failed["error"]
    status, answer = local_gateway.call(key, "POST", "/v1/sandboxes", {"template": failed["id"]})
    assert (status, answer["code"]) == (409, "template_not_live")
    again, _ = baked(local_gateway, key, **fields)
    assert (again["id"], again["build_fails"]) == (failed["id"], 2)


def test_an_http_check_is_asked_of_a_fork(local_gateway: RunningGateway) -> None:
    template, _ = baked(local_gateway, local_gateway.key(), image="web", ready={"http": f"{PORT}/", "cmd": "false"})
    assert template["phase"] == "Live"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "", "image": "py"},
        {"name": "x", "image": "py", "pool": {"width": -1}},
        {"name": "x", "image": "py", "pool": {"width": True}},
        {"name": "x", "image": "py", "pool": {"width": 1, "cold_fraction": 2}},
        {"name": "x", "image": "py", "ready": {"commands": []}},
        {"name": "x", "image": "py", "ready": {"ports": [0]}},
        {"name": "x", "image": "py", "ready": {"http": "/path-without-port"}},
        {"name": "x", "image": "py", "ready": {"env": {"A": 1}}},
    ],
)
def test_a_wrong_declaration_is_the_callers_fault(local_gateway: RunningGateway, body: dict[str, Any]) -> None:
    status, answer = local_gateway.call(local_gateway.key(), "POST", "/v1/templates", body)
    assert (status, answer.get("code")) == (400, "bad_request")


def test_who_may_delete_what(local_gateway: RunningGateway) -> None:
    key, other = local_gateway.key(), local_gateway.key()
    template, _ = baked(local_gateway, key)
    path = f"/v1/templates/{template['id']}"
    status, answer = local_gateway.call(key, "DELETE", "/v1/templates/py")
    assert (status, answer["code"]) == (403, "forbidden")
    assert local_gateway.call(other, "GET", path)[0] == local_gateway.call(other, "DELETE", path)[0] == 404
    sandbox = local_gateway.call(key, "POST", "/v1/sandboxes", {"template": template["id"]})[1]
    status, answer = local_gateway.call(key, "DELETE", path)
    assert (status, answer["code"]) == (409, "template_in_use")
    local_gateway.call(key, "DELETE", f"/v1/sandboxes/{sandbox['id']}")
    assert local_gateway.call(key, "DELETE", path) == (200, {"deleted": True, "id": template["id"]})
    assert local_gateway.call(key, "DELETE", path)[0] == 404


def test_widths_are_declared_and_given_back(local_gateway: RunningGateway) -> None:
    key = local_gateway.key()
    template, _ = baked(local_gateway, key)
    path = f"/v1/templates/{template['id']}"
    for _ in range(2):
        assert local_gateway.call(key, "POST", f"{path}/expect", {"width": 7}) == (
            200,
            {"id": template["id"], "expected_width": 7},
        )
    assert local_gateway.call(key, "GET", path)[1]["declared"] == 7
    first = local_gateway.call(key, "POST", f"{path}/release", {})[1]
    assert first["released"] is True
    assert local_gateway.call(key, "POST", f"{path}/release", {})[1] == first
    now = local_gateway.call(key, "GET", path)[1]
    assert (now["declared"], now["warm"], now["converge_state"]) == (0, 0, "converged")
    assert local_gateway.call(key, "POST", "/v1/templates/py/expect", {"width": 1})[0] == 403


def test_a_demo_key_declares_no_width_and_no_network(local_gateway: RunningGateway) -> None:
    key = local_gateway.key("demo")
    template, _ = baked(local_gateway, key)
    status, answer = local_gateway.call(key, "POST", f"/v1/templates/{template['id']}/expect", {"width": 7})
    assert (status, answer["code"]) == (403, "demo_tier_limit")
    body = {"name": "net", "image": "py", "ready": {"network": True}}
    status, answer = local_gateway.call(key, "POST", "/v1/templates", body)
    assert (status, answer["code"]) == (403, "network_requires_pro")


def test_a_template_deleted_while_it_bakes_is_gone(own_gateway: Callable[..., RunningGateway]) -> None:
    gateway = own_gateway(phase_s=30.0)
    key = gateway.key()
    made = gateway.call(key, "POST", "/v1/templates", {"name": "slow", "image": "py"})[1]
    assert gateway.call(key, "POST", "/v1/sandboxes", {"template": "slow"})[1]["code"] == "template_not_live"
    assert gateway.call(key, "DELETE", f"/v1/templates/{made['id']}")[0] == 200
    assert gateway.call(key, "GET", f"/v1/templates/{made['id']}")[0] == 404
