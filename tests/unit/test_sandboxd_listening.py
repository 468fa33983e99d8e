"""Who may connect to the daemon's unix socket, and see into its folder: what its modes say, whatever the mask."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.sandboxd.config import SOCKET_MODES, DaemonConfig
from collimate_rl.sandboxd.listening import listen
from collimate_rl.sandboxd.rundir import RunFolder

CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@pytest.fixture(params=[0o000, 0o077])
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def place() -> Iterator[str]:
    """A path for a socket, in a folder that anybody may enter."""
    folder = Path("/tmp", f"col-l-{os.getpid()}")
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    yield str(folder / "s.sock")
    folder.rmdir()


def listening(path: str, **how: Any) -> list[Callable[[], Any]]:
    undo: list[Callable[[], Any]] = []
    listen(path, None, 0, undo, **how)
    return undo


@pytest.mark.parametrize(("how", "mode"), [({}, 0o600), ({"mode": 0o660}, 0o660)])
def test_a_socket_has_the_mode_that_was_asked_for(place: str, mask: int, how: dict[str, int], mode: int) -> None:
    undo = listening(place, **how)
    try:
        assert stat.S_IMODE(os.stat(place).st_mode) == mode
    finally:
        for step in undo:
            step()
    assert not os.path.lexists(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be others")
@pytest.mark.parametrize(
    ("mode", "user", "group", "comes_in"),
    [
        (0o600, 65534, 65534, False),
        (0o600, 65534, 0, False),
        (0o660, 65534, 65534, False),
        (0o660, 65534, 0, True),
        (0o666, 65534, 65534, True),
    ],
)
def test_who_comes_in(place: str, mode: int, user: int, group: int, comes_in: bool) -> None:
    undo = listening(place, mode=mode)
    try:
        done = subprocess.run(
            ["/usr/bin/python3", "-c", CONNECT, place],
            user=user,
            group=group,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
            check=False,
        )
    finally:
        for step in undo:
            step()
    assert (done.returncode == 0) is comes_in, done.stderr
    assert comes_in or "PermissionError" in done.stderr


def test_modes_that_are_none_are_refused() -> None:
    assert DaemonConfig(unix_socket="/s").socket_mode == SOCKET_MODES["600"]
    with pytest.raises(ValueError, match="must be one of 600, 660, 666, not 777"):
        DaemonConfig(unix_socket="/s", socket_mode=0o777)


def test_the_daemons_folder_can_be_passed_and_not_listed(mask: int) -> None:
    folder = RunFolder.create()
    try:
        made = os.stat(folder.folder)
        assert stat.S_IMODE(made.st_mode) == 0o711
        assert made.st_uid == os.geteuid()
    finally:
        folder.remove()
    assert not os.path.exists(folder.folder)
