"""Counts the queue's answers, for the leading janitor: each once, whoever dies when.

Every answer leaves an entry in `col:answers:queue`, written by the script that gives the answer. A round reads on from
the cursor, looks at the results, and has one script add the counts and move the cursor. That script refuses whoever
does not lead, or read from another place than where the cursor is.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collimate_rl.errors import BadMessage, UnknownVersion
from collimate_rl.protocol import BatchResult, keys
from collimate_rl.protocol.bounds import is_name
from collimate_rl.queue import faults
from collimate_rl.queue._raw import integer, text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.counts import MICRO, SLOT_S, mean_of, name_of, step_of
from collimate_rl.queue.numbers import DAY, HOUR, RECENT_S
from collimate_rl.queue.replies import Tallied

LOT = 64
"""Answers that are counted together, at most, ..."""
LOT_CANDIDATES = 1_024
"""... and about so many candidates."""
AT_ONCE = 8
"""The server takes so many results apart in one go: some milliseconds, in which it does nothing else."""
ROUND_S = 1.0
"""A round begins no further lot after this: mending must not wait for counting."""
MAX_NAMES = 1_500
"""Of so many names something is counted in one step; what is beyond is not."""
SERIES = ("graded", "infra", "reward", "unread_graded")
"""What is kept of a run by steps of time."""
NO_BATCH = "0" * 32
_KEY = re.compile(r"[0-9a-f]{32}")
SLOT_KEEP_MS = (RECENT_S + 300) * 1000


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is counted of one candidate."""

    reward: float | None
    """None when it is infra-flagged."""
    code: str
    outcome: str
    node: str
    recovered: str
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One entry of the stream of answers, with what its result says of each candidate."""

    entry: str
    at_ms: int
    """By the server's clock."""
    k: str
    run: str
    id: str
    status: str
    n: int
    flagged: int
    wait_ms: int | None
    took_ms: int | None
    verdicts: tuple[Told, ...] | None
    """None when the result is gone already, or cannot be read."""


