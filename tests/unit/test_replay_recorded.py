"""What `collimate replay` takes for a line of results, and how it shows what candidates wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collimate_rl.cli.replay_account import LINES_SHOWN, WIDTH, account, as_dict
from collimate_rl.grading.execute import ExecRequest
from collimate_rl.grading.frames import JOB
from collimate_rl.grading.result import CaseResult, GradeResult
from collimate_rl.protocol import BatchResult, CaseReport, ResultStatus, Verdict
from collimate_rl.protocol.manifest import group_record, manifest_of, record_of, spec_sha256
from collimate_rl.replay.again import Again, Listener
from collimate_rl.replay.recorded import CannotReplay, Recorded, Then, batch_named, from_line, from_queue
from collimate_rl.replay.views import CaseView
from collimate_rl.sandbox import ExecResult
from collimate_rl.specs import UnitTestReward
from tests.fixtures.queue_batches import make_batch

SEED = "ab" * 32
SPEC = UnitTestReward([{"input": 1, "expected": 2}])
CODE = "def solve(x): return 2"


def line(*, with_inputs: bool = True, **fields: Any) -> dict[str, Any]:
    record = group_record(
        template="py", spec=SPEC.to_wire(), candidates=[CODE], timeout_seconds=5, with_inputs=with_inputs
    )
    told = {"reward": 1.0, "outcome": "passed", "seed": SEED, "cases": [{"outcome": "passed", "ms": 1.0}]}
    return {"id": "a", "results": [{**told, "cases_total": 1, "cases_passed": 1}], "batch": record, **fields}


def test_a_line_with_inputs_stands_for_itself() -> None:
    found = from_line(line())
    assert found is not None
    assert (found.template, found.candidates, found.timeout_seconds) == ("py", (CODE,), 5)
    assert found.spec == SPEC.to_wire()
    [then] = found.answers
    assert (then.reward, then.outcome, then.cases, then.seed) == (1.0, "passed", ("passed",), SEED)


def test_one_result_is_a_line_too() -> None:
    told = line()
    found = from_line({**told["results"][0], "batch": told["batch"]})
    assert found is not None
    assert [then.reward for then in found.answers] == [1.0]


def test_rows_give_the_inputs_by_their_hashes() -> None:
    bare = line(with_inputs=False)
    assert from_line(bare) is None
    right = {"ground_truth": [{"input": 1, "expected": 2}], "completions": [f"```python\n{CODE}\n```"]}
    others = ["no JSON", "[]", "{}", json.dumps({**right, "completions": ["pass"]})]
    others.append(json.dumps({**right, "ground_truth": [{"input": 1, "expected": 3}]}))
    assert from_line(bare, others) is None
    found = from_line(bare, [*others, json.dumps(right)])
    assert found is not None
    assert found.candidates == (CODE,)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"line": 3, "error": "not JSON"}, "never graded"),
        ({"id": "a"}, "no line of results"),
        ({"id": "a", "results": []}, "no line of results"),
        (line(batch={"protocol": 99}), "protocol 99"),
        (line(batch={"inputs": {"spec": {}, "candidates": []}}), "lacks something"),
        (line(batch={"inputs": {"spec": {}, "candidates": [None]}}), "lacks something"),
        (line(results=[3]), "lacks something"),
    ],
)
def test_lines_that_are_none(told: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotReplay, match=why):
        from_line(told)


def test_inputs_that_were_edited_are_refused() -> None:
    for edit in (lambda i: i["candidates"].append("x"), lambda i: i["spec"].update(entry="other")):
        told = line()
        edit(told["batch"]["inputs"])
        with pytest.raises(CannotReplay, match="edited"):
            from_line(told)


def verdict(index: int, **fields: Any) -> Verdict:
    return Verdict(index=index, reward=1.0, outcome="passed", seed=SEED, grader_version="2+a", **fields)


def test_a_batch_of_the_queue_and_its_manifests() -> None:
    batch = make_batch(seeds=(None, "cd" * 32), case_timeout_s=2.5)
    answers = (
        verdict(0, node="n1", python="3.11.2", sdk="0.9.0", attempt=2, flags=("cached",)),
        verdict(1, cases=(CaseReport(outcome="passed", ms=1.0),), cases_total=1, cases_passed=1),
    )
    result = BatchResult(
        run=batch.run, id=batch.id, epoch=0, status=ResultStatus.GRADED, results=answers, submitted_at=0.0,
        claimed_at=None, finished_at=0.0, attempts=1, worker="",
    )  # fmt: skip
    recorded = from_queue(batch, result, b"cases")
    assert (recorded.name, recorded.case_timeout_s, recorded.cases) == (f"run/{batch.id}", 2.5, b"cases")
    assert recorded.answers[1].cases == ("passed",)
    first = manifest_of(batch, answers[0])
    assert recorded.answers[0].manifest == first
    assert (first.node, first.python, first.sdk, first.attempt, first.cached) == ("n1", "3.11.2", "0.9.0", 2, True)
    assert first.candidate_sha256 != manifest_of(batch, answers[1]).candidate_sha256
    assert first.spec_sha256 == spec_sha256(batch.spec)
    record = record_of(batch, with_inputs=False)
    assert record["candidates_sha256"][0] == first.candidate_sha256
    assert "inputs" not in record
    assert batch_named({"results": [], "batch": record}) == (batch.run, 0, batch.id)
    assert batch_named(line()) is None


HOSTILE = "\x1b[2J\x1b]0;title\x07[bold red]x[/]\r\u202eover\nit is the same\nthen      reward 1\x9b1m"


def again(then: Then, **fields: Any) -> Again:
    case = (CaseResult("wrong_answer", 1.0),)
    told = {"outcome": "wrong_answer", "cases": case, "cases_total": 1, "detail": HOSTILE, "seed": SEED}
    now = GradeResult(0.0, output_tail=HOSTILE.encode(), **{**told, **fields})
    return Again(then=then, now=now, spec=SPEC, listener=Listener(None))  # type: ignore[arg-type]


RECORDED = Recorded(name="r/b", template="py", spec={}, candidates=(CODE,), seeds=(None,), answers=())
THEN = Then(index=0, reward=0.0, outcome="wrong_answer", cases=("wrong_answer",), cases_total=1)


def test_what_a_candidate_wrote_moves_no_cursor_and_forges_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    view = CaseView(outcome="wrong_answer", ms=1.0, given=HOSTILE, expected="4", came="y" * 10_000 + "\n" * 500)
    monkeypatch.setattr("collimate_rl.replay.views.views_of", lambda _: [view])
    text = account(RECORDED, again(THEN))
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    lines = text.splitlines()
    assert lines.count("it is the same") == 1
    assert len([each for each in lines if each.startswith("then ")]) == 1
    assert max(map(len, lines)) < 4 * WIDTH
    assert len(lines) < 20 + 5 * LINES_SHOWN
    assert json.loads(json.dumps(as_dict(RECORDED, again(THEN))))["cases"][0]["given"] == HOSTILE


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (THEN, []),
        (Then(index=0, reward=0.5, outcome="wrong_answer", cases_total=1), ["reward: then 0.5, now 0.0"]),
        (Then(index=0, reward=0.0, outcome="timeout", cases_total=1), ["outcome: then timeout, now wrong_answer"]),
        (
            Then(index=0, reward=0.0, outcome="wrong_answer", cases=("timeout",), cases_total=1),
            ["case 1: then timeout, now wrong_answer"],
        ),
        (
            Then(index=0, reward=None, outcome=None, error_code="session_gone"),
            ["then session_gone and no verdict, now wrong_answer with reward 0.0"],
        ),
    ],
)
def test_differences(then: Then, words: list[str]) -> None:
    assert again(then).differences == words


class Scripted:
    """Answers each exec with a report of cases of these kinds."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    def run(self, request: ExecRequest, *, role: str, index: int | None) -> ExecResult:
        [(_, text)] = request.files
        mark, kinds = json.loads(text)["mark"], self.answers.pop(0)
        header = {"load": ["v", 1.0], "cases": [[kind, 1.0] for kind in kinds], "tail": "", "seen": 0}
        lines = [f"{mark} begin", json.dumps(header), *["null"] * (len(kinds) + 1), f"{mark} end ran", ""]
        return ExecResult(stdout="\n".join(lines), stderr="", exit_code=0)


