"""`python -m worker quarantine list | show BATCH | release BATCH`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from collimate_rl.queue import quarantine
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.quarantine import Evidence, Quarantined
from collimate_rl.queue.replies import Submitted

USAGE = "quarantine takes: list, show BATCH, release BATCH (the beginning of its k, or run/id)"


def run(queue: BatchQueue, words: Sequence[str], *, as_json: bool) -> str:
    """What is to be printed. `ValueError` for words that mean nothing here; else as `collimate_rl.queue.quarantine`."""
    if list(words) == ["list"]:
        return _listing(quarantine.listed(queue), as_json)
    if len(words) == 2 and words[0] == "show":
        known = quarantine.evidence(queue, words[1])
        return json.dumps(_data(known), indent=2) if as_json else _text(known)
    if len(words) == 2 and words[0] == "release":
        again = quarantine.release(queue, words[1])
        if as_json:
            return json.dumps({"k": again.k, "run": again.run, "id": again.id, "reply": again.word.value})
        told = "submitted again" if again.word is Submitted.NEW else "had been submitted again"
        return f"{told} as {again.run}/{again.id} ({again.k})"
    raise ValueError(USAGE)


def _listing(found: Sequence[Quarantined], as_json: bool) -> str:
    if as_json:
        return json.dumps([one.as_json_data() for one in found], indent=2)
    return "\n".join(map(_line, found)) or "nothing is in quarantine"


def _line(one: Quarantined) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at))
    gone = "" if one.kept else "  (its payload is no longer kept)"
    return f"{when}  {one.k}  {one.run}/{one.id} candidate {one.index}  on {one.node} by {one.worker}{gone}"


def _data(known: Evidence) -> dict[str, Any]:
    batch = known.batch
    return {
        "candidates": [
            {**one.as_json_data(), "code": batch.candidates[one.index], "seed": batch.seeds[one.index]}
            for one in known.candidates
        ],
        "template": batch.template,
        "spec": json.loads(batch.spec),
        "timeout_seconds": batch.timeout_seconds,
        "tags": dict(batch.tags),
        "state": dict(known.state),
        "status": None if known.result is None else known.result.status.value,
    }


def _text(known: Evidence) -> str:
    batch, state = known.batch, known.state
    lines = [
        *map(_line, known.candidates),
        f"template {printable(batch.template)}, {batch.timeout_seconds} s, {len(batch.candidates)} candidates, "
        f"spec {printable(str(json.loads(batch.spec)['type']))}",
        f"answered {known.result.status.value}" if known.result is not None else "its answer is no longer kept",
    ]
    if state:
        lines.append(f"owners lost: {state.get('losses', '0')}; the last was {state.get('worker', '')}")
    for one in known.candidates:
        lines += [f"--- candidate {one.index}", printable(batch.candidates[one.index]).rstrip("\n")]
    return "\n".join(lines)


def printable(text: str) -> str:
    """Text of a stranger's, fit for a terminal: what would steer it is shown as an escape."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
