"""Health that is found out by running something."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.backend import Backend
from collimate_rl.sandboxd.config import Template
from collimate_rl.sandboxd.wire import Exec

CACHED_S = 5.0
_PROBE = Exec(command="echo 42", timeout_s=10, seed="0" * 64)


class HealthProbe:
    """Runs a tiny exec at most once in CACHED_S seconds, beside admission; whoever asks meanwhile shares the answer."""

    def __init__(
        self, backend: Backend, templates: Collection[Template], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend = backend
        # A plain one first: a server that starts with each probe would cost more than it tells.
        self._templates = sorted(templates, key=lambda template: template.entry is not None)
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._problem: str | None = None

    def problem(self) -> str | None:
        """What is wrong, or None when an exec did what it should."""
        with self._lock:
            now = self._clock()
            if self._asked is None or now - self._asked >= CACHED_S:
                self._problem = self._run()
                self._asked = self._clock()
            return self._problem

    def _run(self) -> str | None:
        down = [self._backend.failure(template) for template in self._templates]
        template = next((one for one, failure in zip(self._templates, down, strict=True) if failure is None), None)
        if template is None:
            return f"no template could be brought up: {down[0]}"
        try:
            outcome = self._backend.run_once(template, _PROBE)
        except CollimateError as exc:
            return f"a probe exec failed: {exc}"
        if outcome.exit_code != 0 or outcome.output != b"42\n":
            return f"a probe exec ended with exit code {outcome.exit_code}: {outcome.output[-200:]!r}"
        return None
