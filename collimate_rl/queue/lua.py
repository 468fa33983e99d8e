"""Loads the scripts: a block of constants from `Timing`, the prelude, and what else a script says it needs."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import lru_cache
from importlib import resources
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import OutOfMemoryError, ResponseError

from collimate_rl.errors import QueueError
from collimate_rl.protocol.timing import Timing

SCRIPTS = (
    "submit",
    "claim",
    "renew",
    "note",
    "mark",
    "verdict",
    "remember",
    "publish",
    "release",
    "bury",
    "mend",
    "cancel",
    "beat",
    "bump",
    "cases",
    "lease",
    "seat",
    "purge",
    "tally",
)
READING = ("gist",)
"""Scripts that change nothing, and so have no transition."""
_ANSWERING = re.compile(r"\b(?:answer|due_answer)\(")


def _read(name: str) -> str:
    return (resources.files("collimate_rl.queue") / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def script_text(name: str, timing: Timing) -> str:
    """The whole text of script `name` under `timing`, as it is sent to the server."""
    own = _read(name)
    constants = ", ".join(f"{f.name} = {getattr(timing, f.name)}" for f in fields(timing))
    answering = _read("answer") if _ANSWERING.search(own) else ""
    return "\n".join((f"local T = {{ {constants} }}", _read("prelude"), answering, own))


class Bound:
    """Script `name` on a server: called with the given arguments it returns the reply.

    The server learns the script at its first use (EVALSHA, then SCRIPT LOAD when it does not know it, as after a
    restart). A refusal by the script is a `ValueError` when the arguments are at fault, a `QueueError` when a key
    holds what is not ours.
    """

    def __init__(self, client: Redis, name: str, timing: Timing) -> None:
        self.name = name
        self._script = client.register_script(script_text(name, timing))

    def __call__(self, *args: str | bytes | int) -> list[Any]:
        try:
            return self.read(self._script(args=args))
        except ResponseError as exc:
            raise self._refusal(exc) from exc

    def add_to(self, pipe: Pipeline, *args: str | bytes | int) -> None:
        """Have a pipeline call the script, which the server may not know: that is then what it answers."""
        pipe.evalsha(self._script.sha, 0, *args)

    def read(self, reply: Any) -> list[Any]:
        """What the server answered, perhaps in a pipeline: an error is raised."""
        if isinstance(reply, ResponseError):
            raise self._refusal(reply) from reply
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, list):
            raise QueueError(f"{self.name}: the script answered {reply!r}")
        return reply

    def _refusal(self, exc: ResponseError) -> Exception:
        text = str(exc)
        # Before version 7 a command's error is wrapped into the script's, its own code after a dash.
        if "-OOM " in text:
            return OutOfMemoryError(text)
        # Our scripts' own markers, the first word of the error reply: its code, as Redis has it.
        if "COLARG" in text:
            return ValueError(f"{self.name}: {text.partition('COLARG ')[2]}")
        if "COLTYPE" in text or "WRONGTYPE" in text:
            return QueueError(f"{self.name}: the queue's keys are not as this program writes them: {text}")
        return exc
