"""Starting warm interpreters, and asking them for forks."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd import launch
from collimate_rl.sandboxd.admission import no_descriptors
from collimate_rl.sandboxd.backend import IsolationUnavailable
from collimate_rl.sandboxd.findings import remedies
from collimate_rl.sandboxd.inside.channel import (
    ChannelClosed,
    bound_sends,
    pass_descriptor,
    receive_report,
    wait_readable,
)
from collimate_rl.sandboxd.jail import JailPlan, binds, jail_command
from collimate_rl.sandboxd.pairs import stream_pair
from collimate_rl.sandboxd.privileges import NobodyToBe, jail_user, read_privileges

START_TIMEOUT_S = 120.0
_FORK_FDS = 2
_HOLDER_WAIT_S = 10


@dataclass(frozen=True, kw_only=True)
class ZygotePlan:
    """What a zygote is made from: its jail, the settings it reads, and the folder for staged binds."""

    jail: JailPlan
    settings: dict[str, Any]
    stage: str


def bringup_failed(message: str) -> CollimateError:
    """503: the fork failed and left nothing live."""
    return CollimateError(message, 503, "session_bringup_failed")


@dataclass(frozen=True, kw_only=True)
class Forked:
    """What a zygote gives for a fork: a channel to it, and whom to signal and whom to put under limits.

    `first` is the pidfd of its process 1, `main` that of the process that the zygote forked, whose pid in the jail is
    `pid`.
    """

    channel: socket.socket
    first: int
    main: int
    pid: int


class Zygote:
    """One warm interpreter in its jail. It is started, and must be, by a thread that outlives it."""

    def __init__(self, plan: ZygotePlan) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        self._holders, holders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bound_sends(self._holders, _HOLDER_WAIT_S)
        self._ready_at = 0.0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        try:
            with theirs, holders, tempfile.TemporaryFile() as settings:
                settings.write(json.dumps({**plan.settings, "holders_fd": holders.fileno()}).encode())
                settings.seek(0)
                self._process = subprocess.Popen(
                    _launch_command(plan, control_fd=theirs.fileno(), settings_fd=settings.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    pass_fds=(theirs.fileno(), holders.fileno(), settings.fileno()),
                    env={"PATH": os.defpath},
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            self._holders.close()
            self._errors.close()
            raise

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S, *, stop: int) -> None:
        """Until it has imported everything; IsolationUnavailable with its own words when it can't.

        `stop` becomes readable when the daemon goes away, and ends the wait.
        """
        answer = b""
        poll = select.poll()
        poll.register(self.control.fileno(), select.POLLIN)
        poll.register(stop, select.POLLIN)
        woken = [fd for fd, _ in poll.poll(timeout_s * 1000)]
        if woken == [stop]:
            self._process.kill()
            raise IsolationUnavailable("the daemon is going away")
        if woken:
            try:
                answer = self.control.recv(65536)
            except ConnectionError:
                # It died before it read anything; its words are in the error file.
                pass
        said = json.loads(answer) if answer else {}
        self._ready_at = time.monotonic()
        if not said.get("ready"):
            self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            words = self._errors.read(4096).decode(errors="replace").strip()
            if "error" in said:
                raise IsolationUnavailable(f"the warm interpreter could not be set up: {said['error']}")
            raise IsolationUnavailable(
                f"bubblewrap could not build the jail: {words or f'no answer within {timeout_s:.0f} s'}. It needs user "
                f"namespaces, and a /proc of its own. {remedies() or 'Nothing in the way is to be seen from here'}. "
                "--check tells more; for tests without isolation: --isolation none"
            )

    def fork(self, kind: bytes, timeout_s: float) -> Forked:
        """A fork.

        CollimateError when there is none: session_bringup_failed, or at_capacity for want of descriptors.
        """
        try:
            ours, theirs = stream_pair()
        except OSError as exc:
            raise no_descriptors(exc) from exc
        try:
            try:
                pass_descriptor(self.control, kind, theirs.fileno())
            finally:
                theirs.close()
            if not wait_readable(ours, timeout_s=timeout_s):
                raise bringup_failed(f"the warm interpreter gave no fork within {timeout_s:.0f} s")
            answer, fds = receive_report(ours)
            if "error" in answer:
                raise bringup_failed(f"the fork failed: {answer['error']}")
            if len(fds) < _FORK_FDS:
                # The kernel drops what this process has no room for. The fork ends with its channel.
                for fd in fds:
                    os.close(fd)
                raise bringup_failed("the daemon has no descriptors left for the fork: raise its limit (ulimit -n)")
        except (OSError, ChannelClosed) as exc:
            ours.close()
            raise bringup_failed(f"the warm interpreter is gone: {exc}") from exc
        except CollimateError:
            ours.close()
            raise
        return Forked(channel=ours, first=fds[0], main=fds[1], pid=answer["forked"])

    def hold(self, request: int) -> None:
        """Give its holders the other end of a socket on which one of them is asked. OSError when they don't take it."""
        pass_descriptor(self._holders, b"h", request)

    def age_s(self) -> float:
        """Since it was ready."""
        return time.monotonic() - self._ready_at

    def is_dead(self, within_s: float = 0.0) -> bool:
        """Whether it is gone (its end of the control socket is closed)."""
        fd = self.control.fileno()
        if fd < 0:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLHUP)
        return bool(poll.poll(within_s * 1000))

    def close(self) -> None:
        """End it and everything that was forked from it, and wait for that."""
        self.control.close()
        self._holders.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def _launch_command(plan: ZygotePlan, *, control_fd: int, settings_fd: int) -> list[str]:
    try:
        user = jail_user(read_privileges())
    except NobodyToBe as exc:
        raise IsolationUnavailable(str(exc)) from exc
    moved: dict[str, str] = {}
    if user.staged:
        sources = [*plan.jail.bwrap.bundle, *(bind.source for bind in binds(plan.jail))]
        for number, source in enumerate(dict.fromkeys(sources)):
            # The wheel's folders find each other by their names.
            moved[source] = (
                f"{plan.stage}/{'bwrap' if source in plan.jail.bwrap.bundle else number}/{os.path.basename(source)}"
            )
    instructions = {
        "uid": user.uid,
        "gid": user.uid,
        "moves": list(moved.items()),
        "argv": jail_command(plan.jail, moved=moved, control_fd=control_fd, settings_fd=settings_fd),
    }
    return [sys.executable, "-I", "-S", os.path.abspath(launch.__file__), json.dumps(instructions)]
