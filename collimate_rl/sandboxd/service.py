"""The daemon API's requests, from parsed body to answer, over one backend."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import metadata
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.admission import Admission, draining
from collimate_rl.sandboxd.backend import Backend, Outcome, Turn
from collimate_rl.sandboxd.config import Limits, Template
from collimate_rl.sandboxd.health import HealthProbe
from collimate_rl.sandboxd.sessions import Sessions
from collimate_rl.sandboxd.wire import Exec, parse_exec, parse_label, parse_template, vsock_only

log = logging.getLogger(__name__)
CAPABILITIES = ("label", "truncated", "guest_programs")
"""Extensions of this daemon: `label` on create, `truncated` in ExecResponse, trusted guest programs kept compiled."""
_REAP_EVERY_S = 1.0
_FORKS_PER_PLACE = 2
"""Execs that have a fork at a time, to each that runs: others are made, or unmade, meanwhile."""

EndpointsFn = Callable[[str, str, dict[str, Any]], Mapping[Any, str]]


class Service:
    """Every method takes a parsed JSON body where the request has one, and returns (status, answer).

    What goes wrong is a CollimateError with the wire's status and code.
    """

    def __init__(
        self,
        backend: Backend,
        templates: Mapping[str, Template],
        limits: Limits,
        *,
        endpoints_fn: EndpointsFn | None = None,
        drop_session_id: bool = False,
    ) -> None:
        self._backend = backend
        self._templates = templates
        self._limits = limits
        self._endpoints_fn = endpoints_fn
        self._drop_session_id = drop_session_id
        self.admission = Admission(limits.max_inflight, limits.admission_wait_s)
        self._forks = Admission(_FORKS_PER_PLACE * limits.max_inflight, limits.admission_wait_s)
        self._sessions = Sessions(
            max_sessions=limits.max_sessions, idle_limit_s=limits.idle_limit_s, age_limit_s=limits.age_limit_s
        )
        self._health = HealthProbe(backend, dict.fromkeys(templates.values()))
        self._closing = threading.Event()
        self._reaper = threading.Thread(target=self._reap, name="session-reaper", daemon=True)
        self._reaper.start()

    def health(self) -> tuple[int, dict[str, Any]]:
        """200 with the contract's fields and ours; 503 when a probe exec fails."""
        failed = {
            name: failure
            for name, template in self._templates.items()
            if (failure := self._backend.failure(template)) is not None
        }
        answer = {
            "status": "draining" if self.admission.is_draining else "ok",
            "sessions": len(self._sessions),
            "running": self.admission.running,
            "max_inflight": self.admission.max_inflight,
            "queued": self._forks.queued + self.admission.queued,
            "templates": [name for name in self._templates if name not in failed],
            "failed_templates": failed,
            "version": _version(),
            "isolation": self._backend.name,
            "capabilities": list(CAPABILITIES),
            "max_sessions": self._limits.max_sessions,
            **self._backend.facts(),
        }
        problem = None if self.admission.is_draining else self._health.problem()
        if problem is not None:
            return 503, {**answer, "status": "failing", "error": problem, "error_code": "session_bringup_failed"}
        return 200, answer

    def list_sessions(self) -> tuple[int, list[dict[str, Any]]]:
        """All SessionInfos."""
        return 200, self._sessions.infos()

    def get_session(self, session_id: str) -> tuple[int, dict[str, Any]]:
        """One SessionInfo."""
        return 200, self._sessions.info(session_id)

    def create_session(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """A fork that stays."""
        began = time.monotonic()
        template_id, template = self._template(body)
        label = parse_label(body)
        if self.admission.is_draining:
            raise draining()
        session = self._sessions.add(template_id, label, lambda: self._backend.create(template))
        answer: dict[str, Any] = {
            "session_id": session.session_id,
            "template_id": template_id,
            "fork_time_ms": round(session.box.fork_ms, 3),
            "create_time_ms": round((time.monotonic() - began) * 1000, 3),
        }
        if label is not None:
            answer["label"] = label
        endpoints: dict[Any, str] = dict(session.box.endpoints)
        if self._endpoints_fn is not None:
            endpoints.update(self._endpoints_fn(session.session_id, template_id, body))
        if endpoints or self._endpoints_fn is not None:
            answer["endpoints"] = {str(port): place for port, place in endpoints.items()}
        if self._drop_session_id:
            del answer["session_id"]
        return 201, answer

    def delete_session(self, session_id: str) -> tuple[int, dict[str, Any]]:
        """Kill everything in it, confirmed before the answer."""
        session = self._sessions.remove(session_id)
        if session is None:
            return 404, {
                "deleted": False,
                "session_id": session_id,
                "error": f"there is no session {session_id}",
                "error_code": "no_such_session",
            }
        session.box.destroy()
        return 200, {"deleted": True, "session_id": session_id}

    def freeze_session(self, session_id: str, *, stop: bool) -> bool:
        """Stop every process of a session, or let them go on; False where that can't be had. No request of the API."""
        with self._sessions.in_use(session_id) as session:
            return session.box.freeze(stop=stop)

    def session_exec(
        self, session_id: str, body: dict[str, Any], *, hung_up: Callable[[], bool] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """One exec in a session. `hung_up` tells whether its caller left while it waited: then it is not begun."""
        began = time.monotonic()
        if self.admission.is_draining:
            raise draining()
        if body.get("egress") is not None:
            raise vsock_only()
        request = parse_exec(body, composed_bytes=self._limits.composed_bytes)
        self._sessions.info(session_id)
        # It needs no fork, and waits in line with those that do.
        fork, turn = self._waits(hung_up)
        with fork, turn(), self._sessions.in_use(session_id) as session:
            try:
                outcome = session.box.run(request)
            except CollimateError as exc:
                if exc.error_code == "session_gone":
                    self._sessions.lost(session)
                    session.box.destroy()
                raise
        return 200, _exec_response(request, outcome, began)

    def exec_once(
        self, body: dict[str, Any], *, hung_up: Callable[[], bool] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Fork, run, discard. `hung_up` as with session_exec. The fork is made before there is a place to run in."""
        began = time.monotonic()
        _, template = self._template(body)
        request = parse_exec(body, composed_bytes=self._limits.composed_bytes)
        fork, turn = self._waits(hung_up)
        with fork:
            outcome = self._backend.run_once(template, request, turn)
        return 200, _exec_response(request, outcome, began)

    def _waits(self, hung_up: Callable[[], bool] | None) -> tuple[AbstractContextManager[object], Turn]:
        """What an exec waits for: that a fork may be made, and its turn to run. Both waits end at the same moment."""
        until = self.admission.last_moment()
        turn = partial(self.admission.place, hung_up=hung_up, until=until)
        return self._forks.place(hung_up=hung_up, until=until), turn

    def _template(self, body: dict[str, Any]) -> tuple[str, Template]:
        template_id = parse_template(body)
        template = self._templates.get(template_id)
        if template is None:
            known = ", ".join(sorted(self._templates))
            raise CollimateError(f"there is no template {template_id!r} here; there are {known}", 404, "no_template")
        if body.get("egress") is not None:
            raise vsock_only()
        failure = self._backend.failure(template)
        if failure is not None:
            raise CollimateError(f"template {template_id!r} could not be brought up: {failure}", 503, "template_failed")
        return template_id, template

    def _reap(self) -> None:
        while not self._closing.wait(_REAP_EVERY_S):
            for session in self._sessions.overdue():
                log.info("session %s was idle or old beyond the limit and is ended", session.session_id)
                session.box.destroy()
            for session in self._sessions.dead():
                self._sessions.lost(session)
                session.box.destroy()

    def refuse_new(self) -> None:
        """Take no new work, nor what waits for a place."""
        self._forks.drain()
        self.admission.drain()

    def drain(self) -> bool:
        """Refuse new work and wait for what runs; False when it did not end within the drain limit."""
        end = time.monotonic() + self._limits.drain_limit_s
        self.refuse_new()
        return self._forks.wait_idle(self._limits.drain_limit_s) and self.admission.wait_idle(end - time.monotonic())

    def close(self) -> None:
        """End every session."""
        self.refuse_new()
        self._closing.set()
        self._reaper.join()
        for session in self._sessions.clear():
            session.box.destroy()


def _exec_response(request: Exec, outcome: Outcome, began: float) -> dict[str, Any]:
    return {
        "id": os.urandom(8).hex(),
        "stdout": outcome.output.decode("utf-8", "replace"),
        "stderr": "",
        "exit_code": outcome.exit_code,
        "fork_time_ms": round(outcome.fork_ms, 3),
        "exec_time_ms": round(outcome.exec_ms, 3),
        "total_time_ms": round((time.monotonic() - began) * 1000, 3),
        "seed": request.seed,
        "seed_ack": "off",
        "truncated": outcome.truncated,
    }


def _version() -> str:
    try:
        return metadata.version("collimate-rl")
    except metadata.PackageNotFoundError:
        return "unknown"
