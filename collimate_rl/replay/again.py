"""Grades a recorded candidate once more, and keeps what passed between grader and sandboxes."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from collimate_rl.errors import CollimateError
from collimate_rl.grading.execute import ExecRequest, Executor, OneShotExecutor, Role
from collimate_rl.grading.frames import JOB, Report, read_report
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.losses import LossWitness
from collimate_rl.grading.result import GradeResult
from collimate_rl.replay.recorded import Recorded, Then
from collimate_rl.sandbox import ExecResult
from collimate_rl.specs import AssertReward, RewardSpec, spec_from_wire
from collimate_rl.transport import SessionClient


class Passed(NamedTuple):
    """One exec: whose, what was asked, what came."""

    role: Role
    candidate: int | None
    job: Mapping[str, Any]
    """The guest program's job; empty where there was none."""
    answer: ExecResult


class Listener:
    """An executor that hands on to another and keeps what passed."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.passed: list[Passed] = []

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        answer = self._inner.run(request, role=role, index=index)
        job: Mapping[str, Any] = next((json.loads(content) for path, content in request.files if path == JOB), {})
        with self._lock:
            self.passed.append(Passed(role, index, job, answer))
        return answer

    def last_run(self, index: int) -> tuple[Mapping[str, Any], Report | None] | None:
        """The candidate's last job and what its runner reported; None where none ran.

        A job whose calls went on in a second exec, behind the end of its first process, is one job.
        """
        runs = [each for each in self.passed if each.role == "runner" and each.candidate == index and "ops" in each.job]
        if not runs:
            return None
        last, report = runs[-1].job, _report(runs[-1])
        if len(runs) > 1 and report is not None and _goes_on(runs[-2].job, last):
            first = _report(runs[-2])
            if first is not None:
                cases = report.cases if report.load.kind == "v" else (report.load,) * len(last["ops"])
                return runs[-2].job, replace(report, load=first.load, cases=(*first.cases, *cases))
        return last, report


def _report(run: Passed) -> Report | None:
    return read_report(run.answer.stdout, run.job["mark"], len(run.job["ops"]))


def _goes_on(first: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether the later job is the rest of the first one."""
    done = len(first["ops"]) - len(later["ops"])
    return bool(first.get("sole")) and not later.get("sole") and done > 0 and first["ops"][done:] == later["ops"]


class KeptCases:
    """A case store that holds what a batch's judge fork had made, and takes nothing."""

    def __init__(self, blob: bytes | None) -> None:
        self.blob = blob

    def get(self) -> bytes | None:
        return self.blob

    def put(self, blob: bytes) -> bytes:
        return self.blob if self.blob is not None else blob


@dataclass(frozen=True, kw_only=True)
class Again:
    """One candidate graded again. `listener` has its execs; `detailed` those of a second grading, assert by assert."""

    then: Then
    now: GradeResult
    spec: RewardSpec
    listener: Listener
    detailed: tuple[GradeResult, Listener] | None = None
    kept: bytes | None = None
    """What a judge fork had made for the batch, where it was used again."""

    @property
    def differences(self) -> list[str]:
        """What is not as it was, in words; empty when reward, outcome and the outcome of every case are the same."""
        found = []
        if self.then.error_code is not None:
            return [f"then {self.then.error_code} and no verdict, now {self.now.outcome} with reward {self.now.reward}"]
        for what in ("reward", "outcome", "cases_total", "cases_passed"):
            was, came = getattr(self.then, what), getattr(self.now, what)
            if was != came:
                found.append(f"{what}: then {was}, now {came}")
        came_to = tuple(case.outcome for case in self.now.cases)
        if self.then.cases and self.then.cases_total == self.now.cases_total:
            pairs = zip(self.then.cases, came_to, strict=False)
            found += [f"case {n}: then {was}, now {came}" for n, (was, came) in enumerate(pairs, 1) if was != came]
        return found


def spec_of(recorded: Recorded) -> RewardSpec:
    """The spec as it judged. ValueError when this package knows none such."""
    spec = spec_from_wire(recorded.spec)
    if recorded.case_timeout_s is not None and hasattr(spec, "case_timeout_s"):
        spec = cast(RewardSpec, replace(cast(Any, spec), case_timeout_s=recorded.case_timeout_s))
    return spec


def grade_again(client: SessionClient, recorded: Recorded, index: int, *, details: bool = True) -> Again:
    """Grade candidate `index` under the seed, limits and cases of then.

    `details`: where a test is one case, grade it a second time assert by assert, for its account only. CollimateError
    when the infrastructure fails, ValueError when the spec is at fault.
    """
    spec, then = spec_of(recorded), recorded.answers[index]
    now, listener = _graded(client, recorded, index, spec)
    detailed = None
    if details and isinstance(spec, AssertReward) and not spec.per_assert and now.outcome not in ("passed", "no_code"):
        by_assert = replace(spec, per_assert=True)
        detailed = _graded(client, replace(recorded, cases=None), index, by_assert)
    return Again(then=then, now=now, spec=spec, listener=listener, detailed=detailed, kept=recorded.cases)


def _graded(client: SessionClient, recorded: Recorded, index: int, spec: RewardSpec) -> tuple[GradeResult, Listener]:
    one_shot = OneShotExecutor(client, recorded.template, egress=recorded.egress)
    listener = Listener(LossWitness(one_shot, client, recorded.template, egress=recorded.egress))
    seeds = list(recorded.seeds)
    seeds[index] = recorded.answers[index].seed or seeds[index]
    [graded] = grade_group(
        listener,
        spec,
        recorded.candidates,
        seeds=seeds,
        timeout_seconds=recorded.timeout_seconds,
        concurrency=1,
        skip=set(range(len(recorded.candidates))) - {index},
        case_store=KeptCases(recorded.cases),
    )[index : index + 1]
    if isinstance(graded, CollimateError):
        raise graded
    assert graded is not None
    return graded, listener
