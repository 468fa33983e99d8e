"""What was graded then: read from a line of results, or put together from a batch and its answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collimate_rl.formats import extract_code, reward_spec_from_ground_truth
from collimate_rl.protocol import BatchResult, GradeBatch, Verdict
from collimate_rl.protocol.bounds import VERSION
from collimate_rl.protocol.manifest import Manifest, manifest_of, spec_sha256, text_sha256


class CannotReplay(Exception):
    """There is no way to run it again as it was; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Then:
    """One candidate's answer as it was given."""

    index: int
    reward: float | None
    outcome: str | None
    error_code: str | None = None
    detail: str | None = None
    cases: tuple[str, ...] = ()
    """Outcomes of the first 256 of `cases_total`."""
    cases_total: int = 0
    cases_passed: int = 0
    seed: str | None = None
    grader_version: str = ""
    python: str = ""
    flags: tuple[str, ...] = ()
    manifest: Manifest | None = None
    """Where the answer came with a batch."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A batch that was answered: `spec` is its wire form, `cases` what its judge fork had made, where that is kept."""

    name: str
    template: str
    spec: Mapping[str, Any]
    candidates: tuple[str, ...]
    seeds: tuple[str | None, ...]
    answers: tuple[Then, ...]
    timeout_seconds: int = 30
    case_timeout_s: float | None = None
    egress: Mapping[str, Any] | None = None
    cases: bytes | None = None


def from_queue(batch: GradeBatch, result: BatchResult, cases: bytes | None) -> Recorded:
    """A batch as the queue keeps it."""
    return Recorded(
        name=f"{batch.run}/{batch.id}",
        template=batch.template,
        spec=json.loads(batch.spec),
        candidates=batch.candidates,
        seeds=batch.seeds,
        answers=tuple(_then(verdict, manifest_of(batch, verdict)) for verdict in result.results),
        timeout_seconds=batch.timeout_seconds,
        case_timeout_s=batch.case_timeout_s,
        egress=batch.egress,
        cases=cases,
    )


def _then(verdict: Verdict, manifest: Manifest) -> Then:
    return Then(
        index=verdict.index,
        reward=verdict.reward,
        outcome=verdict.outcome,
        error_code=verdict.error_code,
        detail=verdict.detail,
        cases=tuple(case.outcome for case in verdict.cases or ()),
        cases_total=verdict.cases_total,
        cases_passed=verdict.cases_passed,
        seed=verdict.seed or None,
        grader_version=verdict.grader_version,
        python=verdict.python,
        flags=verdict.flags,
        manifest=manifest,
    )


def batch_named(line: Mapping[str, Any]) -> tuple[str, int, str] | None:
    """(run, epoch, id) of the batch that a line of results is about; None where no queue took part."""
    batch = _batch_of(line)
    run, epoch, id = batch.get("run"), batch.get("epoch", 0), batch.get("id")
    return (run, epoch, id) if run and id and isinstance(epoch, int) else None


def from_line(line: Mapping[str, Any], rows: Iterable[str] | None = None) -> Recorded | None:
    """A line of results; None where it has no inputs and `rows`, lines of the file that was graded, don't either.

    Raises `CannotReplay` for what is no line of results, or inputs other than those that were graded.
    """
    batch = _batch_of(line)
    inputs = batch.get("inputs")
    if inputs is None and rows is not None:
        inputs = _inputs_in(rows, batch)
    if inputs is None:
        return None
    try:
        candidates, spec = tuple(inputs["candidates"]), inputs["spec"]
        hashes = [text_sha256(code) for code in candidates]
        if hashes != batch["candidates_sha256"] or spec_sha256(json.dumps(spec)) != batch["spec_sha256"]:
            raise CannotReplay("the line's candidates or spec are not those that its hashes are of: it was edited")
        answers = tuple(_answer(n, each) for n, each in enumerate(_results_of(line)))
        return Recorded(
            name=_name(batch),
            template=batch["template"],
            spec=spec,
            candidates=candidates,
            seeds=tuple(answer.seed for answer in answers),
            answers=answers,
            timeout_seconds=batch["timeout_seconds"],
            case_timeout_s=batch.get("case_timeout_s"),
            egress=batch.get("egress"),
        )
    except (KeyError, TypeError, AttributeError) as fault:
        raise CannotReplay(f"the line of results lacks something, or has it in another shape: {fault}") from fault


def _batch_of(line: Mapping[str, Any]) -> Mapping[str, Any]:
    if "error" in line:
        raise CannotReplay(f"this line was never graded: {line['error']}")
    batch = line.get("batch")
    if not isinstance(batch, dict) or not isinstance(_results_of(line), list):
        raise CannotReplay(
            'this is no line of results: it has no "results" and "batch", as `python -m producer submit` and '
            "`collimate grade --json` write them"
        )
    if batch.get("protocol", VERSION) != VERSION:
        raise CannotReplay(f"it was written under protocol {batch['protocol']}, and this is {VERSION}")
    return batch


def _results_of(line: Mapping[str, Any]) -> Any:
    """The answers: a list of them, or the line itself, as of one candidate."""
    return [line] if "results" not in line and "reward" in line else line.get("results")


def _name(batch: Mapping[str, Any]) -> str:
    return f"{batch['run']}/{batch['id']}" if batch.get("run") else str(batch.get("id") or "the line")


def _answer(index: int, told: Mapping[str, Any]) -> Then:
    return Then(
        index=index,
        reward=told["reward"],
        outcome=told.get("outcome"),
        error_code=told.get("error_code"),
        detail=told.get("detail"),
        cases=tuple(case["outcome"] for case in told.get("cases") or ()),
        cases_total=told.get("cases_total", 0),
        cases_passed=told.get("cases_passed", 0),
        seed=told.get("seed") or None,
        grader_version=told.get("grader_version") or "",
        python=told.get("python") or "",
        flags=tuple(told.get("flags") or ()),
    )


def _inputs_in(rows: Iterable[str], batch: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of a file of rows that this batch was made of, told by its hashes."""
    for text in rows:
        try:
            row = json.loads(text)
            entry = row.get("entry", "solve")
            spec = reward_spec_from_ground_truth(row["ground_truth"], entry=entry)
            called = getattr(spec, "entry", None) or entry
            codes = [extract_code(one, entry=called) for one in row["completions"]]
            wire = spec.to_wire()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # a row that could not be graded either
        same = [text_sha256(code) for code in codes] == batch.get("candidates_sha256")
        if same and spec_sha256(json.dumps(wire)) == batch.get("spec_sha256"):
            return {"spec": wire, "candidates": codes}
    return None
