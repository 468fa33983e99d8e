"""Grading by a property: a judge fork makes the inputs and the reference's answers, once per seed."""

from __future__ import annotations

import json
import zlib
from typing import Final, NamedTuple

from collimate_rl.errors import CollimateError
from collimate_rl.grading.calls import call_op, grade_calls, no_code
from collimate_rl.grading.frames import Ops, compose, framed_lines
from collimate_rl.grading.result import SpecFault
from collimate_rl.grading.run import Graded, GroupRun, Stopped, side_by_side
from collimate_rl.grading.unit import rules_of
from collimate_rl.guest.codec import BadTree, loads
from collimate_rl.seeds import fresh_seed
from collimate_rl.specs import PropertyReward
from collimate_rl.specs.options import Credit
from collimate_rl.specs.properties import reference_source
from collimate_rl.values import Expected

VALUE_BYTES: Final = 1 << 20
MIN_JUDGE_S: Final = 10
MAX_STORED: Final = 64 << 20


class Made(NamedTuple):
    """What a judge fork made for one seed: a JSON line `[input, expected]` per case, and its milliseconds."""

    lines: tuple[str, ...]
    ms: float


class Prepared(NamedTuple):
    """A seed's cases, ready for the runner and for comparing."""

    ops: Ops
    expected: tuple[Expected, ...]
    ms: float


def grade_property(run: GroupRun, spec: PropertyReward) -> None:
    """Grade every candidate on its seed's cases; candidates under one seed share them."""
    with_code = [index for index in run.pending if run.candidates[index].strip()]
    seeds, made = _cases(run, spec, with_code)
    ready = {seed: _prepared(spec, cases) for seed, cases in made.items() if isinstance(cases, Made)}

    def grade_one(index: int) -> Graded:
        if index not in seeds:
            return no_code(run.seeds[index])
        seed = seeds[index]
        failure = made.get(seed)
        if isinstance(failure, CollimateError):
            return failure
        if failure is None:
            raise Stopped
        cases = ready[seed]
        return grade_calls(
            run,
            index,
            entry=spec.entry,
            ops=cases.ops,
            expected=cases.expected,
            case_timeout_s=spec.case_timeout_s,
            seed=seed,
            judge_time_ms=cases.ms,
            credit=Credit(mode=spec.credit),
        )

    run.each(grade_one)


def _cases(
    run: GroupRun, spec: PropertyReward, indices: list[int]
) -> tuple[dict[int, str], dict[str, Made | CollimateError]]:
    """Each candidate's seed, and what there is for each seed: from the store, else made now and stored."""
    seeds: dict[int, str] = {}
    made: dict[str, Made | CollimateError] = {}
    stored = run.case_store.get() if run.case_store is not None else None
    if stored is not None:
        seeds, made = _unpack(stored)
    seeds = {index: run.seeds[index] or seeds.get(index) or fresh_seed() for index in indices}
    missing = sorted(set(seeds.values()) - made.keys())

    def make(seed: str) -> None:
        try:
            made[seed] = _judge(run, spec, seed)
        except CollimateError as error:
            made[seed] = error

    side_by_side(make, missing, run.concurrency)
    whole = {seed: cases for seed, cases in made.items() if isinstance(cases, Made)}
    if run.case_store is not None and stored is None and indices and whole.keys() >= set(seeds.values()):
        standing_seeds, standing = _unpack(run.case_store.put(_pack(seeds, whole)))
        seeds = {index: run.seeds[index] or standing_seeds.get(index, seed) for index, seed in seeds.items()}
        made.update(standing)
    return seeds, made


def _judge(run: GroupRun, spec: PropertyReward, seed: str) -> Made:
    """Run generator and reference in a fork of their own; what they do wrong is the spec's fault."""
    job = {
        "reference": reference_source(spec.reference),
        "generator": spec.generator.strip(),
        "k": min(spec.k, spec.max_cases or spec.k),
        "seed": seed,
        "value_bytes": VALUE_BYTES,
    }
    framed = compose("cases", job, timeout_seconds=max(MIN_JUDGE_S, run.timeout_seconds), seed=seed)
    answer = run.run(framed.request, role="judge", index=None)
    lines = framed_lines(answer.stdout, framed.mark)
    if lines is None:
        raise CollimateError(
            f"the fork that runs the property's generator and reference ended without an answer (exit code "
            f"{answer.exit_code}): they may need more than {framed.request.timeout_seconds} s or more memory",
            None,
            "judge_failed",
        )
    if lines and lines[-1].startswith("{"):
        raise SpecFault(f"the property can't be graded by: {json.loads(lines[-1])['fault']}")
    return Made(tuple(lines), answer.exec_time_ms)


def _prepared(spec: PropertyReward, made: Made) -> Prepared:
    rules = rules_of(spec.options())
    try:
        pairs = [loads(line) for line in made.lines]
        ops = Ops(call_op(spec.entry, ["t", given]) for given, _ in pairs)
        expected = tuple(Expected(wanted, rules) for _, wanted in pairs)
        for n, each in enumerate(expected):
            if not each.matches(each.text):
                raise SpecFault(
                    f"the reference would fail its own case {n}: what it gives (an iterator, or nan) equals nothing, "
                    'not even itself; compare="json" drains the one and forgives the other'
                )
        return Prepared(ops, expected, made.ms)
    except SpecFault:
        raise
    except (BadTree, TypeError, ValueError) as fault:
        raise SpecFault(f"the property's cases are no plain data: {fault}") from None


def _pack(seeds: dict[int, str], made: dict[str, Made]) -> bytes:
    table = {
        "seeds": list(seeds.items()),
        "made": {seed: [list(cases.lines), cases.ms] for seed, cases in made.items()},
    }
    return zlib.compress(json.dumps(table).encode())


def _unpack(blob: bytes) -> tuple[dict[int, str], dict[str, Made | CollimateError]]:
    reader = zlib.decompressobj()
    table = json.loads(reader.decompress(blob, MAX_STORED))
    return dict(table["seeds"]), {seed: Made(tuple(lines), ms) for seed, (lines, ms) in table["made"].items()}
