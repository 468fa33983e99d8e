"""The real daemon over each kind of connection: its socket, TCP, and TLS that ends in front of it."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.sandbox import Sandbox
from tests.fixtures.authority import Authority
from tests.fixtures.transports import build


class Front:
    """Accepts on TCP, with TLS where it has a context, and passes everything on to a unix socket."""

    def __init__(self, target: str, tls: ssl.SSLContext | None) -> None:
        self._target = target
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'http' if tls is None else 'https'}://localhost:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """After the clients have gone."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        # One direction at a time, as HTTP/1.1 goes: a TLS socket is not for two threads at once.
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.connect(self._target)
            with peer if self._tls is None else self._tls.wrap_socket(peer, server_side=True) as client:
                client.settimeout(0.02)
                daemon.settimeout(0.02)
                while _moved(client, daemon) and _moved(daemon, client):
                    pass


def _moved(source: socket.socket, sink: socket.socket) -> bool:
    """Pass on what is there; False once the source has ended."""
    while True:
        try:
            piece = source.recv(1 << 16)
        except TimeoutError:
            return True
        except OSError:
            return False
        if not piece:
            return False
        sink.settimeout(60)
        sink.sendall(piece)
        sink.settimeout(0.02)


@pytest.fixture(params=["std-unix", "std-tcp", "std-tls", "requests-tcp", "requests-tls"])
def client(request: pytest.FixtureRequest, daemon_socket: str, authority: Authority) -> Iterator[CollimateClient]:
    kind: str = request.param
    with ExitStack() as stack:
        url, options = f"unix:{daemon_socket}", {}
        if kind != "std-unix":
            is_tls = kind.endswith("tls")
            url = stack.enter_context(closing(Front(daemon_socket, authority.server_context() if is_tls else None))).url
            options = {"ca_file": authority.ca_file} if is_tls else {}
        transport = stack.enter_context(closing(build(kind, url, **options)))
        yield CollimateClient(transport=transport)


def test_the_daemon_api(client: CollimateClient) -> None:
    assert client.health()["status"] == "ok"
    assert client.exec_once("py", code="print(6 * 7)")["stdout"] == "42\n"
    with Sandbox("py", client=client) as sandbox:
        data = os.urandom(300_000)
        sandbox.upload_bytes("/tmp/a b", data)
        assert sandbox.download("/tmp/a b") == data
        session_id = sandbox.session_id
        assert session_id in {session["session_id"] for session in client.list_sessions()}
    assert client.delete_session(session_id)["deleted"] is False
    for call, code in (
        (lambda: client.get_session(".."), "no_such_session"),
        (lambda: client.get_session("a/b?c"), "no_such_session"),
        (lambda: client.exec_once("none", code="1"), "no_template"),
        (lambda: client.exec_once("py", code="#" * 200_000), "command_too_large"),
    ):
        with pytest.raises(CollimateError) as refused:
            call()
        assert refused.value.error_code == code
