"""Lists of batches to choose from: the unanswered, and those whose answers the tally has counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collimate_rl.protocol import BatchStatus, keys
from collimate_rl.protocol.bounds import is_k
from collimate_rl.queue._raw import answers_of, natural, text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors

MAX_SEARCHED = 5_000
"""So many counted answers, the newest, are searched for a list."""
MAX_UNANSWERED = 500
MAX_LISTED = 200
MOST = 10**15
"""No count and no time in an entry is as large."""


@dataclass(frozen=True, kw_only=True)
class BatchLine:
    """One batch in a list."""

    k: str
    run: str
    id: str
    status: str
    n: int
    graded: int
    infra: int
    zeros: int
    """Graded candidates with a reward of 0."""
    mean_reward: float | None
    codes: Mapping[str, int]
    nodes: tuple[str, ...]
    at: float
    """When it was answered; of an unanswered one, when it was submitted. Unix seconds by the server's clock."""
    wait_ms: float | None
    """From submit to the first claim."""
    took_ms: float | None
    """From submit to the answer."""
    recovered: int
    """Candidates that a takeover got."""

    def as_json_data(self) -> dict[str, Any]:
        return asdict(self)


def list_batches(
    queue: BatchQueue,
    *,
    run: str | None = None,
    status: str | None = None,
    trouble: str | None = None,
    search: str = "",
    limit: int = 50,
) -> list[BatchLine]:
    """Batches of this queue, newest first: unanswered ones by when they were submitted, then answered ones.

    run -- of this run alone.
    status -- `open`, `running`, `unanswered`, `answered`, or a result's status.
    trouble -- `infra`: with an infra-flagged candidate; `zero`: with a reward of 0; `any` of the two.
    search -- a part of the batch's id, run or key.
    limit -- at most so many (200).

    Among the newest 5,000 answers, and 500 of the unanswered batches. Raises `RedisUnavailable`, `QueueError`;
    `ValueError` for a `trouble` that there isn't.
    """
    if trouble not in (None, "infra", "zero", "any"):
        raise ValueError(f"trouble {trouble!r} is none of infra, zero, any")
    limit = max(0, min(limit, MAX_LISTED))

    def wanted(line: BatchLine) -> bool:
        unanswered = line.status in (BatchStatus.OPEN.value, BatchStatus.RUNNING.value)
        return (
            run in (None, line.run)
            and status in (None, line.status, "unanswered" if unanswered else "answered")
            and (trouble in (None, "zero") or line.infra > 0 or (trouble == "any" and line.zeros > 0))
            and (trouble != "zero" or line.zeros > 0)
            and (not search or search in line.id or search in line.run or search in line.k)
        )

    found: list[BatchLine] = []
    if trouble is None:
        found = sorted(filter(wanted, _unanswered(queue)), key=lambda line: -line.at)[:limit]
    before, searched = "+", 0
    while len(found) < limit and searched < MAX_SEARCHED:
        with translate_errors("read the recent answers"):
            entries: Any = queue.client.xrevrange(keys.recent(queue.queue), before, "-", count=500)
        for entry_id, fields in entries:
            line = _line({text(name): text(value) for name, value in fields.items()})
            if line is not None and wanted(line) and len(found) < limit:
                found.append(line)
            before = f"({text(entry_id)}"
        searched += len(entries)
        if len(entries) < 500:
            break
    return found


def _line(fields: Mapping[str, str]) -> BatchLine | None:
    """From an entry as the tally writes it; None for what is none."""
    try:
        told = json.loads(fields["told"])
        return BatchLine(
            k=_k(told["k"]),
            run=str(told["run"]),
            id=str(told["id"]),
            status=str(told["status"]),
            n=_whole(told["n"]),
            graded=_whole(told["graded"]),
            infra=_whole(told["infra"]),
            zeros=_whole(told["zeros"]),
            mean_reward=None if told["mean"] is None else _real(told["mean"]),
            codes={str(code): _whole(count) for code, count in told["codes"].items()},
            nodes=tuple(str(node) for node in told["nodes"]),
            at=_real(told["at"]),
            wait_ms=None if told["wait"] is None else _real(told["wait"]),
            took_ms=None if told["took"] is None else _real(told["took"]),
            recovered=_whole(told["recovered"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):  # another version's
        return None


def _k(told: Any) -> str:
    if not is_k(str(told)):
        raise ValueError("the entry names no batch")
    return str(told)


def _whole(told: Any) -> int:
    number = int(told)
    if not 0 <= number < MOST:
        raise ValueError(f"{number} is no count")
    return number


def _real(told: Any) -> float:
    number = float(told)
    if not abs(number) < MOST:  # nor is nan
        raise ValueError(f"{number} is neither a time nor a mean")
    return number


def _unanswered(queue: BatchQueue) -> list[BatchLine]:
    fields = ("status", "run", "id", "n", "created_at", "claimed_at", "node")
    with translate_errors("read the unanswered batches"):
        ks = [text(raw) for raw in queue.client.zrange(keys.pending(queue.queue), 0, MAX_UNANSWERED - 1)]
        with queue.client.pipeline(transaction=False) as pipe:
            for k in ks:
                pipe.hmget(keys.BatchKeys(k).state, *fields)
                pipe.hlen(keys.BatchKeys(k).verdicts)
            told = answers_of(pipe)
    found = []
    for k, raw, judged in zip(ks, told[::2], told[1::2], strict=True):
        if raw is None or judged is None or raw[0] is None or not is_k(k):
            continue
        state = {name: "" if value is None else text(value) for name, value in zip(fields, raw, strict=True)}
        if state["status"] == BatchStatus.DONE.value:
            continue
        created, claimed = natural(state["created_at"]), natural(state["claimed_at"])
        found.append(
            BatchLine(
                k=k,
                run=state["run"],
                id=state["id"],
                status=state["status"],
                n=natural(state["n"]),
                graded=int(judged),
                infra=0,
                zeros=0,
                mean_reward=None,
                codes={},
                nodes=(state["node"],) if state["node"] else (),
                at=created / 1000,
                wait_ms=float(max(0, claimed - created)) if claimed else None,
                took_ms=None,
                recovered=0,
            )
        )
    return found
