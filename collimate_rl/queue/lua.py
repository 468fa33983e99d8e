"""Loads the scripts: a block of constants from `Timing`, the prelude, and what else a script says it needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from importlib import resources
from typing import Any

from redis import Redis
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


def bind(client: Redis, name: str, timing: Timing) -> Callable[..., list[Any]]:
    """A callable that runs script `name` with the given arguments and returns its reply.

    The server learns the script at its first use (EVALSHA, then SCRIPT LOAD when it does not know it, as after a
    restart). A refusal by the script is a `ValueError` when the arguments are at fault, a `QueueError` when a key
    holds what is not ours.
    """
    script = client.register_script(script_text(name, timing))

    def run(*args: str | bytes | int) -> list[Any]:
        try:
            reply = script(args=args)
        except ResponseError as exc:
            text = str(exc)
            # Before version 7 a command's error is wrapped into the script's, its own code after a dash.
            if "-OOM " in text:
                raise OutOfMemoryError(text) from exc
            # Our scripts' own markers, the first word of the error reply: its code, as Redis has it.
            if "COLARG" in text:
                raise ValueError(f"{name}: {text.partition('COLARG ')[2]}") from exc
            if "COLTYPE" in text or "WRONGTYPE" in text:
                raise QueueError(f"{name}: the queue's keys are not as this program writes them: {text}") from exc
            raise
        if not isinstance(reply, list):
            raise QueueError(f"{name}: the script answered {reply!r}")
        return reply

    return run
