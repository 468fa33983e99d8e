"""One candidate's exec, its job held outside of its fork (see `inside.holders`)."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

from collimate_rl.sandboxd.backend import Outcome
from collimate_rl.sandboxd.config import Limits
from collimate_rl.sandboxd.forks import Fork
from collimate_rl.sandboxd.inside.channel import bound_sends, send_request
from collimate_rl.sandboxd.output import Collector
from collimate_rl.sandboxd.pairs import stream_pair
from collimate_rl.sandboxd.running import Running
from collimate_rl.sandboxd.wire import Exec, bad_request
from collimate_rl.sandboxd.zygotes import bringup_failed

_TAKE_S = 10
"""How long its holder may take over the request: one that is stuck is not waited for any longer."""

_LATE_S = 5.0
"""How long its report may come after the exec's limit where the job's own total is below that: then the holder ends the
candidate, in time or as soon as it can, and what it has to tell is worth waiting for."""


class HeldRunning(Running):
    """The exec's report comes from its holder, with its output behind it; the fork doesn't get its job."""

    def __init__(self, fork: Fork, request: Exec, job: dict[str, Any], limits: Limits) -> None:
        super().__init__(fork, request, {"kind": "held", "seed": request.seed, "files": []}, limits, own_reports=True)
        self._job = job
        if job["total_s"] < request.timeout_s:
            self._late_s = _LATE_S
        bound_sends(self._reports, _TAKE_S)

    def _collect(self) -> Collector:
        self._reports, theirs = stream_pair()
        self._theirs = (theirs.detach(),)
        fork, cap = self._fork, self._limits.output_bytes
        return Collector(pipe=None, reports=self._reports, pidfd=fork.pidfd, cap=cap)

    def send(self) -> None:
        """Hand the fork to a holder. What goes wrong here shows in the report, or in its absence.

        CollimateError `bad_request` for a job that can't be handed on at all.
        """
        (asked,) = self._theirs
        header = {"frame": self._frame, "job": self._job, "pid": self._fork.pid}
        try:
            self._fork.zygote.hold(asked)
            send_request(self._reports, header, (self._beginning, self._fork.main, self._fork.channel.fileno()))
        except OSError:
            # The holders are gone, or stuck; `report` says which.
            pass
        except ValueError as exc:
            raise bad_request(f"the runner's job is nested too deeply: {exc}") from exc
        self._close_theirs()
        self._sent_at = time.monotonic()

    def outcome(self, report: Mapping[str, Any] | None, fork_ms: float) -> Outcome:
        """As of any exec. CollimateError `session_bringup_failed` when the time is over because its holder is stuck."""
        if report is None and self._late_s:
            raise bringup_failed("the candidate's time was over and its holder did not say so: the holder stood still")
        if report is None and not self.collector.is_closed:
            raise bringup_failed("the candidate is dead and its holder has not let go of it: the holder is stuck")
        return super().outcome(report, fork_ms)

    def give_up(self) -> None:
        """Before the fork is killed: its holder is to see in it nothing that the candidate did."""
        self._reports.shutdown(socket.SHUT_WR)
