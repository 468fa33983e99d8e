"""One fork seen from the host, and the running of execs in it."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.backend import Outcome, timeout_notice
from collimate_rl.sandboxd.cgroups import Group
from collimate_rl.sandboxd.config import Limits
from collimate_rl.sandboxd.inside.channel import ChannelClosed, send_request
from collimate_rl.sandboxd.output import Collector
from collimate_rl.sandboxd.wire import Exec
from collimate_rl.sandboxd.zygotes import Zygote, bringup_failed

_KILLED = {"exit_code": 128 + int(signal.SIGKILL)}
"""What is reported for an exec whose init died under it, by the exec's own doing."""
_ZYGOTE_DEATH_S = 0.2
"""How long a dying zygote's control socket may outlive its forks."""


def session_gone(message: str) -> CollimateError:
    """410: permanent."""
    return CollimateError(message, 410, "session_gone")


class Fork:
    """A fork's channel, pidfd and control group."""

    def __init__(self, zygote: Zygote, channel: socket.socket, pidfd: int, group: Group) -> None:
        self.zygote = zygote
        self.channel = channel
        self.pidfd = pidfd
        self._group = group
        # A fork that takes no bytes for this long is broken; nothing waits on it for ever.
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 10, 0))

    def kill(self) -> None:
        """Kill its init, and so, by the kernel's hand, everything in its pid namespace."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            # It is dead already.
            pass

    def is_dead(self, within_s: float = 0.0) -> bool:
        """Whether everything in it is gone: the kernel lets an init end only after all others."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def dispose(self, kill_timeout_s: float) -> bool:
        """Kill, confirm, and give everything back; False when something would not die in time."""
        self.channel.close()
        self.kill()
        dead = self.is_dead(kill_timeout_s)
        os.close(self.pidfd)
        if not dead:
            self._group.remove()
            return False
        self._group.release()
        return True


class Running:
    """The host's ends of one exec: its output, its report, and whether it ever began."""

    def __init__(self, fork: Fork, request: Exec, frame: dict[str, Any], cap: int, *, own_reports: bool) -> None:
        self._fork = fork
        self._request = request
        self._output, output = os.pipe()
        self._begun = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.reports, theirs = socket.socketpair() if own_reports else (fork.channel, None)
        self._own_reports = own_reports
        self._frame = frame
        self._theirs: tuple[int, ...] = (
            (output, self._begun) if theirs is None else (output, self._begun, theirs.detach())
        )
        self.collector = Collector(pipe=self._output, reports=self.reports, pidfd=fork.pidfd, cap=cap)
        self._did_begin = False
        self.sent = 0.0
        self.ended = 0.0

    def send(self) -> None:
        """Hand the exec to the fork's init. What goes wrong here shows in the report, or in its absence."""
        contents = tuple(content for _, content in self._request.files)
        try:
            send_request(self._fork.channel, self._frame, self._theirs, contents)
        except OSError:
            # The init is gone or stuck; `report` says which.
            pass
        finally:
            for fd in self._theirs:
                if fd != self._begun:
                    os.close(fd)
            self._theirs = ()
        self.sent = time.monotonic()

    def report(self, deadline: float) -> Mapping[str, Any] | None:
        """The exec's report, or None when the deadline passed.

        A fork that dies after the exec began was ended from inside: that is reported as a death by SIGKILL. Before,
        or with its zygote, it is the infrastructure's: CollimateError (session_bringup_failed or session_gone).
        """
        try:
            report = self.collector.until_report(deadline)
        except (ChannelClosed, OSError) as exc:
            if self._fork.zygote.is_dead(within_s=_ZYGOTE_DEATH_S):
                raise session_gone("the warm interpreter died, and this fork with it") from exc
            if not self._has_begun():
                raise bringup_failed("the fork died before the exec began") from exc
            return _KILLED
        finally:
            self.ended = time.monotonic()
        if report is not None and "error" in report:
            raise bringup_failed(f"the fork failed before the exec began: {report['error']}")
        if report is not None and not self._has_begun():
            raise bringup_failed("the fork ended before the exec began")
        return report

    def _has_begun(self) -> bool:
        if not self._did_begin:
            try:
                self._did_begin = os.eventfd_read(self._begun) > 0
            except BlockingIOError:
                # Nothing was written to it.
                pass
        return self._did_begin

    def outcome(self, report: Mapping[str, Any] | None, fork_ms: float) -> Outcome:
        """The exec's outcome; a report of None is the timeout."""
        output = self.collector.output
        data = bytes(output.data)
        ran = self.ended - self.sent
        if report is None:
            return Outcome(
                exit_code=-1,
                output=data + timeout_notice(self._request.timeout_s),
                truncated=output.truncated,
                fork_ms=fork_ms,
                exec_ms=ran * 1000,
            )
        return Outcome(
            exit_code=report["exit_code"],
            output=data,
            truncated=output.truncated,
            fork_ms=fork_ms,
            exec_ms=ran * 1000,
        )

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in (self._output, self._begun, *(fd for fd in self._theirs if fd != self._begun)):
            os.close(fd)
        if self._own_reports:
            self.reports.close()


