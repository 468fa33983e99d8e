"""One exec while it runs, seen from the host."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

from collimate_rl.sandboxd.admission import no_descriptors
from collimate_rl.sandboxd.backend import Outcome, timeout_notice
from collimate_rl.sandboxd.config import Limits
from collimate_rl.sandboxd.forks import Fork, session_gone
from collimate_rl.sandboxd.inside.channel import ChannelClosed, send_request
from collimate_rl.sandboxd.output import Collector
from collimate_rl.sandboxd.wire import Exec
from collimate_rl.sandboxd.zygotes import bringup_failed

_KILLED_CODE = 128 + int(signal.SIGKILL)
_KILLED = {"exit_code": _KILLED_CODE}
"""What is reported for an exec whose session's init died under it, by the exec's own doing."""
_ZYGOTE_DEATH_S = 0.2
"""How long a dying zygote's control socket may outlive its forks."""
_FORK_DEATH_S = 0.1
"""How long a fork that is being killed from outside may outlive its exec."""
_STEP_S = 0.05


class Running:
    """The host's ends of one exec: its output, its report, and the moment at which it began.

    That moment is written by the fork into an eventfd, in nanoseconds of the monotonic clock: the time limit counts
    from there, and what dies before is the infrastructure's failure. Built, it has all its descriptors; CollimateError
    `at_capacity` when they can't be had.
    """

    def __init__(self, fork: Fork, request: Exec, frame: dict[str, Any], limits: Limits, *, own_reports: bool) -> None:
        self._fork = fork
        self._request = request
        self._frame = frame
        self._limits = limits
        self._began_at: float | None = None
        self._sent_at = 0.0
        self._ended_at = 0.0
        self._own_reports = own_reports
        self._late_s = 0.0
        """How long the report may come after the time limit."""
        self._reports = fork.channel
        self._output = self._beginning = -1
        self._theirs: tuple[int, ...] = ()
        try:
            self._beginning = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.collector = self._collect()
        except OSError as exc:
            self.close()
            raise no_descriptors(exc) from exc

    def _collect(self) -> Collector:
        """What the exec prints into and reports on, and what collects both. OSError for want of descriptors."""
        self._output, output = os.pipe()
        self._theirs = (output,)
        if self._own_reports:
            self._reports, theirs = socket.socketpair()
            self._theirs = (output, theirs.detach())
        fork, cap = self._fork, self._limits.output_bytes
        return Collector(pipe=self._output, reports=self._reports, pidfd=fork.pidfd, cap=cap)

    def send(self) -> None:
        """Hand the exec to the fork. What goes wrong here shows in the report, or in its absence."""
        contents = tuple(content for _, content in self._request.files)
        try:
            send_request(self._fork.channel, self._frame, (self._beginning, *self._theirs), contents)
        except OSError:
            # The fork is gone or stuck; `report` says which.
            pass
        self._close_theirs()
        self._sent_at = time.monotonic()

    def report(self) -> Mapping[str, Any] | None:
        """The exec's report, or None when its time was over.

        CollimateError when the infrastructure failed: session_bringup_failed before the exec began, session_gone after.
        """
        try:
            report = self._wait()
        except (ChannelClosed, OSError) as exc:
            # A session is gone with its fork. Of a one-shot exec that never began, as when its fork died while
            # it waited for its turn, nothing ran, whoever died.
            unbegun = self._began() is None
            if not (unbegun and self._fork.out_of_reach) and self._fork.zygote.is_dead(within_s=_ZYGOTE_DEATH_S):
                raise session_gone("the warm interpreter died, and this fork with it") from exc
            if unbegun:
                raise bringup_failed("the fork died before the exec began") from exc
            if self._fork.out_of_reach:
                raise session_gone("the fork was ended from outside") from exc
            return _KILLED
        finally:
            self._ended_at = time.monotonic()
        if report is None:
            return None
        if "error" in report:
            when = "before the exec began" if self._began() is None else "while the exec ran"
            raise bringup_failed(f"the fork failed {when}: {report['error']}")
        if self._began() is None:
            raise bringup_failed("the fork ended before the exec began")
        if _ended(report) == _KILLED_CODE and self._fork.out_of_reach:
            if self._fork.is_cut_short():
                raise bringup_failed("the machine ran out of memory before the fork had what its template promises")
            if self._fork.is_ending(within_s=_FORK_DEATH_S):
                raise session_gone("the fork was ended from outside")
        return report

    def _wait(self) -> dict[str, Any] | None:
        allowed = self._request.timeout_s + self._late_s
        deadline = self._sent_at + allowed
        while True:
            report = self.collector.until_report(deadline)
            if report is not None:
                return report
            began, now = self._began(), time.monotonic()
            if began is not None and now >= began + allowed:
                return None
            if began is not None:
                deadline = began + allowed
            elif now < self._sent_at + allowed + self._limits.bringup_timeout_s:
                deadline = now + _STEP_S
            else:
                raise bringup_failed(f"the exec did not begin within {now - self._sent_at:.0f} s")

    def confirm_killed(self) -> bool:
        """Whether the fork's init reports that all which this exec started is dead, within the kill limit."""
        try:
            report = self.collector.until_report(time.monotonic() + self._limits.kill_timeout_s)
        except (ChannelClosed, OSError):
            # The whole fork is gone.
            return False
        return report is not None

    def _began(self) -> float | None:
        if self._began_at is None:
            try:
                self._began_at = os.eventfd_read(self._beginning) / 1e9
            except BlockingIOError:
                # Nothing was written to it.
                pass
        return self._began_at

    def outcome(self, report: Mapping[str, Any] | None, fork_ms: float) -> Outcome:
        """The exec's outcome; a report of None is the timeout."""
        output = self.collector.output
        notice = timeout_notice(self._request.timeout_s) if report is None else b""
        return Outcome(
            exit_code=-1 if report is None else report["exit_code"],
            output=bytes(output.data) + notice,
            truncated=output.truncated,
            fork_ms=fork_ms,
            exec_ms=max(self._ended_at - (self._began() or self._sent_at), 0.0) * 1000,
        )

    def give_up(self) -> None:
        """Take no report any more: the time is over."""

    def _close_theirs(self) -> None:
        for fd in self._theirs:
            os.close(fd)
        self._theirs = ()

    def close(self) -> None:
        """Give the descriptors back."""
        self._close_theirs()
        for fd in (self._output, self._beginning):
            if fd >= 0:
                os.close(fd)
        if self._reports is not self._fork.channel:
            self._reports.close()


def _ended(report: Mapping[str, Any]) -> int | None:
    """How the fork's own process ended, as an exit code; None where its end was asked for."""
    ended: int | None = report.get("ended", report["exit_code"])
    return ended
