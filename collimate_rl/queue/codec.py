"""Messages as msgpack maps with string keys, `v` first.

Reading trusts nothing: bytes that are no message of ours are `BadMessage`, a `v` above ours is `UnknownVersion`
(some other reader may know it), and keys that are not known are ignored. Text where a lone surrogate may occur
travels as bytes, UTF-8 with surrogatepass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgpack

from collimate_rl.errors import BadMessage, UnknownVersion
from collimate_rl.protocol.bounds import (
    MAX_CANDIDATES,
    MAX_PAYLOAD_BYTES,
    MAX_VERDICT_BYTES,
    VERSION,
)
from collimate_rl.protocol.messages import CaseReport, GradeBatch, Verdict
from collimate_rl.protocol.results import BatchResult
from collimate_rl.protocol.story import parse_story, write_story

T = TypeVar("T")


class MsgpackSerializer:
    """rq's serializer for our queues; by dotted path `collimate_rl.queue.codec.MsgpackSerializer`.

    rq's default is pickle: whoever writes to the server would run code in the worker.
    """

    @staticmethod
    def dumps(obj: Any) -> bytes:
        return bytes(msgpack.packb(obj, use_bin_type=True))

    @staticmethod
    def loads(data: bytes) -> Any:
        return msgpack.unpackb(data, raw=False, strict_map_key=True)


def pack_batch(batch: GradeBatch) -> bytes:
    """A payload; `ValueError` when it is above 8 MiB."""
    payload = _pack(
        {
            "v": VERSION,
            "run": batch.run,
            "id": batch.id,
            "producer": batch.producer,
            "epoch": batch.epoch,
            "template": batch.template,
            "candidates": [code.encode("utf-8", "surrogatepass") for code in batch.candidates],
            "spec": batch.spec,
            "seeds": list(batch.seeds),
            "seed_mode": batch.seed_mode,
            "base_seed": batch.base_seed,
            "timeout_seconds": batch.timeout_seconds,
            "case_timeout_s": batch.case_timeout_s,
            "egress": None if batch.egress is None else dict(batch.egress),
            "recovery": batch.recovery,
            "deadline_s": batch.deadline_s,
            "submitted_at": batch.submitted_at,
            "tags": dict(batch.tags),
            # Readers of before know no such key; left out where it says nothing.
            **({"cache": True} if batch.cache else {}),
        }
    )
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"the batch has {len(payload):,} bytes, above {MAX_PAYLOAD_BYTES:,}: submit fewer candidates")
    return payload


def unpack_batch(payload: bytes) -> GradeBatch:
    """The batch in a payload; `BadMessage`, `UnknownVersion`."""
    fields = _message("batch", payload, MAX_PAYLOAD_BYTES)
    given = {
        name: fields[name]
        for name in (
            "run",
            "id",
            "producer",
            "epoch",
            "template",
            "spec",
            "seed_mode",
            "base_seed",
            "timeout_seconds",
            "case_timeout_s",
            "egress",
            "recovery",
            "deadline_s",
            "submitted_at",
            "tags",
            "cache",
        )
        if name in fields
    }
    candidates = _list("candidates", fields.get("candidates"))
    return _built(
        "batch",
        lambda: GradeBatch(
            candidates=tuple(_decoded(f"candidate {i}", raw) for i, raw in enumerate(candidates)),
            seeds=tuple(_list("seeds", fields.get("seeds"))),
            **given,
        ),
    )


def pack_verdict(verdict: Verdict) -> bytes:
    """One verdict. The same verdict gives the same bytes: the queue compares them."""
    return _pack(_verdict_map(verdict))


def unpack_verdict(blob: bytes) -> Verdict:
    """The verdict in a blob; `BadMessage`, `UnknownVersion`."""
    return _verdict(_message("verdict", blob, MAX_VERDICT_BYTES))


def pack_result(result: BatchResult) -> bytes:
    """One result. On the queue the server writes it itself (`scripts/answer.lua`), to the same form."""
    return _pack(
        {
            "v": VERSION,
            "run": result.run,
            "id": result.id,
            "epoch": result.epoch,
            "status": result.status.value,
            "results": [_verdict_map(v) for v in result.results],
            "submitted_at": result.submitted_at,
            "queued_at": result.queued_at,
            "story": write_story(result.story),
            "claimed_at": result.claimed_at,
            "finished_at": result.finished_at,
            "attempts": result.attempts,
            "worker": result.worker,
        }
    )


def unpack_result(blob: bytes) -> BatchResult:
    """The result in a blob; `BadMessage`, `UnknownVersion`."""
    fields = _message("result", blob, MAX_CANDIDATES * MAX_VERDICT_BYTES)
    verdicts = [_verdict(_checked("verdict", v)) for v in _list("results", fields.get("results"))]
    names = ("run", "id", "epoch", "status", "submitted_at", "claimed_at", "finished_at", "attempts", "worker")
    told, queued_at = fields.get("story"), fields.get("queued_at")
    return _built(
        "result",
        lambda: BatchResult(
            results=tuple(verdicts),
            story=parse_story(told) if isinstance(told, str) else (),
            queued_at=queued_at if isinstance(queued_at, float) else None,
            **{name: fields[name] for name in names},
        ),
    )


def _verdict_map(verdict: Verdict) -> dict[str, Any]:
    return {
        "v": VERSION,
        "index": verdict.index,
        "reward": verdict.reward,
        "infra_error": verdict.infra_error,
        "error_code": verdict.error_code,
        "outcome": verdict.outcome,
        "cases": None if verdict.cases is None else [{"outcome": c.outcome, "ms": c.ms} for c in verdict.cases],
        "cases_total": verdict.cases_total,
        "cases_passed": verdict.cases_passed,
        "integrity": verdict.integrity,
        "detail": verdict.detail,
        "output_tail": verdict.output_tail,
        "truncated": verdict.truncated,
        "seed": verdict.seed,
        "seed_ack": verdict.seed_ack,
        "session_id": verdict.session_id,
        "node": verdict.node,
        "attempt": verdict.attempt,
        "fork_time_ms": verdict.fork_time_ms,
        "exec_time_ms": verdict.exec_time_ms,
        "judge_time_ms": verdict.judge_time_ms,
        "queue_ms": verdict.queue_ms,
        "started_ms": verdict.started_ms,
        "judged_ms": verdict.judged_ms,
        "recovered": verdict.recovered,
        "grader_version": verdict.grader_version,
        "flags": list(verdict.flags),
        "sdk": verdict.sdk,
        "python": verdict.python,
    }


_VERDICT_NAMES = tuple(
    name for name in Verdict.__dataclass_fields__ if name not in ("cases", "flags", "index", "reward", "infra_error")
)


def _verdict(fields: Mapping[str, Any]) -> Verdict:
    def build() -> Verdict:
        cases = fields.get("cases")
        return Verdict(
            index=fields["index"],
            reward=fields.get("reward"),
            infra_error=fields["infra_error"],
            cases=None if cases is None else tuple(_case(case) for case in _list("cases", cases)),
            flags=tuple(_list("flags", fields.get("flags", []))),
            **{name: fields[name] for name in _VERDICT_NAMES if name in fields},
        )

    return _built("verdict", build)


def _case(case: object) -> CaseReport:
    if not isinstance(case, dict):
        raise ValueError("a case is no map")
    return CaseReport(outcome=case.get("outcome"), ms=case.get("ms"))  # type: ignore[arg-type]


def _pack(message: dict[str, Any]) -> bytes:
    try:
        return bytes(msgpack.packb(message, use_bin_type=True, unicode_errors="surrogatepass"))
    except (TypeError, OverflowError, ValueError) as exc:
        raise ValueError(f"the message cannot be packed: {exc}") from exc


def _message(what: str, raw: object, limit: int) -> Mapping[str, Any]:
    if not isinstance(raw, bytes):
        raise BadMessage(f"a {what} must be bytes, not {type(raw).__name__}")
    if len(raw) > limit:
        raise BadMessage(f"a {what} of {len(raw):,} bytes is above the limit of {limit:,}")
    try:
        message = msgpack.unpackb(
            raw, raw=False, strict_map_key=True, unicode_errors="surrogatepass", timestamp=0, max_ext_len=0
        )
    # msgpack's own errors (ExtraData, FormatError, StackError, OutOfData) are ValueErrors; the rest is what hostile
    # bytes make of its arguments (a map key that cannot be hashed, nesting).
    except (ValueError, TypeError, RecursionError, OverflowError) as exc:
        raise BadMessage(f"the {what} is not a msgpack message: {type(exc).__name__}") from exc
    return _checked(what, message)


def _checked(what: str, message: object) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise BadMessage(f"the {what} is a {type(message).__name__}, not a map")
    version = message.get("v")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BadMessage(f"the {what} has no version: v is {version!r}")
    if version > VERSION:
        raise UnknownVersion(f"the {what} is of version {version}, and this program reads up to {VERSION}")
    return message


def _built(what: str, build: Callable[[], T]) -> T:
    try:
        return build()
    except BadMessage:
        raise
    except KeyError as exc:
        raise BadMessage(f"the {what} lacks {exc}") from exc
    except (ValueError, TypeError, AttributeError) as exc:
        raise BadMessage(f"the {what} is off: {exc}") from exc


def _list(what: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise BadMessage(f"{what} is a {type(value).__name__}, not a list")
    return value


def _decoded(what: str, raw: object) -> str:
    if not isinstance(raw, bytes):
        raise ValueError(f"{what} is a {type(raw).__name__}, not bytes")
    return raw.decode("utf-8", "surrogatepass")