FrameMaker = Callable[[Exec], dict[str, Any]]


class NamespaceBox:
    """A fork that stays: execs side by side, each with its own output and report."""

    def __init__(self, fork: Fork, fork_ms: float, limits: Limits, make_frame: FrameMaker) -> None:
        self.fork_ms = fork_ms
        self._fork = fork
        self._limits = limits
        self._make_frame = make_frame
        self._ids = itertools.count(1)
        self._sending = threading.Lock()
        self._state = threading.Condition()
        self._users = 0
        self._gone = False
        self._disposed = False
        self._clean = True

    def alive(self) -> bool:
        """False once it was destroyed or has died."""
        with self._state:
            return not self._gone and not self._fork.is_dead()

    def run(self, request: Exec) -> Outcome:
        """Run one exec in it. CollimateError 410 `session_gone` when it is, or is destroyed meanwhile."""
        with self._state:
            if self._gone or self._fork.is_dead():
                raise session_gone("the session's sandbox is gone")
            self._users += 1
        try:
            return self._run(request)
        finally:
            with self._state:
                self._users -= 1
                self._dispose_when_unused()

    def _run(self, request: Exec) -> Outcome:
        exec_id = str(next(self._ids))
        frame = {**self._make_frame(request), "id": exec_id}
        running = Running(self._fork, request, frame, self._limits.output_bytes, own_reports=True)
        try:
            with self._sending:
                running.send()
            report = running.report(running.sent + request.timeout_s)
            if report is None and not self._kill(exec_id, running):
                self._condemn()
            running.collector.what_is_there()
            outcome = running.outcome(report, 0.0)
        finally:
            running.close()
        if self._gone and report is not None:
            raise session_gone("the session was deleted while the exec ran")
        return outcome

    def _kill(self, exec_id: str, running: Running) -> bool:
        """Have the init kill all that the exec started; True when it confirmed."""
        try:
            with self._sending:
                send_request(self._fork.channel, {"kill": exec_id})
            return running.report(time.monotonic() + self._limits.kill_timeout_s) is not None
        except (OSError, CollimateError):
            # The whole fork is gone, or no longer listens: the caller ends it.
            return False

    def destroy(self) -> bool:
        """Kill everything in it and confirm; execs that run meanwhile raise session_gone. False: not confirmed."""
        self._condemn()
        with self._state:
            self._dispose_when_unused()
            self._state.wait_for(lambda: self._disposed, timeout=self._limits.kill_timeout_s)
            return self._disposed and self._clean

    def _condemn(self) -> None:
        with self._state:
            self._gone = True
            if not self._disposed:
                self._fork.kill()

    def _dispose_when_unused(self) -> None:
        if self._gone and self._users == 0 and not self._disposed:
            self._clean = self._fork.dispose(self._limits.kill_timeout_s)
            self._disposed = True
            self._state.notify_all()