class AnswerCounter:
    """`round` is called by whoever leads, every few seconds; `token` is the one that the janitor's lease is held by."""

    def __init__(self, queue: BatchQueue, token: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queue = queue
        self._token = token
        self._cursor: str | None = None

    def round(self) -> int:
        """Counts what has been answered since; returns how many answers. Raises `RedisUnavailable`, `QueueError`."""
        counted, until = 0, self._clock() + ROUND_S
        while True:
            start = self._cursor if self._cursor is not None else self._stored()
            self._cursor = start
            lot = self._read(start)
            if not lot:
                # Read anew in the next round: a server that was emptied, or took a step back, knows nothing of ours.
                self._cursor = None
                break
            end = lot[-1].entry
            groups = list(_flat(grouped(lot), self._queue.timing.numbers_ms)) + list(
                _recent(lot, self._queue.timing.keep_ms)
            )
            faults.reach("tallying")
            reply = self._queue.tally(self._token, start, end, groups)
            faults.reach("tallied")
            if reply.word is Tallied.NOT_LEADING:
                self._cursor = None
                break
            self._cursor = reply.cursor
            counted += len(lot) if reply.word is Tallied.OK else 0
            if self._clock() >= until:
                break
        return counted

    def _stored(self) -> str:
        with translate_errors("read how far answers are counted"):
            stored = self._queue.client.hget(keys.tally(self._queue.queue), "cursor")
        return "0-0" if stored is None else text(stored)

    def _read(self, start: str) -> list[Answered]:
        client = self._queue.client
        with translate_errors("read what was answered"):
            found: Any = client.xrange(keys.answers(self._queue.queue), f"({start}", "+", count=LOT)
            taken: list[tuple[str, dict[str, str]]] = []
            candidates = 0
            for entry, fields in found:
                told = {text(name): text(value) for name, value in fields.items()}
                candidates += _number(told.get("n")) or 0
                if taken and candidates > LOT_CANDIDATES:
                    break
                taken.append((text(entry), told))
        ks = [told.get("k", "") for _, told in taken]
        gists = self._gists([k if _KEY.fullmatch(k) else NO_BATCH for k in ks])
        return [
            _answered(entry, told, self._whole(k) if gist[0] == "BIG" else _apart(gist))
            for (entry, told), k, gist in zip(taken, ks, gists, strict=True)
        ]

    def _gists(self, ks: Sequence[str]) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for at in range(0, len(ks), AT_ONCE):
            found += self._queue.gists(ks[at : at + AT_ONCE])
        return found

    def _whole(self, k: str) -> tuple[Told, ...] | None:
        try:
            result = self._queue.result(k)
        except (BadMessage, UnknownVersion):
            return None  # counted by what its entry says, and as unread
        return None if result is None else told_of(result)


def _number(told: str | None) -> int | None:
    value = integer(told)
    return value if value is not None and value >= 0 else None


def _apart(gist: Sequence[str]) -> tuple[Told, ...] | None:
    """From what the script `gist` says of a batch."""
    if gist[0] != "OK":
        return None
    found = []
    for at in range(1, len(gist) - 5, 6):
        reward, code, outcome, node, recovered, flags = gist[at : at + 6]
        value = _reward(reward) if reward else None
        if reward and value is None:
            return None
        found.append(
            Told(
                reward=value,
                code=code,
                outcome=outcome,
                node=node,
                recovered=recovered,
                flags=tuple(filter(None, flags.split(","))),
            )
        )
    return tuple(found)


def _reward(told: str) -> float | None:
    """None for what no verdict of ours says: one strange number must not hold up the counting of all others."""
    try:
        value = float(told)
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


def told_of(result: BatchResult) -> tuple[Told, ...]:
    """The same of a whole result."""
    return tuple(
        Told(
            reward=verdict.reward,
            code=verdict.error_code or "",
            outcome=verdict.outcome or "",
            node=verdict.node,
            recovered=verdict.recovered,
            flags=verdict.flags,
        )
        for verdict in result.results
    )


def _answered(entry: str, told: Mapping[str, str], verdicts: tuple[Told, ...] | None) -> Answered:
    return Answered(
        entry=entry,
        at_ms=int(entry.partition("-")[0]),
        k=told.get("k", ""),
        run=told.get("run", ""),
        id=told.get("id", ""),
        status=told.get("status", ""),
        n=_number(told.get("n")) or 0,
        flagged=_number(told.get("flagged")) or 0,
        wait_ms=_number(told.get("wait")),
        took_ms=_number(told.get("took")),
        verdicts=verdicts if _is_of(verdicts, told) else None,
    )


def _is_of(verdicts: tuple[Told, ...] | None, told: Mapping[str, str]) -> bool:
    """Whether these are the verdicts that the entry was written with: a purged batch may have been submitted anew."""
    flagged = sum(verdict.reward is None for verdict in verdicts or ())
    return verdicts is not None and (len(verdicts), flagged) == (_number(told.get("n")), _number(told.get("flagged")))


def counts_of(answer: Answered) -> Counter[str]:
    """What one answer adds, under the names of `counts`; names with a node in them begin with `node`."""
    found: Counter[str] = Counter(
        {
            "batches": 1,
            "candidates": answer.n,
            "graded": max(0, answer.n - answer.flagged),
            "infra": answer.flagged,
            f"status:{name_of(answer.status)}": 1,
        }
    )
    for what, ms in (("wait", answer.wait_ms), ("took", answer.took_ms)):
        if ms is not None:
            found[f"{what}:{step_of(ms)}"] += 1
    if answer.verdicts is None:
        found["unread"] += 1
        found["unread_graded"] += found["graded"]
        return found
    for verdict in answer.verdicts:
        if verdict.node:
            found[f"node:{name_of(verdict.node)}"] += 1
        if verdict.reward is None:
            code = name_of(verdict.code)
            found[f"code:{code}"] += 1
            if verdict.node:
                found[f"node_code:{name_of(verdict.node)}:{code}"] += 1
            continue
        found["reward"] += round(verdict.reward * MICRO)
        found["zeros"] += verdict.reward == 0.0
        found[f"outcome:{name_of(verdict.outcome)}"] += 1
        if verdict.recovered != "none":
            found[f"recovered:{name_of(verdict.recovered)}"] += 1
        for flag in verdict.flags:
            found[f"flag:{name_of(flag)}"] += 1
    return found


def grouped(lot: Iterable[Answered]) -> dict[str, Counter[str]]:
    """What a lot adds, by part of the script `tally`."""
    parts: dict[str, Counter[str]] = {}
    for answer in lot:
        found = counts_of(answer)
        lasting = Counter({name: count for name, count in found.items() if not name.startswith("node")})
        seconds = answer.at_ms // 1000
        parts.setdefault(f"slot:{seconds // SLOT_S}", Counter()).update(found)
        parts.setdefault("total", Counter()).update(lasting)
        if not is_name(answer.run):  # none of ours: the script would refuse the whole lot
            continue
        parts.setdefault(f"run:{answer.run}", Counter()).update(lasting)
        for series in (HOUR, DAY):
            step = seconds // series.step_s
            part = parts.setdefault(f"series:{answer.run}:{series.step_s}:{step // series.block}", Counter())
            part.update({f"{step}:{name}": found[name] for name in SERIES if found[name]})
    return parts


def _flat(parts: Mapping[str, Mapping[str, int]], numbers_ms: int) -> Iterable[str | int]:
    for part, found in parts.items():
        some = [(name, count) for name, count in sorted(found.items()) if count][:MAX_NAMES]
        if not some:
            continue
        keep_ms = numbers_ms
        if part.startswith("slot:"):
            keep_ms = SLOT_KEEP_MS
        elif part.startswith("series:"):
            keep_ms = (DAY if f":{DAY.step_s}:" in part else HOUR).keep_ms
        yield from (part, keep_ms, len(some), *(word for pair in some for word in pair))


def _recent(lot: Iterable[Answered], keep_ms: int) -> Iterable[str | int]:
    for answer in lot:
        told = json.dumps(summary(answer), separators=(",", ":"))
        yield from ("recent", keep_ms, 2, "run", answer.run, "told", told)


def summary(answer: Answered) -> dict[str, Any]:
    """What a list shows of one answered batch; JSON data."""
    found = counts_of(answer)
    verdicts = answer.verdicts or ()
    return {
        "k": answer.k,
        "run": answer.run,
        "id": answer.id,
        "status": answer.status,
        "n": answer.n,
        "graded": found["graded"],
        "infra": found["infra"],
        "zeros": found["zeros"],
        "mean": mean_of(found),
        "codes": {name.partition(":")[2]: count for name, count in found.items() if name.startswith("code:")},
        "nodes": sorted({verdict.node for verdict in verdicts if verdict.node})[:8],
        "at": answer.at_ms / 1000,
        "wait": answer.wait_ms,
        "took": answer.took_ms,
        "recovered": sum(count for name, count in found.items() if name.startswith("recovered:")),
    }
