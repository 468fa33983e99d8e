"""The real daemon over each kind of connection: its socket, TCP, and TLS that ends in front of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.sandbox import Sandbox
from tests.fixtures.authority import Authority
from tests.fixtures.fronts import Front
from tests.fixtures.transports import build


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
