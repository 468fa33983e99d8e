"""WebSocket tunnels of the local gateway to a real server in a sandbox."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any, cast

import pytest

from collimate_rl.localgateway.keys import parse_key
from collimate_rl.localgateway.sandboxes import GatewaySandbox
from collimate_rl.localgateway.tunnels import MAX_TTL_S, Tunnels
from tests.fixtures.local_gateways import PORT, RunningGateway

connect = pytest.importorskip("websockets.sync.client").connect
ConnectionClosedError = pytest.importorskip("websockets.exceptions").ConnectionClosedError
InvalidStatus = pytest.importorskip("websockets.exceptions").InvalidStatus


@pytest.fixture
def served(local_gateway: RunningGateway) -> Iterator[tuple[RunningGateway, str, str]]:
    """(gateway, key, sandbox) of a sandbox that serves the files of /box."""
    key = local_gateway.key()
    status, made = local_gateway.call(key, "POST", "/v1/sandboxes", {"template": "web"})
    assert status == 201, made
    write = {"code": "open('blob', 'wb').write(bytes(range(256)) * 4096)"}
    assert local_gateway.call(key, "POST", f"/v1/sandboxes/{made['id']}/exec", write)[1]["exit_code"] == 0
    yield local_gateway, key, made["id"]
    local_gateway.call(key, "DELETE", f"/v1/sandboxes/{made['id']}")


def mint(served: tuple[RunningGateway, str, str], **body: Any) -> tuple[int, Any]:
    gateway, key, sandbox = served
    return gateway.call(key, "POST", f"/v1/sandboxes/{sandbox}/connect-url", {"port": PORT, **body})


def test_bytes_go_both_ways_whole(served: tuple[RunningGateway, str, str]) -> None:
    status, minted = mint(served)
    assert status == 200
    assert f"/connect?port={PORT}&t=" in minted["url"]
    for _ in range(2):
        with connect(minted["url"], max_size=None) as tunnel:
            tunnel.send(b"GET /blob HTTP/1.0\r\n")
            tunnel.send(b"\r\n")
            answer = b"".join(tunnel)
        assert answer.partition(b"\r\n\r\n")[2] == bytes(range(256)) * 4096


def test_the_clients_port_forward_runs_through_it(served: tuple[RunningGateway, str, str]) -> None:
    from collimate_rl.gateway import GatewayClient
    from collimate_rl.sandbox import Sandbox

    gateway, key, sandbox = served
    with GatewayClient(key, gateway.base_url) as client:
        attached = Sandbox.attach(client, sandbox)
        with (
            attached.port_forward(PORT) as forward,
            urllib.request.urlopen(f"{forward.url}/blob", timeout=60) as response,
        ):
            assert response.read() == bytes(range(256)) * 4096


def test_what_is_no_ticket_opens_nothing(served: tuple[RunningGateway, str, str]) -> None:
    url = mint(served)[1]["url"]
    wrong = [url[:-1], url.replace(f"port={PORT}", "port=1"), url.replace("/connect", "/other"), url.partition("?")[0]]
    gateway, key, sandbox = served
    for one in wrong:
        with pytest.raises(InvalidStatus, match="403"):
            connect(one)
    gateway.call(key, "DELETE", f"/v1/sandboxes/{sandbox}")
    with pytest.raises(InvalidStatus, match="403"):
        connect(url)


def test_who_gets_a_ticket(served: tuple[RunningGateway, str, str]) -> None:
    gateway = served[0]
    status, answer = mint(served, port=PORT + 1)
    assert (status, answer["code"]) == (409, "port_not_exposed")
    for body in ({"port": 0}, {"ttl_seconds": 0}, {"protocol": "udp"}):
        assert mint(served, **body)[1]["code"] == "bad_request"
    demo = gateway.key("demo")
    sandbox = gateway.call(demo, "POST", "/v1/sandboxes", {"template": "web"})[1]["id"]
    status, answer = gateway.call(demo, "POST", f"/v1/sandboxes/{sandbox}/connect-url", {"port": PORT})
    assert (status, answer["code"]) == (403, "forbidden")
    gateway.call(demo, "DELETE", f"/v1/sandboxes/{sandbox}")


def test_a_tickets_time_is_clamped_and_ends(served: tuple[RunningGateway, str, str]) -> None:
    class Somewhere:
        id = "sbx-1"
        endpoints = {str(PORT): "127.0.0.1:1"}

    now = [1_000_000.0]
    tunnels = Tunnels(lambda _: True, clock=lambda: now[0])
    tunnels.start("127.0.0.1")
    try:
        minted = tunnels.mint(
            parse_key("pro"), cast(GatewaySandbox, Somewhere()), {"port": PORT, "ttl_seconds": 1 << 30}
        )
        assert minted["expires_at"] == "1970-01-12T14:46:40Z"
        now[0] += MAX_TTL_S + 1
        with pytest.raises(InvalidStatus, match="403"):
            connect(minted["url"])
    finally:
        tunnels.close()
    assert mint(served, ttl_seconds=99999)[0] == 200


class DevTools:
    """A browser as far as a tunnel sees it: tells its socket at /json/version, and answers messages there."""

    def __init__(self) -> None:
        from websockets.sync.server import serve

        self.server = serve(self.answer, "127.0.0.1", 0, process_request=self.tell)
        self.place = f"127.0.0.1:{self.server.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def tell(self, connection: Any, request: Any) -> Any:
        if request.path != "/json/version":
            return None
        return connection.respond(200, json.dumps({"webSocketDebuggerUrl": "ws://localhost:9222/devtools/browser/1"}))

    def answer(self, connection: Any) -> None:
        assert connection.request.path == "/devtools/browser/1"
        for message in connection:
            connection.send(message.upper())

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()


def test_a_cdp_tunnel_carries_the_browsers_messages() -> None:
    browser = DevTools()

    class Somewhere:
        id = "sbx-1"
        endpoints = {"9222": browser.place, "9223": "127.0.0.1:1"}

    tunnels = Tunnels(lambda _: True)
    tunnels.start("127.0.0.1")
    try:
        key, somewhere = parse_key("pro"), cast(GatewaySandbox, Somewhere())
        minted = tunnels.mint(key, somewhere, {"port": 9222, "protocol": "cdp"})
        with connect(minted["url"]) as tunnel:
            for text in ("one", "two" * 100_000):
                tunnel.send(text)
                assert tunnel.recv(timeout=60) == text.upper()
        nobody = tunnels.mint(key, somewhere, {"port": 9223, "protocol": "cdp"})
        with connect(nobody["url"]) as tunnel, pytest.raises(ConnectionClosedError, match="no DevTools"):
            tunnel.recv(timeout=60)
    finally:
        tunnels.close()
        browser.close()
