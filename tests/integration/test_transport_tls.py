"""TLS with an authority of our own, client certificates, and a real proxy that tunnels."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator

import pytest

from collimate_rl._connection import Endpoint
from collimate_rl._gateway_transport import transport_for
from collimate_rl._http import HttpPool
from collimate_rl._requests_transport import RequestsTransport
from collimate_rl._transport import Transport
from collimate_rl.client import CollimateClient
from collimate_rl.errors import AmbiguousError, CollimateError, UnreachableError
from tests.fixtures.authority import Authority
from tests.fixtures.connect_proxy import ConnectProxy
from tests.fixtures.scripted_server import ScriptedServer
from tests.fixtures.transports import build

BOTH = pytest.mark.parametrize("kind", ["std-tls", "requests-tls"])
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


@pytest.fixture
def server(authority: Authority) -> Iterator[ScriptedServer]:
    with ScriptedServer(tls=authority.server_context()) as started:
        yield started


def ask(transport: Transport, timeout_s: float = 20.0) -> bytes:
    try:
        headers = {"Authorization": "Bearer col_pro_secret"}
        return transport.request("POST", "/v1/exec", b"{}", headers=headers, timeout_s=timeout_s).body
    finally:
        transport.close()


# Whom we trust


@BOTH
def test_an_authority_that_nobody_named_is_not_trusted(server: ScriptedServer, kind: str) -> None:
    with pytest.raises(UnreachableError, match="ca_file"):
        ask(build(kind, server.base_url))
    assert server.requests == []


@BOTH
def test_a_named_authority_is_trusted(server: ScriptedServer, authority: Authority, kind: str) -> None:
    assert b"hello" in ask(build(kind, server.base_url, ca_file=authority.ca_file))
    assert b"hello" in ask(build(kind, server.base_url.replace("localhost", "127.0.0.1"), ca_file=authority.ca_file))


@pytest.mark.parametrize(
    ("kind", "variable"),
    [("std-tls", "SSL_CERT_FILE"), ("requests-tls", "SSL_CERT_FILE"), ("requests-tls", "REQUESTS_CA_BUNDLE")],
)
def test_the_environment_names_an_authority(
    server: ScriptedServer, authority: Authority, environment: pytest.MonkeyPatch, kind: str, variable: str
) -> None:
    environment.setenv(variable, authority.ca_file)
    assert b"hello" in ask(build(kind, server.base_url))


def test_what_the_code_names_wins_over_the_environment(
    server: ScriptedServer, authority: Authority, environment: pytest.MonkeyPatch
) -> None:
    import certifi

    environment.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    assert b"hello" in ask(build("requests-tls", server.base_url, ca_file=authority.ca_file))
    with pytest.raises(UnreachableError):
        ask(build("requests-tls", server.base_url))


def test_a_context_of_the_callers_own(server: ScriptedServer, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.ca_file)
    assert b"hello" in ask(HttpPool(Endpoint.parse(server.base_url), ssl_context=context))
    assert context.check_hostname


@BOTH
def test_a_certificate_for_another_host_is_not_taken(authority: Authority, kind: str) -> None:
    with ScriptedServer(tls=authority.server_context(host="elsewhere.test")) as server:
        with pytest.raises(UnreachableError):
            ask(build(kind, server.base_url, ca_file=authority.ca_file))
        assert server.requests == []


@BOTH
def test_a_client_certificate_is_shown_to_who_asks(authority: Authority, kind: str) -> None:
    with ScriptedServer(tls=authority.server_context(wants_client_cert=True)) as server:
        shown = build(kind, server.base_url, ca_file=authority.ca_file, client_cert=authority.client_cert)
        assert b"hello" in ask(shown)
        # Since TLS 1.3 a client that was refused hears of it only when it reads: ambiguous, though nothing was taken.
        with pytest.raises(CollimateError):
            ask(build(kind, server.base_url, ca_file=authority.ca_file))
        assert len(server.requests) == 1


@BOTH
@pytest.mark.parametrize("option", ["ca_file", "client_cert"])
def test_a_file_that_is_not_there(kind: str, option: str) -> None:
    with pytest.raises(ValueError, match=r"none\.pem"):
        build(kind, "https://localhost", **{option: "/tmp/none.pem"})


def test_files_for_what_is_not_https(authority: Authority) -> None:
    with pytest.raises(ValueError, match="https"):
        HttpPool(Endpoint.parse("http://localhost"), ca_file=authority.ca_file)


def test_a_daemon_behind_tls(server: ScriptedServer, authority: Authority) -> None:
    with CollimateClient(server.base_url, ca_file=authority.ca_file) as client:
        assert client.exec_once("py", code="1")["stdout"] == "hello\n"


# What is not TLS


@BOTH
def test_tls_to_a_plain_server(authority: Authority, kind: str) -> None:
    with ScriptedServer() as server:
        url = server.base_url.replace("http:", "https:")
        with pytest.raises(UnreachableError):
            ask(build(kind, url, ca_file=authority.ca_file))


@pytest.mark.parametrize("kind", ["std-tcp", "requests-tcp"])
def test_plain_http_to_a_tls_server(server: ScriptedServer, kind: str) -> None:
    with pytest.raises(AmbiguousError):
        ask(build(kind, server.base_url.replace("https:", "http:")))
    assert server.requests == []


@BOTH
def test_a_handshake_that_never_ends(authority: Authority, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://localhost:{silent.getsockname()[1]}"
        with pytest.raises(UnreachableError):
            ask(build(kind, url, ca_file=authority.ca_file), timeout_s=0.5)


# Proxies


@pytest.fixture
def gateway(authority: Authority) -> Iterator[ScriptedServer]:
    """Is found by the proxy alone, as gateway.test."""
    with ScriptedServer(tls=authority.server_context(host="gateway.test")) as started:
        yield started


@pytest.fixture
def proxy(gateway: ScriptedServer, environment: pytest.MonkeyPatch) -> Iterator[ConnectProxy]:
    with ConnectProxy(("127.0.0.1", gateway.port)) as started:
        environment.setenv("HTTPS_PROXY", started.url)
        yield started


def test_requests_go_through_the_proxy(gateway: ScriptedServer, proxy: ConnectProxy, authority: Authority) -> None:
    transport = transport_for("https://gateway.test", ca_file=authority.ca_file)
    for _ in range(3):
        assert b"hello" in transport.request("GET", "/v1/images", timeout_s=20).body
    assert b"hello" in ask(transport)
    # One tunnel for all of them, and what the proxy is shown names its user and not ours.
    assert proxy.asked == [("gateway.test:443", "Basic dXNlcjp3b3Jk")]
    assert [request.headers["host"] for request in gateway.requests] == ["gateway.test"] * 4


def test_no_proxy_goes_around_it(
    server: ScriptedServer, proxy: ConnectProxy, authority: Authority, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("NO_PROXY", "localhost")
    assert b"hello" in ask(transport_for(server.base_url, ca_file=authority.ca_file))
    assert proxy.asked == []


@pytest.mark.parametrize(
    "refusal",
    [
        b"HTTP/1.1 403 Forbidden\r\n\r\n",
        b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
    ],
)
def test_a_proxy_that_refuses_has_sent_nothing_on(
    gateway: ScriptedServer, proxy: ConnectProxy, authority: Authority, refusal: bytes
) -> None:
    proxy.refusal = refusal
    with pytest.raises(UnreachableError, match="HTTPS_PROXY"):
        ask(transport_for("https://gateway.test", ca_file=authority.ca_file))
    assert gateway.requests == []


def test_a_proxy_that_is_down(authority: Authority, environment: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    with pytest.raises(UnreachableError):
        ask(transport_for("https://gateway.test", ca_file=authority.ca_file))


def test_a_proxy_that_does_not_answer(authority: Authority, environment: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UnreachableError):
            ask(transport_for("https://gateway.test", ca_file=authority.ca_file), timeout_s=0.5)


# Which one is taken


def test_requests_is_taken_where_it_is_installed(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(transport_for("https://gateway.test"), RequestsTransport)
    assert isinstance(transport_for("unix:/run/s"), HttpPool)
    environment.setitem(sys.modules, "requests", None)
    environment.delitem(sys.modules, "collimate_rl._requests_transport")
    assert isinstance(transport_for("https://gateway.test"), HttpPool)
    assert caplog.text == ""
    environment.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    assert isinstance(transport_for("https://gateway.test"), HttpPool)
    assert "collimate-rl[gateway]" in caplog.text
    caplog.clear()
    environment.setenv("NO_PROXY", "gateway.test")
    transport_for("https://gateway.test")
    assert caplog.text == ""


def test_the_core_does_not_import_requests() -> None:
    program = (
        "import sys, collimate_rl\n"
        "for name in collimate_rl.__all__: getattr(collimate_rl, name)\n"
        "import collimate_rl._gateway_transport\n"
        "collimate_rl.CollimateClient('https://localhost')\n"
        "assert not {'requests', 'urllib3'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
