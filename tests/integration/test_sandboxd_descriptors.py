"""A daemon that runs out of descriptors, at every single step that needs one: it says so, and loses nothing."""

from __future__ import annotations

import http.client
import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import port_server
from tests.fixtures.resources import at_rest, first_rest
from tests.fixtures.sandbox_daemon import NoIsolation, RunningDaemon, start_daemon
from tests.fixtures.sandboxd_wire import UnixConnection, call, eventually

LIMIT = 64
ROOM = 20
"""More descriptors than the dearest request needs."""
CONFIG = """
[templates.web]
entry = "port_server:main"
expose_ports = [8000, 9000]
data = {{ "/srv/env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/env" }}
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """It may have LIMIT descriptors; its warm interpreters, which are up before, as many as ever."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    shutil.copy(port_server.__file__, data)
    config = tmp_path / "collimate.toml"
    config.write_text(CONFIG.format(data=data))
    try:
        own = start_daemon("--config", str(config))
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")
    resource.prlimit(own.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    yield own
    status = own.stop()
    words = own.log.read_text(errors="replace")
    shutil.rmtree(own.folder, ignore_errors=True)
    assert (status, "Traceback" in words) == (0, False), words


class Caller:
    """One connection, kept alive: no descriptor is needed for it any more."""

    def __init__(self, path: str) -> None:
        self._connection = UnixConnection(path)

    def __call__(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        self._connection.request(method, target, body=json.dumps(body).encode() if body is not None else None)
        response: http.client.HTTPResponse = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def close(self) -> None:
        self._connection.close()


def free(daemon: RunningDaemon) -> int:
    return LIMIT - len(os.listdir(f"/proc/{daemon.pid}/fd"))


def test_out_of_descriptors_at_every_step(daemon: RunningDaemon) -> None:
    """Idle connections take one descriptor after the other away."""
    path = daemon.socket_path
    for template in ("py", "web"):
        _, created = call(path, "POST", "/v1/sessions", {"template_id": template})
        call(path, "DELETE", f"/v1/sessions/{created['session_id']}")
    call(path, "GET", "/v1/health")
    base = first_rest(daemon.pid)
    caller = Caller(path)
    _, held = caller("POST", "/v1/sessions", {"template_id": "py"})
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "exec": ("/v1/exec", {"template_id": "py", "command": "echo 1"}),
        "create": ("/v1/sessions", {"template_id": "py"}),
        "create serving": ("/v1/sessions", {"template_id": "web"}),
        "exec beside a server": ("/v1/exec", {"template_id": "web", "command": "echo 1"}),
        "exec in a session": (f"/v1/sessions/{held['session_id']}/exec", {"command": "echo 1"}),
    }
    seen: dict[str, set[tuple[int, str | None]]] = {name: set() for name in requests}
    idle: list[UnixConnection] = []
    while free(daemon) > 0:
        if free(daemon) <= ROOM:
            for name, (target, body) in requests.items():
                status, answer = caller("POST", target, body)
                seen[name].add((status, answer.get("error_code")))
                if status == 201:
                    assert caller("DELETE", f"/v1/sessions/{answer['session_id']}")[0] == 200
        idle.append(UnixConnection(path))
        idle[-1].request("GET", "/v1/sessions")
        idle[-1].getresponse().read()
    for name, answers in seen.items():
        fine = (201 if name.startswith("create") else 200, None)
        assert answers > {fine}, f"{name} was never refused, or always"
        assert answers <= {fine, (503, "session_bringup_failed"), (503, "at_capacity")}, name
    assert caller("GET", f"/v1/sessions/{held['session_id']}")[0] == 200, (
        "a session outlives an exec that was not begun"
    )
    for connection in idle:
        connection.close()
    eventually(lambda: free(daemon) > ROOM, "the daemon closed what its callers had closed")
    assert caller("POST", requests["exec in a session"][0], {"command": "echo served"})[1]["stdout"] == "served\n"
    assert caller("DELETE", f"/v1/sessions/{held['session_id']}")[0] == 200
    caller.close()
    at_rest(daemon.pid, base)
    assert call(path, "GET", "/v1/health")[1]["unclean_forks"] == 0
