"""What travels: a batch going out, a verdict per candidate, a result coming back (messages, version 1).

Values are checked when built: a message that exists is sound. Wrong values are `ValueError`s that name the field;
the codec turns these into `BadMessage` where bytes came from outside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from collimate_rl.protocol import bounds, codes
from collimate_rl.protocol.bounds import check_int, check_name, check_seconds, check_seed


def _text(what: str, value: object, limit: int = 1024) -> None:
    if not isinstance(value, str) or len(value.encode("utf-8", "surrogatepass")) > limit:
        raise ValueError(f"{what} is not a text of at most {limit:,} bytes")


def _bytes(what: str, value: object, limit: int) -> None:
    if not isinstance(value, bytes) or len(value) > limit:
        raise ValueError(f"{what} is not bytes, at most {limit:,}")


def _member(what: str, value: object, allowed: frozenset[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} {value!r} is none of {', '.join(sorted(allowed))}")


@dataclass(frozen=True, kw_only=True)
class GradeBatch:
    """One GRPO group: K candidates for one prompt, one spec, one set of limits. Identity is (run, epoch, id)."""

    run: str
    id: str
    producer: str
    epoch: int = 0
    template: str
    candidates: tuple[str, ...]
    """Extracted code, in the group's order."""
    spec: str
    """JSON text of `spec.to_wire()`."""
    seeds: tuple[str | None, ...]
    """One per candidate, drawn at submit where the mode draws."""
    seed_mode: str = "vanilla"
    base_seed: str | None = None
    timeout_seconds: int = 30
    case_timeout_s: float | None = None
    egress: Mapping[str, Any] | None = None
    recovery: str = "auto"
    deadline_s: float = bounds.DEFAULT_DEADLINE_S
    """From submit, counted by the server's clock."""
    submitted_at: float = 0.0
    """The producer's clock (Unix seconds), for people."""
    tags: Mapping[str, str] = field(default_factory=dict)
    cache: bool = False
    """Verdicts of this run may be used again for the same candidate, and these be kept for that."""

    def __post_init__(self) -> None:
        for what in ("run", "id", "producer"):
            check_name(what, getattr(self, what))
        check_int("epoch", self.epoch, 0, 2**53)
        _text("template", self.template)
        if not self.template:
            raise ValueError("template is empty: name the template that the candidates run in")
        object.__setattr__(self, "candidates", tuple(self.candidates))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        self._check_candidates()
        self._check_spec()
        self._check_seeds()
        check_int("timeout_seconds", self.timeout_seconds, 1, bounds.MAX_TIMEOUT_S)
        if self.case_timeout_s is not None:
            high = float(bounds.MAX_TIMEOUT_S)
            object.__setattr__(self, "case_timeout_s", check_seconds("case_timeout_s", self.case_timeout_s, high=high))
        if self.egress is not None:
            _check_egress(self.egress)
        _member("recovery", self.recovery, codes.RECOVERIES)
        deadline = check_seconds("deadline_s", self.deadline_s, high=bounds.MAX_DEADLINE_S)
        object.__setattr__(self, "deadline_s", deadline)
        object.__setattr__(self, "submitted_at", _number("submitted_at", self.submitted_at))
        _check_tags(self.tags)
        if not isinstance(self.cache, bool):
            raise ValueError("cache is not a bool")

    def _check_candidates(self) -> None:
        count = len(self.candidates)
        if not 1 <= count <= bounds.MAX_CANDIDATES:
            raise ValueError(f"a batch has 1 to {bounds.MAX_CANDIDATES:,} candidates, not {count:,}")
        total = 0
        for index, code in enumerate(self.candidates):
            if not isinstance(code, str):
                raise ValueError(f"candidate {index} is a {type(code).__name__}: source text is needed")
            size = len(code.encode("utf-8", "surrogatepass"))
            if size > bounds.MAX_CANDIDATE_BYTES:
                raise ValueError(f"candidate {index} has {size:,} bytes, above {bounds.MAX_CANDIDATE_BYTES:,}")
            total += size
        if total + len(self.spec) > bounds.MAX_PAYLOAD_BYTES:
            raise ValueError(f"the batch has more than {bounds.MAX_PAYLOAD_BYTES:,} bytes: submit fewer candidates")

    def _check_spec(self) -> None:
        if not isinstance(self.spec, str):
            raise ValueError("spec is not a text: pass the JSON of spec.to_wire()")
        if len(self.spec.encode("utf-8", "surrogatepass")) > bounds.MAX_GROUND_TRUTH_BYTES:
            raise ValueError(f"the spec has more than {bounds.MAX_GROUND_TRUTH_BYTES:,} bytes")
        try:
            parsed = json.loads(self.spec)
        except (ValueError, RecursionError) as exc:
            raise ValueError(f"spec is not JSON: {exc}") from exc
        if not isinstance(parsed, dict) or not isinstance(parsed.get("type"), str):
            raise ValueError('spec is not the JSON of spec.to_wire(): an object with "type" is needed')

    def _check_seeds(self) -> None:
        _member("seed_mode", self.seed_mode, codes.SEED_MODES)
        if self.base_seed is not None:
            check_seed("base_seed", self.base_seed)
        if len(self.seeds) != len(self.candidates):
            raise ValueError(f"{len(self.seeds)} seeds for {len(self.candidates)} candidates: one each is needed")
        for index, seed in enumerate(self.seeds):
            if seed is not None:
                check_seed(f"seed {index}", seed)


