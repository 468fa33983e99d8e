"""What `GatewayClient.env` makes of a reference, and `FleetView` of the gateway's answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from collimate_rl import FleetView, GatewayClient, GatewayError
from tests.fixtures.scripted_server import ScriptedServer, answer

KEY = "col_pro_abcd1234_" + "s" * 32
OWN = {"id": "tpl-1", "name": "mine", "image": "local/mine"}
TWIN = {"id": "tpl-2", "name": "py", "image": "local/own-py"}
PUBLIC = {"id": "py", "name": "python", "image": "local/py", "visibility": "public"}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[GatewayClient]:
    with GatewayClient(KEY, server.base_url, retries=0) as made:
        yield made


def listing(server: ScriptedServer, *then: Any) -> None:
    server.requests.clear()
    server.script = [answer({"templates": [OWN, TWIN]}), answer({"images": [PUBLIC]}), *then]


def sent(server: ScriptedServer) -> list[tuple[str, str, Any]]:
    return [(r.method, r.path, r.json if r.body else None) for r in server.requests[2:]]


def test_a_catalog_image_is_used_as_it_is(server: ScriptedServer, client: GatewayClient) -> None:
    listing(server)
    with client.env("py", width=50) as env:
        assert (env.template_id, env.width) == ("py", 50)
    assert sent(server) == []


def test_an_id_outranks_a_name(server: ScriptedServer, client: GatewayClient) -> None:
    listing(server)
    assert client.env("py").template_id == "py"
    listing(server)
    assert client.env("mine").template_id == "tpl-1"


def test_ones_own_template_is_declared_and_released_once(server: ScriptedServer, client: GatewayClient) -> None:
    listing(server, answer({"id": "tpl-1", "expected_width": 9}), answer({"id": "tpl-1", "released": True}))
    with client.env("mine", width=9) as env:
        pass
    env.release()
    assert sent(server) == [
        ("POST", "/v1/templates/tpl-1/expect", {"width": 9}),
        ("POST", "/v1/templates/tpl-1/release", {}),
    ]
    listing(server)
    client.env("mine").release()
    assert sent(server) == []


def test_a_release_that_is_refused_is_no_error(server: ScriptedServer, client: GatewayClient) -> None:
    listing(server, answer({"id": "tpl-1"}), answer({"code": "forbidden", "message": "no"}, 403))
    client.env("mine", width=2).release()


def test_overrides_are_baked_and_secrets_are_not(server: ScriptedServer, client: GatewayClient) -> None:
    made = {"id": "sbx-1", "template": "tpl-9"}
    listing(server, answer({"id": "tpl-9"}, 201), answer(made, 201), answer({"deleted": True}))
    env = client.env("py", env={"A": "1", "B": "2"}, ready={"env": {"B": "3"}, "cmd": "true"}, width=4, secrets=["s1"])
    with env.sandbox(label="x", secret_refs=["s2"]) as session:
        assert session.id == "sbx-1"
    assert [body for _, _, body in sent(server)] == [
        {
            "name": "py-env",
            "image": "local/py",
            "ready": {"env": {"A": "1", "B": "3"}, "cmd": "true"},
            "pool": {"width": 4},
            "expected_width": 4,
        },
        {"template": "tpl-9", "label": "x", "secret_refs": ["s1", "s2"]},
        None,
    ]


def test_an_image_that_nobody_knows_is_baked(server: ScriptedServer, client: GatewayClient) -> None:
    listing(server, answer({"id": "tpl-9"}, 201))
    assert client.env("registry.example/org/tool:2").template_id == "tpl-9"
    assert sent(server)[0][2] == {"name": "tool-2", "image": "registry.example/org/tool:2", "pool": {"width": 1}}
    listing(server)
    with pytest.raises(GatewayError, match="neither") as caught:
        client.env("tool")
    assert caught.value.code == "not_found"


def status(template_id: str, *nodes: tuple[str, int, int], state: str = "converged") -> dict[str, Any]:
    return {
        "id": template_id,
        "phase": "Live",
        "declared": 4,
        "warm": sum(warm for _, warm, _ in nodes),
        "frozen": sum(frozen for _, _, frozen in nodes),
        "per_node": [{"node": node, "warm": warm, "frozen": frozen} for node, warm, frozen in nodes],
        "converge_state": state,
    }


def test_the_fleet_is_added_up(server: ScriptedServer, client: GatewayClient) -> None:
    server.script = [
        answer({"templates": [OWN, TWIN]}),
        answer(status("tpl-1", ("n1", 3, 1), ("n2", 2, 0))),
        answer(status("tpl-2", ("n2", 1, 1), state="converging")),
    ]
    fleet = FleetView(client).status(samples=[0.4, 0.9, 1.1, 30.0])
    assert (fleet.declared, fleet.warm, fleet.frozen, fleet.total) == (8, 6, 2, 8)
    assert (fleet.converged, fleet.nodes_reporting, fleet.warm_hit) == (False, 2, 0.5)
    assert [(pool.node, pool.total, pool.templates) for pool in fleet.nodes] == [
        ("n1", 4, ("tpl-1",)),
        ("n2", 4, ("tpl-1", "tpl-2")),
    ]
    assert "8 of 8 forks" in fleet.summary()
    assert fleet.as_dict()["nodes"][1]["frozen"] == 1


def test_a_template_that_is_gone_is_missing_and_other_errors_are_loud(
    server: ScriptedServer, client: GatewayClient
) -> None:
    gone, broken = (
        answer({"code": "not_found", "message": "no"}, 404),
        answer({"code": "forbidden", "message": ""}, 403),
    )
    view = FleetView(client, template_ids=["a", "b"])
    server.script = [gone, answer(status("b", ("n1", 4, 0)))]
    fleet = view.status()
    assert (fleet.missing, fleet.converged, fleet.warm_hit) == (("a",), False, None)
    server.script = [gone, broken]
    with pytest.raises(GatewayError):
        view.status()
    with pytest.raises(ValueError, match="list of ids"):
        FleetView(client, template_ids="a")


def test_watching_ends_when_it_has_converged(server: ScriptedServer, client: GatewayClient) -> None:
    server.script = [answer(status("a", state="converging")), answer(status("a"))]
    slept: list[float] = []
    view = FleetView(client, template_ids=["a"])
    assert [one.converged for one in view.watch(7.0, until_converged=True, sleep=slept.append)] == [False, True]
    assert slept == [7.0]
