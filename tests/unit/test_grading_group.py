"""How a group is run: order, threads, skips, stops, failures; against an executor that answers in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.errors import AmbiguousError, CollimateError
from collimate_rl.grading.calls import total_s
from collimate_rl.grading.execute import ExecRequest, Role
from collimate_rl.grading.group import Graded, grade_group
from collimate_rl.grading.result import GradeResult, SpecFault
from collimate_rl.grading.run import side_by_side
from collimate_rl.guest.codec import decode, dumps, encode
from collimate_rl.sandbox import ExecResult
from collimate_rl.specs import PropertyReward, StdioReward, UnitTestReward

Answer = Callable[[str, tuple[Any, ...]], Any]
SPEC = UnitTestReward([{"input": n, "expected": 2 * n} for n in range(1, 5)])
PROPERTY = PropertyReward("    return 2 * x", "random.random()", k=2)


def right(code: str, arguments: tuple[Any, ...]) -> Any:
    return 2 * arguments[0]


class FakeExecutor:
    """Answers runner jobs with what `answer(code, arguments)` gives, judge jobs with fixed cases."""

    def __init__(self, answer: Answer = right) -> None:
        self.answer = answer
        self.requests: list[tuple[Role, int | None, ExecRequest]] = []
        self.stdout: str | None = None
        self.exit_code = 0

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        self.requests.append((role, index, request))
        stdout = self.stdout
        if stdout is None:
            job = json.loads(dict(request.files)["collimate-job.json"])
            body = self._cases(job) if role == "judge" else self._calls(job)
            stdout = f"noise\n{job['mark']} begin\n{body}{job['mark']} end\n"
        return ExecResult(
            stdout, "", self.exit_code, 1.0, 2.0, 3.0, request.seed or "ee" * 32, "off", {"stdout": stdout}
        )

    def _cases(self, job: dict[str, Any]) -> str:
        return "".join(dumps([n, 2 * n]) + "\n" for n in range(job["k"]))

    def _calls(self, job: dict[str, Any]) -> str:
        values = [self.answer(job["code"], decode(op["a"])) for op in job["ops"]]
        lines = [dumps({"v": encode(value, job["value_bytes"])}) for value in values]
        header = {"load": ["v", 0.1], "cases": [["v", 0.1]] * len(lines), "tail": "", "seen": 0, "lost": False}
        return "\n".join([dumps(header), "null", *lines, ""])


def rewards(graded: list[Graded | None]) -> list[float | str | None]:
    return [
        g.reward if isinstance(g, GradeResult) else g.error_code if isinstance(g, CollimateError) else None
        for g in graded
    ]


def test_results_are_in_order_and_fractions() -> None:
    def answer(code: str, arguments: tuple[Any, ...]) -> Any:
        return 2 * arguments[0] if arguments[0] > int(code) else None

    graded = grade_group(FakeExecutor(answer), SPEC, ["0", "1", "2", "3", "4", ""], seeds=[None] * 6)
    assert rewards(graded) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    [first, _, _, _, last, empty] = [g for g in graded if isinstance(g, GradeResult)]
    assert (first.outcome, first.detail, first.seed, first.exit_code, first.exec_time_ms) == (
        "passed",
        None,
        "ee" * 32,
        0,
        2.0,
    )
    assert (last.outcome, last.detail) == ("wrong_answer", "case 1 of 4: wrong_answer: returned None")
    assert empty.outcome == "no_code"


def test_every_candidate_is_announced_once_and_skips_are_not() -> None:
    announced: dict[int, Graded] = {}
    graded = grade_group(
        FakeExecutor(), SPEC, ["a"] * 8, seeds=[None] * 8, skip={2, 5}, on_grade=lambda i, g: announced.update({i: g})
    )
    assert sorted(announced) == [0, 1, 3, 4, 6, 7]
    assert [i for i, g in enumerate(graded) if g is None] == [2, 5]


def test_infra_failures_are_objects_in_place() -> None:
    class Flaky(FakeExecutor):
        def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
            if index == 1:
                raise AmbiguousError("the line went dead")
            return super().run(request, role=role, index=index)

    assert rewards(grade_group(Flaky(), SPEC, ["a"] * 3, seeds=[None] * 3)) == [1.0, "ambiguous", 1.0]


def test_a_bad_seed_fails_its_candidate_before_anything_is_sent() -> None:
    execute = FakeExecutor()
    assert rewards(grade_group(execute, SPEC, ["a", "b"], seeds=["nonsense", "ab" * 32])) == ["invalid_seed", 1.0]
    assert [index for _, index, _ in execute.requests] == [1]


def test_code_beyond_all_measure_is_its_own_failure() -> None:
    execute = FakeExecutor()
    graded = grade_group(execute, SPEC, ["x" * (9 << 20), "a"], seeds=[None] * 2)
    assert rewards(graded) == [0.0, 1.0]
    assert [g.outcome for g in graded if isinstance(g, GradeResult)] == ["output_limit", "passed"]
    assert [index for _, index, _ in execute.requests] == [1]


def test_an_exception_of_on_grade_stops_the_group() -> None:
    execute = FakeExecutor()

    def enter(index: int, graded: Graded) -> None:
        raise KeyError("fenced")

    with pytest.raises(KeyError, match="fenced"):
        grade_group(execute, SPEC, ["a"] * 50, seeds=[None] * 50, concurrency=2, on_grade=enter)
    assert len(execute.requests) <= 4


def test_a_stop_before_the_start_runs_nothing() -> None:
    stop = threading.Event()
    stop.set()
    for spec in (SPEC, PROPERTY, StdioReward([{"stdin": "", "stdout": ""}])):
        execute = FakeExecutor()
        assert rewards(grade_group(execute, spec, ["a"] * 3, seeds=[None] * 3, stop=stop)) == [None] * 3
        assert execute.requests == []


def test_concurrency_is_a_bound() -> None:
    running, peak, lock = 0, 0, threading.Lock()
    met = threading.Barrier(3, timeout=30)

    class Counting(FakeExecutor):
        def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
            nonlocal running, peak
            with lock:
                running += 1
                peak = max(peak, running)
            met.wait()
            with lock:
                running -= 1
            return super().run(request, role=role, index=index)

    grade_group(Counting(), SPEC, ["a"] * 9, seeds=[None] * 9, concurrency=3)
    assert peak == 3


@pytest.mark.parametrize(
    "options",
    [
        {"seeds": [None]},
        {"timeout_seconds": 0},
        {"timeout_seconds": 3601},
        {"timeout_seconds": 1.5},
        {"timeout_seconds": True},
        {"concurrency": 0},
    ],
)
def test_bad_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        grade_group(FakeExecutor(), SPEC, ["a", "b"], **{"seeds": [None, None], **options})
    with pytest.raises(ValueError):
        grade_group(FakeExecutor(), SPEC, ["a", 5], seeds=[None, None])  # type: ignore[list-item]


def test_what_looks_like_candidates_and_a_spec_but_is_none() -> None:
    with pytest.raises(ValueError, match="one text"):
        grade_group(FakeExecutor(), SPEC, "ab", seeds=[None, None])
    row: Any = [{"input": 1, "expected": 2}]
    with pytest.raises(ValueError, match="list is no reward spec: reward_spec_from_ground_truth"):
        grade_group(FakeExecutor(), row, ["a"], seeds=[None])


def test_a_spec_that_is_no_data_is_the_specs_fault() -> None:
    spec = UnitTestReward([{"input": 1, "expected": object()}])
    with pytest.raises(SpecFault, match="can't be given to a sandbox"):
        grade_group(FakeExecutor(), spec, ["a"], seeds=[None])
    spec = UnitTestReward([{"input": object(), "expected": 1}])
    with pytest.raises(SpecFault):
        grade_group(FakeExecutor(), spec, ["a"], seeds=[None])


@pytest.mark.parametrize(
    ("stdout", "exit_code", "outcome"),
    [
        ("", 0, "tampered"),
        ("1.0\n", 0, "tampered"),
        ("Killed\n", 137, "tampered"),
        ("timed out\n", -1, "timeout"),
    ],
)
def test_an_answer_without_a_frame(stdout: str, exit_code: int, outcome: str) -> None:
    execute = FakeExecutor()
    execute.stdout, execute.exit_code = stdout, exit_code
    for spec in (SPEC, StdioReward([{"stdin": "", "stdout": ""}])):
        [graded] = grade_group(execute, spec, ["a"], seeds=[None])
        assert isinstance(graded, GradeResult)
        assert (graded.reward, graded.outcome, graded.infra_error) == (0.0, outcome, False)


@pytest.mark.parametrize(
    "line", ['{"v":["zz"]}', '{"v":1', '{"v":1,"u":[]}', '{"x":1}', "null", "[", '{"v":["h",0,"int"]}']
)
def test_a_frame_that_is_none_is_tampering(line: str) -> None:
    class Forging(FakeExecutor):
        def _calls(self, job: dict[str, Any]) -> str:
            header = {"load": ["v", 0.1], "cases": [["v", 0.1]] * 4, "tail": "", "seen": 0, "lost": False}
            return "\n".join([dumps(header), "null", *[line] * 4, ""])

    [graded] = grade_group(Forging(), SPEC, ["a"], seeds=[None])
    assert isinstance(graded, GradeResult)
    assert (graded.reward, graded.outcome) == (0.0, "tampered")


@pytest.mark.parametrize(
    ("kind", "line", "outcome"),
    [
        ("v", '{"v":["a","<i8",[],"abc"]}', "tampered"),
        ("v", '{"v":["i","--4"]}', "tampered"),
        ("v", '{"v":["e",["D","1E+9999999"]]}', "wrong_answer"),
        ("v", '{"v":%s}' % ("[" * 100_000), "tampered"),
        ("x", '{"x":["x",["E"],["t"]],"at":1e999}', "tampered"),
        ("x", '{"x":["x",["E"],["t"]],"at":' + "9" * 5000 + "}", "tampered"),
        ("x", '{"x":["x",{"0":1},["t"]]}', "tampered"),
        ("x", '{"x":["x",["\\ud800\\u001b[2J"],["t","\\udfff"]],"at":1}', "runtime_error"),
        ("o", '"\x1b]0;title\x07"', "unencodable"),
    ],
)
def test_no_frame_is_more_than_its_senders_failure(kind: str, line: str, outcome: str) -> None:
    class Forging(FakeExecutor):
        def _calls(self, job: dict[str, Any]) -> str:
            header = {"load": ["v", 0.1], "cases": [[kind, 0.1]] * 4, "tail": "", "seen": 0, "lost": False}
            return "\n".join([dumps(header), "null", *[line] * 4, ""])

    for rules in ({}, {"compare": "json"}, {"tolerance": 0.5}, {"unordered": True}):
        for expected in (4, {4}, [4], {4: 4}, {"4": 4}, 4j):
            spec = UnitTestReward([{"input": 1, "expected": expected}] * 4, **rules)
            [graded] = grade_group(Forging(), spec, ["a"], seeds=[None])
            assert isinstance(graded, GradeResult)
            assert (graded.reward, graded.outcome) == (0.0, outcome)
            assert graded.detail is not None
            assert graded.detail.isprintable()


@pytest.mark.parametrize("parsed", [float("nan"), float("inf"), 1.5, -0.1, 10**400, "huge", None, "1.0", [1.0]])
def test_what_parse_gives_is_a_number_from_0_to_1_or_nothing(parsed: Any) -> None:
    if parsed == "huge":
        parsed = 10**5000  # which has no repr

    class Wild(UnitTestReward):
        def parse(self, stdout: str) -> float:
            return parsed  # type: ignore[no-any-return]

    execute = FakeExecutor()
    execute.stdout = ""
    [graded] = grade_group(execute, Wild(SPEC.tests), ["a"], seeds=[None])
    assert isinstance(graded, GradeResult)
    assert (graded.reward, graded.outcome) == (0.0, "tampered")


def test_limits_grow_with_what_is_expected() -> None:
    def limits(*expected: Any) -> tuple[int, int]:
        execute = FakeExecutor(lambda code, arguments: expected[arguments[0]])
        spec = UnitTestReward([{"input": n, "expected": each} for n, each in enumerate(expected)])
        assert rewards(grade_group(execute, spec, ["a"], seeds=[None])) == [1.0]
        job = json.loads(execute.requests[0][2].files[0][1])
        return job["value_bytes"], job["all_bytes"]

    assert limits(1, 2) == (1 << 20, 8 << 20)
    assert limits(list(range(200_000)))[0] == 14 << 20
    assert limits(*["x" * 2_000_000] * 6) == (14 << 20, 14 << 20)
    with pytest.raises(SpecFault, match="max_cases"):
        limits(*["x" * 2_000_000] * 8)
    with pytest.raises(SpecFault, match="max_cases"):
        grade_group(FakeExecutor(), StdioReward([{"stdin": "", "stdout": "é" * 3_000_000}]), ["a"], seeds=[None])


def test_a_byte_order_mark_is_no_code() -> None:
    execute = FakeExecutor()
    grade_group(execute, SPEC, ["\ufeffa", "\ufeff"], seeds=[None] * 2)
    assert [json.loads(request.files[0][1])["code"] for _, _, request in execute.requests] == ["a"]


def test_an_account_for_people_holds_no_controls() -> None:
    from collimate_rl.cli.grade_command import account

    result = GradeResult(0.0, outcome="wrong_answer", detail="\x1b[2J\ud800", output_tail=b"a\tb\n\x1b]0;t\x07\xff\n")
    assert result.detail == "\\x1b[2J\\ud800"
    assert account(result).replace("\n", "").replace("\t", "").isprintable()
    assert "  a\tb\n  \\x1b]0;t\\x07\ufffd\n" in account(result) + "\n"


def test_a_failed_judge_fails_only_the_candidates_of_its_seed() -> None:
    class OneSeed(FakeExecutor):
        def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
            if role == "judge" and request.seed == "00" * 32:
                raise CollimateError("full", 503, "at_capacity")
            return super().run(request, role=role, index=index)

    seeds = ["00" * 32, "11" * 32, "00" * 32]
    assert rewards(grade_group(OneSeed(), PROPERTY, ["a"] * 3, seeds=seeds)) == ["at_capacity", 1.0, "at_capacity"]


def test_empty_candidates_of_a_property_need_no_judge() -> None:
    execute = FakeExecutor()
    assert rewards(grade_group(execute, PROPERTY, ["", "  "], seeds=[None, None])) == [0.0, 0.0]
    assert execute.requests == []


def test_max_cases_takes_the_first() -> None:
    execute = FakeExecutor()
    spec = UnitTestReward(SPEC.tests, max_cases=2)
    [graded] = grade_group(execute, spec, ["a"], seeds=[None])
    assert isinstance(graded, GradeResult)
    assert graded.cases_total == 2
    grade_group(execute, PropertyReward("    return x", "1", k=9, max_cases=3), ["a"], seeds=[None])
    judge = next(request for role, _, request in execute.requests if role == "judge")
    assert json.loads(judge.files[0][1])["k"] == 3


def test_named_execs_are_the_same_again() -> None:
    def jobs(prefix: str | None) -> list[Any]:
        execute = FakeExecutor()
        grade_group(execute, SPEC, ["a", "b"], seeds=[None] * 2, concurrency=1, exec_prefix=prefix)
        return [json.loads(request.files[0][1]) for _, _, request in execute.requests]

    names = [job["id"].rpartition("-") for job in jobs("k1")]
    assert [name[0] for name in names] == ["k1-0-0", "k1-1-0"]
    assert names[0][2] != names[1][2]  # another candidate is another exec
    assert [job["id"] for job in jobs(None)] == [None, None]
    first, again = jobs("k1")[0], jobs("k1")[0]
    assert first.pop("mark") != again.pop("mark")
    assert first == again


@pytest.mark.parametrize("timeout", [1, 2, 10, 30, 3600])
def test_the_runner_answers_before_the_limit(timeout: int) -> None:
    assert 0.85 * timeout <= total_s(timeout) < timeout


def test_side_by_side_raises_what_one_item_raised() -> None:
    seen: list[int] = []

    def work(item: int) -> None:
        seen.append(item)
        if item == 1:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        side_by_side(work, range(100), 1)
    assert seen == [0, 1]
