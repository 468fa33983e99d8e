"""`CollimateProvider` on daemons that are full, going away, or gone."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateDrainingError, CollimateError, UnreachableError
from collimate_rl.local_backend import Limits, LocalCollimateBackend
from collimate_rl.openenv import CollimateProvider
from tests.fixtures.own_daemon import OwnDaemon
from tests.fixtures.worker_nodes import until

PLACE = "127.0.0.1:4000"


def test_a_full_daemon_is_raised_until_there_is_room() -> None:
    with LocalCollimateBackend(
        ["coding-env"], isolation="none", endpoints_fn=lambda *_: {"8000": PLACE}, limits=Limits(max_sessions=1)
    ) as backend:
        client = CollimateClient(backend.base_url, sleep=lambda _: None)
        with CollimateProvider(client=client) as first, CollimateProvider(client=client) as second:
            assert first.start_container("coding-env:v1") == f"http://{PLACE}"
            with pytest.raises(CollimateError) as caught:
                second.start_container("coding-env:v1")
            assert caught.value.error_code == "at_capacity"
            assert [session["session_id"] for session in client.list_sessions()] == [first.session_id]
            first.stop_container()
            second.start_container("coding-env:v1")
            assert [session["session_id"] for session in client.list_sessions()] == [second.session_id]
        assert client.list_sessions() == []


def test_a_daemon_that_drains_and_one_that_is_gone_are_raised(own_daemon: OwnDaemon) -> None:
    client = own_daemon.serve()
    provider = CollimateProvider(client=client)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.exec_once, "py", code="import time; time.sleep(5); print('done')")
        until(lambda: client.health()["running"] == 1, "the exec never ran")
        own_daemon.drain()
        until(lambda: client.health()["status"] == "draining", "it never drained")
        with pytest.raises(CollimateDrainingError):
            provider.start_container("py")
        assert running.result(60)["stdout"] == "done\n"
    assert own_daemon.process is not None
    own_daemon.process.wait(60)
    with pytest.raises(UnreachableError):
        provider.start_container("py")


def test_an_environment_whose_daemon_was_killed_is_stopped_once_there_is_one_again(own_daemon: OwnDaemon) -> None:
    class Placed(CollimateClient):
        """The daemon's `py` exposes nothing; where its server would be is not looked at here."""

        def create_session(self, *args: object, **options: object) -> dict[str, object]:  # type: ignore[override]
            return {**super().create_session(*args, **options), "endpoints": {"8000": PLACE}}  # type: ignore[arg-type]

    own_daemon.serve()
    provider = CollimateProvider(client=Placed(unix_socket=str(own_daemon.socket), retries=0))
    provider.start_container("py")
    session = provider.session_id
    own_daemon.end(signal.SIGKILL)
    with pytest.raises(CollimateError):
        provider.stop_container()
    assert provider.session_id == session
    own_daemon.serve()
    provider.stop_container()
    assert provider.session_id is None