def _number(what: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{what} {value!r} is not a finite number")
    return float(value)


def _check_egress(egress: object) -> None:
    try:
        sound = isinstance(egress, Mapping) and len(json.dumps(dict(egress))) <= 65536
    except (TypeError, ValueError) as exc:
        raise ValueError(f"egress is not plain data: {exc}") from exc
    if not sound:
        raise ValueError('egress is not an object such as {"mode": "none"} of at most 64 KiB')


def _check_tags(tags: object) -> None:
    if not isinstance(tags, Mapping) or len(tags) > bounds.MAX_TAGS:
        raise ValueError(f"tags are not a mapping of at most {bounds.MAX_TAGS} texts to texts")
    for key, value in tags.items():
        _text("a tag's name", key, bounds.MAX_TAG_BYTES)
        _text(f"tag {key!r}", value, bounds.MAX_TAG_BYTES)


@dataclass(frozen=True, kw_only=True)
class CaseReport:
    """One case of one candidate: what came of it and how long it took."""

    outcome: str
    ms: float

    def __post_init__(self) -> None:
        _member("a case's outcome", self.outcome, codes.OUTCOMES)
        object.__setattr__(self, "ms", _number("a case's ms", self.ms))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one candidate got: a reward with an outcome, or, when `infra_error`, a code and no reward."""

    index: int
    reward: float | None
    """0.0 to 1.0; None exactly when `infra_error`."""
    infra_error: bool = False
    error_code: str | None = None
    outcome: str | None = None
    cases: tuple[CaseReport, ...] | None = None
    """The first 256 at most; `cases_total` counts them all."""
    cases_total: int = 0
    cases_passed: int = 0
    integrity: str = "split"
    detail: str | None = None
    """For people, at most 4 KiB; never an expected value of a hidden test."""
    output_tail: bytes = b""
    """The end of the candidate's own prints, at most 4 KiB."""
    truncated: bool = False
    seed: str = ""
    """The seed that was used; empty where nothing ran."""
    seed_ack: str = ""
    session_id: str | None = None
    node: str = ""
    attempt: int = 0
    """The fence under which it was written."""
    fork_time_ms: float = 0.0
    exec_time_ms: float = 0.0
    judge_time_ms: float = 0.0
    queue_ms: float = 0.0
    started_ms: float | None = None
    """From its attempt's claim to the exec that ran it, by the worker's clock; None where that is not known."""
    judged_ms: float | None = None
    """From its attempt's claim to this verdict, by the worker's clock; None where that is not known."""
    recovered: str = "none"
    grader_version: str = ""
    flags: tuple[str, ...] = ()
    """What smells (`protocol.flags`), with no influence on the reward; a later worker may know more of them."""
    sdk: str = ""
    """The version of this package that judged."""
    python: str = ""
    """The version of the template's interpreter that ran the candidate."""

    def __post_init__(self) -> None:
        check_int("index", self.index, 0, bounds.MAX_CANDIDATES - 1)
        for what in ("infra_error", "truncated"):
            if not isinstance(getattr(self, what), bool):
                raise ValueError(f"{what} is not a bool")
        self._check_sides()
        if self.cases is not None:
            object.__setattr__(self, "cases", tuple(self.cases))
            if len(self.cases) > bounds.MAX_CASES:
                raise ValueError(f"more than {bounds.MAX_CASES} cases: keep the first ones")
        check_int("cases_total", self.cases_total, 0, 2**53)
        check_int("cases_passed", self.cases_passed, 0, self.cases_total)
        _member("integrity", self.integrity, codes.INTEGRITIES)
        if self.detail is not None:
            _text("detail", self.detail, bounds.MAX_DETAIL_BYTES)
        _bytes("output_tail", self.output_tail, bounds.MAX_OUTPUT_TAIL_BYTES)
        for what in ("seed", "seed_ack", "node", "grader_version", "sdk", "python"):
            _text(what, getattr(self, what))
        if self.session_id is not None:
            _text("session_id", self.session_id)
        check_int("attempt", self.attempt, 0, 2**53)
        for what in ("fork_time_ms", "exec_time_ms", "judge_time_ms", "queue_ms"):
            object.__setattr__(self, what, _number(what, getattr(self, what)))
        for what in ("started_ms", "judged_ms"):
            if getattr(self, what) is not None:
                object.__setattr__(self, what, _number(what, getattr(self, what)))
        _member("recovered", self.recovered, codes.RECOVERED)
        object.__setattr__(self, "flags", tuple(self.flags))
        if len(self.flags) > bounds.MAX_FLAGS:
            raise ValueError(f"more than {bounds.MAX_FLAGS} flags")
        for flag in self.flags:
            _text("a flag", flag)

    def _check_sides(self) -> None:
        if self.infra_error:
            if self.reward is not None or self.outcome is not None:
                raise ValueError("an infra-flagged answer has neither reward nor outcome")
            _text("error_code", self.error_code)
            if not self.error_code:
                raise ValueError("an infra-flagged answer needs an error_code")
            return
        if self.error_code is not None:
            raise ValueError("error_code goes with infra_error only")
        reward: object = self.reward
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not 0.0 <= reward <= 1.0:
            raise ValueError(f"reward {reward!r} is not a number from 0.0 to 1.0")
        object.__setattr__(self, "reward", float(reward))
        _member("outcome", self.outcome, codes.OUTCOMES)

    @property
    def is_misconfigured(self) -> bool:
        """True when the code says that the run is set up wrongly, so that no retry heals it."""
        return self.error_code in codes.MISCONFIGURED

    def as_json_data(self) -> dict[str, Any]:
        """Every field under its name on the wire, as plain JSON data; bytes that are no text are replaced."""
        data = asdict(self)
        data["output_tail"] = self.output_tail.decode("utf-8", "replace")
        data["flags"] = list(self.flags)
        data["cases"] = None if self.cases is None else [asdict(case) for case in self.cases]
        return data


def infra_verdict(index: int, code: str, detail: str | None = None, **fields: Any) -> Verdict:
    """An infra-flagged answer for candidate `index`; `detail` is clipped to its bound."""
    shown = None if detail is None else bounds.clip_text(detail)
    return Verdict(index=index, reward=None, infra_error=True, error_code=code, detail=shown, **fields)
