"""A fork that stays, and the execs that run in it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.backend import Outcome
from collimate_rl.sandboxd.config import Limits
from collimate_rl.sandboxd.forks import Fork, pid_of, session_gone
from collimate_rl.sandboxd.inside.channel import send_request
from collimate_rl.sandboxd.running import Running
from collimate_rl.sandboxd.serving import Serving
from collimate_rl.sandboxd.stopping import continue_tree, stop_tree
from collimate_rl.sandboxd.wire import Exec

FrameMaker = Callable[[Exec], dict[str, Any]]


class NamespaceBox:
    """A fork that stays: execs side by side, each with its own output and report; it ends with `stop_serving`."""

    def __init__(
        self,
        fork: Fork,
        fork_ms: float,
        limits: Limits,
        make_frame: FrameMaker,
        *,
        serving: Serving | None,
        stop_serving: Callable[[], None],
    ) -> None:
        self.fork_ms = fork_ms
        self.endpoints: Mapping[int, str] = serving.endpoints if serving is not None else {}
        self._serving = serving
        self._stop_serving = stop_serving
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

    @property
    def served_at(self) -> float:
        """When a connection to an exposed port was last open, by the monotonic clock; 0.0 for never."""
        return self._serving.served_at if self._serving is not None else 0.0

    def alive(self) -> bool:
        """False once it was destroyed or has died."""
        with self._state:
            return not self._gone and not self._fork.is_dead()

    def freeze(self, *, stop: bool) -> bool:
        """Stop every process in it, or let them go on; False when not all stopped. No exec may run meanwhile."""
        with self._state:
            if self._gone or self._fork.is_dead():
                raise session_gone("the session's sandbox is gone")
            init = pid_of(self._fork.pidfd)
            if stop:
                return stop_tree(init)
            continue_tree(init)
            return True

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
        running = Running(self._fork, request, frame, self._limits, own_reports=True)
        try:
            with self._sending:
                running.send()
            try:
                report = running.report()
            except CollimateError as exc:
                # Its init is gone or out of step: no further exec can be had from it.
                self._condemn()
                raise session_gone(f"the session's sandbox failed: {exc}") from exc
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
        except OSError:
            # The whole fork is gone, or no longer listens: the caller ends it.
            return False
        return running.confirm_killed()

    def destroy(self) -> bool:
        """Kill everything in it and confirm; execs that run meanwhile raise session_gone. False: not confirmed."""
        self._stop_serving()
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
