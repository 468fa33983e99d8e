"""The environment: one interpreter's namespace, which lives as long as the episode."""

from __future__ import annotations

import contextlib
import io
import traceback
import uuid
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State

MAX_OUTPUT = 64 * 1024


class CodeAction(Action):
    """Python source, run in the episode's namespace."""

    code: str


class CodeObservation(Observation):
    """What one step printed (at most 64 KiB of each stream), and 0 or 1 for how it ended."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class CodingEnvironment(Environment):
    """Runs what it is sent, and gives no reward: whoever can rewrite this process could rewrite its rewards.

    The trainer judges the output, since the answers are only there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begin(None)

    def _begin(self, episode_id: str | None) -> None:
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._state = State(episode_id=episode_id or str(uuid.uuid4()), step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> CodeObservation:
        """An empty namespace; with a seed, `random` is seeded in it."""
        self._begin(episode_id)
        if seed is not None:
            exec(f"import random; random.seed({int(seed)})", self._namespace)
        return CodeObservation()

    def step(self, action: CodeAction, **_: Any) -> CodeObservation:
        """Run the code. What it raises is told in stderr; the client's message timeout ends what never ends."""
        self._state.step_count += 1
        stdout, stderr = io.StringIO(), io.StringIO()
        exit_code = 0
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            try:
                exec(compile(action.code, "<action>", "exec"), self._namespace)
            except BaseException:  # noqa: BLE001 - SystemExit and the like are the code's own, too
                exit_code = 1
                traceback.print_exc(limit=-1)
        return CodeObservation(
            stdout=stdout.getvalue()[:MAX_OUTPUT], stderr=stderr.getvalue()[:MAX_OUTPUT], exit_code=exit_code
        )

    @property
    def state(self) -> State:
        """The episode's id, and how many steps it took."""
        return self._state