@pytest.mark.parametrize(
    ("jobs", "answers", "ops", "kinds"),
    [
        ([("abc", True)], ["vvv"], "abc", "vvv"),
        ([("abc", True), ("bc", False)], ["t", "vd"], "abc", "tvd"),
        ([("abc", True), ("bc", False), ("abc", True)], ["t", "vv", "vvv"], "abc", "vvv"),
        ([("abc", True), ("bc", False), ("abc", True), ("c", False)], ["t", "vv", "vt", "v"], "abc", "vtv"),
        ([("abc", False), ("bc", False)], ["t", "vv"], "bc", "vv"),
    ],
)
def test_a_job_that_went_on_in_a_second_exec_is_one_job(
    jobs: list[tuple[str, bool]], answers: list[str], ops: str, kinds: str
) -> None:
    listener = Listener(Scripted(*answers))
    for number, (names, sole) in enumerate(jobs):
        job = json.dumps({"mark": f"mark{number}", "ops": list(names), "sole": sole})
        request = ExecRequest(code="", files=((JOB, job),), timeout_seconds=5)
        listener.run(request, role="runner", index=0)
    found = listener.last_run(0)
    assert found is not None
    job_found, report = found
    assert report is not None
    assert ("".join(job_found["ops"]), "".join(case.kind for case in report.cases)) == (ops, kinds)
    assert listener.last_run(1) is None
