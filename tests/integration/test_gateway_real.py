"""The gateway's client against a gateway over real sandboxes: every feature once, as a user's code has it."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from collimate_rl import (
    CollimateError,
    DemoTierLimit,
    FleetView,
    GatewayClient,
    GatewayError,
    PropertyReward,
    Ready,
    Template,
    grade,
    grade_batch,
    open_session,
    rollout_once,
)
from tests.fixtures.local_gateways import PORT, RunningGateway

SPEC = PropertyReward(reference="    return x * 2", generator="random.randint(0, 99)", k=4)
RIGHT, WRONG = "def solve(x):\n    return x + x\n", "def solve(x):\n    return x\n"


@pytest.fixture
def pro(local_gateway: RunningGateway) -> Iterator[GatewayClient]:
    with GatewayClient(local_gateway.key("pro"), local_gateway.base_url) as client:
        yield client


@pytest.fixture
def demo(local_gateway: RunningGateway) -> Iterator[GatewayClient]:
    with GatewayClient(local_gateway.key("demo"), local_gateway.base_url, retry_budget=0.2) as client:
        yield client


def test_grading_runs_on_a_gateway_as_on_a_daemon(pro: GatewayClient) -> None:
    seed = "ab" * 32
    assert grade(pro, "py", RIGHT, SPEC, seed=seed).reward == 1.0
    assert [one.reward for one in grade_batch(pro, "py", [RIGHT, WRONG], SPEC, seeds=[seed, seed])] == [1.0, 0.0]
    assert rollout_once("py", "echo $((6 * 7))", client=pro).stdout == "42\n"
    assert pro.list_sandboxes() == []


def test_a_candidate_too_large_for_one_exec(pro: GatewayClient) -> None:
    large = RIGHT + "#" + "x" * 200_000 + "\n"
    assert grade(pro, "py", large, SPEC).reward == 1.0
    assert pro.list_sandboxes() == []


def test_the_catalog_health_and_usage(pro: GatewayClient) -> None:
    assert pro.health()["status"] == "ok"
    assert {"py", "python", "web"} <= {image["id"] for image in pro.images()}
    rollout_once("py", "true", client=pro)
    assert pro.usage()["totals"]["execs"] == 1
    with pytest.raises(GatewayError) as caught:
        GatewayClient("col_pro_nobody00_" + "x" * 32, pro.base_url).images()
    assert caught.value.code == "unauthorized"


def test_a_session_its_files_and_its_forks(pro: GatewayClient) -> None:
    with pro.session("py", label="parent") as parent:
        parent.upload_bytes("data.bin", bytes(range(256)))
        with parent.fork_group(3, labels=["a", "b", "c"]) as group:
            assert [child.fork_kind for child in group] == ["files"] * 3
            assert [child.download("data.bin") for child in group] == [bytes(range(256))] * 3
            assert [one.stdout for one in group.exec_each(["echo 0", "echo 1", "echo 2"])] == ["0\n", "1\n", "2\n"]
            assert group.map(lambda child: child.exec("wc -c < data.bin").stdout.strip()) == ["256"] * 3
            assert {info.get("label") for info in pro.list_sandboxes()} == {"parent", "a", "b", "c"}
        assert [info["id"] for info in pro.list_sandboxes()] == [parent.id]
        with parent.fork("only") as child:
            assert child.exec("cat data.bin | wc -c").stdout.strip() == "256"
        parent.suspend()
        with pytest.raises(GatewayError):
            parent.exec("true")
        parent.resume()
        assert parent.exec("true").ok
    assert pro.list_sandboxes() == []


def test_templates_of_ones_own(pro: GatewayClient) -> None:
    phases = []
    handle = Template.bake("py", name="mine", ready=Ready(cmd="true", env={"WHO": "me"}), width=2, client=pro)
    status = handle.wait(timeout=60, poll_interval=0.02, on_update=lambda seen: phases.append(seen.phase))
    assert status.is_live
    assert phases[-1] == "Live"
    assert Template.attach(handle.id, client=pro).status().name == "mine"
    with open_session(handle.id, client=pro) as session:
        assert session.exec("echo $WHO").stdout == "me\n"
        with pytest.raises(GatewayError) as caught:
            handle.delete()
        assert caught.value.code == "template_in_use"
    for _ in FleetView(pro).watch(0.05, until_converged=True, timeout=60):
        pass
    fleet = FleetView(pro, template_ids=[handle.id, "tpl-gone"]).status()
    assert (fleet.missing, fleet.declared, fleet.total) == (("tpl-gone",), 2, 2)
    assert handle.delete()["deleted"] is True
    with pytest.raises(GatewayError):
        handle.status()


def test_environments(pro: GatewayClient) -> None:
    with pro.env("py", env={"A": "1"}, ready=Ready(env={"B": "2"}), width=1, secrets=["token"]) as env:
        assert env.wait(timeout=60, poll_interval=0.02).is_live
        with env.sandbox(label="x") as session:
            assert session.exec("echo $A$B").stdout == "12\n"
            told = pro.get_sandbox(str(session.id))
            assert (told["label"], told["secret_refs"]) == ("x", ["token"])
    assert env.status().declared == 0
    with pro.env("py", width=100) as plain, plain.sandbox() as session:
        assert session.exec("true").ok


def test_egress_is_refused_as_the_contract_says(pro: GatewayClient, demo: GatewayClient) -> None:
    with pytest.raises(GatewayError, match="vsock-only"):
        rollout_once("py", "true", egress={"mode": "none"}, client=pro)
    with pytest.raises(GatewayError) as caught:
        rollout_once("py", "true", egress={"preset": "rl-leakage"}, client=demo)
    assert (caught.value.code, caught.value.is_misconfigured) == ("network_requires_pro", True)


def test_the_demo_tiers_limits(demo: GatewayClient) -> None:
    with demo.session("py") as parent, parent.fork_group(7) as group:
        assert len(group) == 7
        with pytest.raises(DemoTierLimit, match=r"^Demo keys run 8 sandboxes at once: delete some, or ask"):
            demo.create_sandbox("py")
        with pytest.raises(DemoTierLimit):
            parent.fork_group(2)
        assert len(demo.list_sandboxes()) == 8
        with pytest.raises(GatewayError, match="Pro feature"):
            parent.connect_url(80)
    assert demo.list_sandboxes() == []


def fetch(host: str, port: int, path: str) -> bytes:
    with closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


def test_a_port_inside_is_reached_here(pro: GatewayClient) -> None:
    pytest.importorskip("websockets", reason="the extra [tunnel] is not installed")
    with pro.session("web") as session:
        data = bytes(range(256)) * 8192
        session.upload_bytes("/box/data.bin", data)
        with session.port_forward(PORT) as forward:
            assert forward.url == f"http://{forward.host}:{forward.port}"
            for _ in range(3):
                assert fetch(*forward.address, "/data.bin") == data
            # A client that has said all it has to say still gets its answer.
            with socket.create_connection(forward.address, timeout=60) as peer:
                peer.sendall(b"GET /data.bin HTTP/1.0\r\n\r\n")
                peer.shutdown(socket.SHUT_WR)
                got = b""
                while piece := peer.recv(65536):
                    got += piece
            assert got.endswith(data)
        with pytest.raises(OSError):
            socket.create_connection(forward.address, timeout=1)
        with pytest.raises(GatewayError, match=r"ports=\[81\]"):
            session.connect_url(81)


def test_a_tunnel_that_cannot_be_opened_ends_its_connection(pro: GatewayClient) -> None:
    pytest.importorskip("websockets", reason="the extra [tunnel] is not installed")
    with pro.session("py") as session, session.port_forward(81) as forward:
        for _ in range(2):
            with socket.create_connection(forward.address, timeout=60) as peer:
                assert peer.recv(1) == b""


def test_closing_a_forward_ends_its_connections(pro: GatewayClient) -> None:
    pytest.importorskip("websockets", reason="the extra [tunnel] is not installed")
    with pro.session("web") as session:
        forward = session.port_forward(PORT)
        with socket.create_connection(forward.address, timeout=60) as peer:
            until = time.monotonic() + 30
            while not forward._peers and time.monotonic() < until:
                time.sleep(0.01)
            forward.close()
            forward.close()
            assert peer.recv(1) == b""
        assert not forward._thread.is_alive()


def test_a_browser_needs_its_extra(pro: GatewayClient) -> None:
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        from collimate_rl import connect_browser

        with pytest.raises(CollimateError, match=r"\[browser\]"), connect_browser("ws://127.0.0.1:1"):
            pass
