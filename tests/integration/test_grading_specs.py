"""Specs against the real daemon: what honest candidates score, and what groups, seeds and sessions make of it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from collimate_rl import rewards
from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import Graded, grade_group
from collimate_rl.rewards import GradeResult, PropertyReward, SpecFault, StdioReward, UnitTestReward, grade, grade_batch
from collimate_rl.seeds import group_seeds
from collimate_rl.specs import RewardSpec, last_number
from tests.fixtures.recording import RecordingExecutor

CONTESTS = Path(__file__).parents[3] / "shared" / "data" / "code_contests.jsonl"
VOWELS = PropertyReward(
    reference="    return sum(c in 'aeiouAEIOU' for c in x)",
    generator="''.join(random.choice('abcdEIOUxyz') for _ in range(8))",
    k=16,
)
COUNTS_VOWELS = "def solve(x):\n    return sum(c in 'aeiouAEIOU' for c in x)\n"
DOUBLES = UnitTestReward(tests=[{"input": n, "expected": 2 * n} for n in range(1, 5)])


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


def test_the_thirty_second_tour(client: CollimateClient) -> None:
    result = grade(client, "dkr-python311", COUNTS_VOWELS, VOWELS, seed="ab" * 32)
    assert (result.reward, result.seed, result.seed_ack) == (1.0, "ab" * 32, "off")


def contest_rows() -> list[dict[str, Any]]:
    if not CONTESTS.exists():
        return []
    rows = [json.loads(line) for line in CONTESTS.read_text().splitlines()]
    return [row for row in rows if row.get("solution")]


@pytest.mark.skipif(not CONTESTS.exists(), reason="no data set beside the checkout")
@pytest.mark.parametrize("row", contest_rows(), ids=lambda row: row["name"])
def test_contest_solutions_pass_whole_rows(client: CollimateClient, row: dict[str, Any]) -> None:
    table = json.loads(row["input_output"])
    pairs = zip(table["inputs"], table["outputs"], strict=True)
    spec = StdioReward(cases=[{"stdin": given, "stdout": wanted} for given, wanted in pairs])
    solved = grade(client, "py", row["solution"], spec, timeout_seconds=60)
    assert (solved.reward, solved.cases_passed) == (1.0, len(table["inputs"]))
    assert grade(client, "py", "print(0)\n", spec, timeout_seconds=60).reward != 1.0


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nif __name__ == '__main__':\n    print(sum(map(int, sys.stdin.buffer.read().split())))\n",
        "print(sum(map(int, open(0).read().split())))\n",
        "n = int(input())\nprint(n + int(input()))\nexit()\n",
        "import sys\nprint(sum(int(line) for line in sys.stdin), end='')\n",
        "import os\nos.write(1, b'%d' % sum(map(int, os.read(0, 100).split())))\nos._exit(0)\n",
        "import threading\ndef main():\n    print(int(input()) + int(input()))\n"
        "threading.stack_size(1 << 26)\nthreading.Thread(target=main).start()\n",
        "import atexit\natexit.register(lambda: print(int(input()) + int(input())))\n",
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\n"
        "print(int(input()) + int(input()) + f(50000) - 50000)\n",
    ],
)
def test_programs_read_standard_input_in_every_way(client: CollimateClient, code: str) -> None:
    spec = StdioReward(cases=[{"stdin": f"{n}\n{n + 1}\n", "stdout": f"{2 * n + 1}\n"} for n in range(3)])
    result = grade(client, "py", code, spec)
    assert result.reward == 1.0, result.detail


def test_a_program_that_fails_after_the_right_output_fails(client: CollimateClient) -> None:
    spec = StdioReward(cases=[{"stdin": "", "stdout": "1\n"}])
    for code in ("print(1)\n1 / 0\n", "print(1)\nraise SystemExit(3)\n"):
        assert grade(client, "py", code, spec).outcome == "runtime_error"


def test_an_empty_expected_output_does_not_forgive_an_exception(client: CollimateClient) -> None:
    spec = StdioReward(cases=[{"stdin": "", "stdout": ""}])
    assert grade(client, "py", "1 / 0\n", spec).reward == 0.0
    assert grade(client, "py", "pass\n", spec).reward == 1.0


def test_decimals_within_the_tolerance(client: CollimateClient) -> None:
    code = "print(1 / 3, 2)\n"
    cases = [{"stdin": "", "stdout": "0.333333 2\n"}]
    assert grade(client, "py", code, StdioReward(cases=cases)).reward == 0.0
    assert grade(client, "py", code, StdioReward(cases=cases, tolerance=1e-4)).reward == 1.0


def test_a_seed_fixes_a_propertys_inputs(client: CollimateClient) -> None:
    spec = PropertyReward(reference="    return x", generator="random.random()", k=3)
    code = "def solve(x):\n    print(x)\n    return x\n"
    first = grade(client, "py", code, spec, seed="12" * 32)
    again = grade(client, "py", code, spec, seed="12" * 32)
    other = grade(client, "py", code, spec, seed="13" * 32)
    assert first.output_tail == again.output_tail != other.output_tail
    import random

    random.seed(int("12" * 32, 16))
    assert first.output_tail.decode().split() == [repr(random.random()) for _ in range(3)]


def test_generator_and_reference_take_turns_with_the_random_numbers(client: CollimateClient) -> None:
    spec = PropertyReward(reference="    return x + random.random() * 0", generator="random.random()", k=2)
    code = "def solve(x):\n    print(x)\n    return x\n"
    import random

    random.seed(int("12" * 32, 16))
    drawn = [random.random() for _ in range(4)]
    result = grade(client, "py", code, spec, seed="12" * 32)
    assert result.output_tail.decode().split() == [repr(drawn[0]), repr(drawn[2])]


def test_a_seed_pins_the_candidates_own_random_numbers(client: CollimateClient) -> None:
    code = (
        "import random\ndef solve(x):\n    print(random.random())\n    if x == 2: raise SystemExit\n    return 2 * x\n"
    )
    first, again = [grade(client, "py", code, DOUBLES, seed="12" * 32) for _ in range(2)]
    other = grade(client, "py", code, DOUBLES, seed="13" * 32)
    assert first.output_tail == again.output_tail != other.output_tail
    import random

    random.seed(int("12" * 32, 16))
    assert first.output_tail.decode().split()[0] == repr(random.random())


def test_a_drawn_seed_replays_the_grade(client: CollimateClient) -> None:
    code = "def solve(x):\n    print(x)\n    return len(x)\n"
    first = grade(client, "py", code, VOWELS)
    assert first.seed is not None
    again = grade(client, "py", code, VOWELS, seed=first.seed)
    assert (again.reward, again.output_tail) == (first.reward, first.output_tail)


def test_a_group_under_one_seed_shares_one_judge(client: CollimateClient) -> None:
    execute = RecordingExecutor(OneShotExecutor(client, "py"))
    grades = grade_group(execute, VOWELS, [COUNTS_VOWELS] * 6, seeds=group_seeds(6, "crn"))
    assert [graded.reward for graded in grades if isinstance(graded, GradeResult)] == [1.0] * 6
    assert [role for role, _, _ in execute.requests].count("judge") == 1


def test_a_list_is_one_argument_of_a_property_and_many_of_a_unit_test(client: CollimateClient) -> None:
    spec = PropertyReward(reference="    return x", generator="[1, 2]", k=1)
    assert grade(client, "py", "def solve(x): return x\n", spec).reward == 1.0
    assert grade(client, "py", "def solve(a, b): return [a, b]\n", spec).reward == 0.0
    unit = UnitTestReward(tests=[{"input": [1, 2], "expected": 3}, {"input": [[1, 2], 0], "expected": 3}])
    assert grade(client, "py", "def solve(a, b): return a + b if a == 1 else sum(a)\n", unit).reward == 1.0


def test_each_call_gets_arguments_of_its_own(client: CollimateClient) -> None:
    spec = UnitTestReward(tests=[{"input": [[3, 1]], "expected": [1, 3]}] * 3)
    code = "seen = []\ndef solve(x):\n    seen.append(x)\n    x.sort()\n    return x if len(seen) < 9 else None\n"
    assert grade(client, "py", code, spec).reward == 1.0
    keeps = "seen = []\ndef solve(x):\n    seen.append(x)\n    x.sort()\n    seen[0].append(0)\n    return x\n"
    assert grade(client, "py", keeps, spec).cases_passed == 2


@pytest.mark.parametrize(
    ("reference", "generator", "words"),
    [
        ("    return 1 / 0", "1", "the reference fails on case 0: ZeroDivisionError"),
        ("    return x", "nothing", "the generator fails on case 0: NameError"),
        ("    return object()", "1", "no plain data"),
        ("    return x", "object()", "no plain data"),
        ("    import sys\n    sys.exit(0)", "1", "SystemExit"),
        ("    return [float('nan')]", "1", "would fail its own case 0"),
        ("    return map(str, [x])", "1", "would fail its own case 0"),
    ],
)
def test_a_reference_at_fault_is_no_reward(client: CollimateClient, reference: str, generator: str, words: str) -> None:
    with pytest.raises(SpecFault, match=words):
        grade(client, "py", COUNTS_VOWELS, PropertyReward(reference=reference, generator=generator, k=2))


def test_a_judge_without_an_answer_is_no_reward(client: CollimateClient) -> None:
    spec = PropertyReward(reference="    import os\n    os._exit(0)", generator="1", k=1)
    with pytest.raises(CollimateError) as caught:
        grade(client, "py", COUNTS_VOWELS, spec)
    assert caught.value.error_code == "judge_failed"


def test_no_tests_construct_and_score_nothing(client: CollimateClient) -> None:
    result = grade(client, "py", COUNTS_VOWELS, UnitTestReward(tests=[]))
    assert (result.reward, result.cases_total) == (0.0, 0)


class LastLine(RewardSpec):
    """A user's own spec, as 0.4 documented it."""

    def build(self, candidate_path: str) -> str:
        return f"exec(open({candidate_path!r}).read())\nprint(solve(3) == 9)\nprint(float(solve(3) == 9))\n"

    def parse(self, stdout: str) -> float:
        return last_number(stdout)


def test_a_users_own_spec_runs_the_classic_way(client: CollimateClient) -> None:
    result = grade(client, "py", "def solve(x): return x * x\n", LastLine())
    assert (result.reward, result.integrity, result.outcome) == (1.0, "shared", "passed")
    assert grade(client, "py", "def solve(x): return x\n", LastLine()).reward == 0.0
    assert grade(client, "py", "while True: pass\n", LastLine(), timeout_seconds=1).outcome == "timeout"


class Doubled(UnitTestReward):
    """A subclass of ours that overrides one of the two methods."""

    def parse(self, stdout: str) -> float:
        return min(1.0, 2 * super().parse(stdout))


class Wild(UnitTestReward):
    def parse(self, stdout: str) -> float:
        return float("nan")


class Renamed(UnitTestReward):
    """A subclass that overrides neither: it is still graded split."""


def test_subclasses_that_override_are_graded_the_classic_way(client: CollimateClient) -> None:
    half = "def solve(x): return 2 * x if x < 3 else None\n"
    assert grade(client, "py", half, Doubled(DOUBLES.tests)).reward == 1.0
    assert grade(client, "py", half, Doubled(DOUBLES.tests)).integrity == "shared"
    assert grade(client, "py", half, Renamed(DOUBLES.tests)).integrity == "split"
    wild = grade(client, "py", half, Wild(DOUBLES.tests))
    assert (wild.reward, wild.outcome) == (0.0, "tampered")


def test_the_classic_programs_of_our_specs_work(client: CollimateClient) -> None:
    class Unit(UnitTestReward):
        def parse(self, stdout: str) -> float:
            return super().parse(stdout)

    class Property(PropertyReward):
        def parse(self, stdout: str) -> float:
            return super().parse(stdout)

    assert grade(client, "py", "def solve(x): return 2 * x\n", Unit(DOUBLES.tests)).reward == 1.0
    assert grade(client, "py", "def solve(x): return 2\n", Unit(DOUBLES.tests)).reward == 0.25
    assert grade(client, "py", "def solve(x) return 2\n", Unit(DOUBLES.tests)).reward == 0.0
    spec = Property(VOWELS.reference, VOWELS.generator)
    assert grade(client, "py", COUNTS_VOWELS, spec, seed="ab" * 32).reward == 1.0
    assert grade(client, "py", "def solve(x): return -1\n", spec, seed="ab" * 32).reward == 0.0


def test_a_batch_keeps_its_order(client: CollimateClient) -> None:
    codes = [f"def solve(x): return 2 * x if x > {n} else None\n" for n in range(5)]
    results = grade_batch(client, "py", codes, DOUBLES, seeds=group_seeds(5, "deterministic"))
    assert [result.reward for result in results] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_infra_errors_are_raised_flagged_or_dropped(client: CollimateClient) -> None:
    codes = ["def solve(x): return 2 * x\n"] * 2
    with pytest.raises(CollimateError) as caught:
        grade_batch(client, "nowhere", codes, DOUBLES)
    assert caught.value.error_code == "no_template"
    flagged = grade_batch(client, "nowhere", codes, DOUBLES, on_infra_error="zero")
    assert [(r.reward, r.infra_error, r.error_code, r.outcome) for r in flagged] == [
        (0.0, True, "no_template", None)
    ] * 2
    assert grade_batch(client, "nowhere", codes, DOUBLES, on_infra_error="skip") == []
    with pytest.raises(CollimateError) as caught:
        grade(client, "py", codes[0], DOUBLES, seed="short")
    assert caught.value.error_code == "invalid_seed"


def test_a_replaced_grade_is_called_per_candidate(client: CollimateClient, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def replaced(client: Any, template_id: str, candidate: str, spec: RewardSpec, **options: Any) -> GradeResult:
        called.append(candidate)
        return GradeResult(0.5)

    monkeypatch.setattr(rewards, "grade", replaced)
    results = rewards.grade_batch(client, "py", ["a", "b", "c"], DOUBLES)
    assert [result.reward for result in results] == [0.5] * 3
    assert sorted(called) == ["a", "b", "c"]


def test_a_session_of_the_callers_is_used_and_left_alive(client: CollimateClient) -> None:
    session = client.create_session("py")["session_id"]
    try:
        spec = PropertyReward(reference="    return [x, 'secret']", generator="1", k=2)
        code = "def solve(x): return [x, 'secret']\n"
        assert grade(client, "py", code, spec, session_id=session).reward == 1.0
        assert grade(client, "py", "def solve(x): return x\n", spec, session_id=session).reward == 0.0
        assert client.get_session(session)["exec_count"] == 2
    finally:
        client.delete_session(session)


def test_what_is_too_large_for_one_exec_goes_in_by_upload(client: CollimateClient) -> None:
    spec = UnitTestReward(tests=[{"input": "x" * 300_000, "expected": 300_000}])
    assert grade(client, "py", "# " + "y" * 200_000 + "\ndef solve(x): return len(x)\n", spec).reward == 1.0
    assert client.list_sessions() == []


def test_a_stop_keeps_further_execs_from_starting(client: CollimateClient) -> None:
    stop = threading.Event()
    entered: list[int] = []

    def enter(index: int, graded: Graded) -> None:
        entered.append(index)
        stop.set()

    codes = ["def solve(x): return 2 * x\n"] * 6
    grades = grade_group(
        OneShotExecutor(client, "py"), DOUBLES, codes, seeds=[None] * 6, concurrency=1, on_grade=enter, stop=stop
    )
    assert entered == [0]
    assert [graded is not None for graded in grades] == [True] + [False] * 5


class Store:
    def __init__(self) -> None:
        self.blob: bytes | None = None
        self.puts = 0

    def get(self) -> bytes | None:
        return self.blob

    def put(self, blob: bytes) -> bytes:
        self.puts += 1
        self.blob = self.blob or blob
        return self.blob


def test_a_recovery_judges_the_same_cases(client: CollimateClient) -> None:
    store = Store()
    code = "def solve(x):\n    print(x)\n    return len(x)\n"

    def run(skip: tuple[int, ...]) -> tuple[list[Graded | None], int]:
        execute = RecordingExecutor(OneShotExecutor(client, "py"))
        grades = grade_group(execute, VOWELS, [code] * 3, seeds=[None] * 3, case_store=store, skip=skip)
        return grades, [role for role, _, _ in execute.requests].count("judge")

    first, judges = run(())
    assert judges == 3
    again, judges = run((0,))
    assert (judges, store.puts, again[0]) == (0, 1, None)
    for before, after in zip(first[1:], again[1:], strict=True):
        assert isinstance(before, GradeResult)
        assert isinstance(after, GradeResult)
        assert (before.seed, before.output_tail) == (after.seed, after.output_tail)


def test_an_exec_sent_again_reads_what_the_first_one_did(client: CollimateClient) -> None:
    from collimate_rl.grading.execute import SessionExecutor

    session = client.create_session("py")["session_id"]
    try:
        execute = SessionExecutor(client, session)
        code = "import os, time\ndef solve(x):\n    print(os.urandom(8).hex())\n    return 2 * x\n"
        spec = DOUBLES

        def run() -> GradeResult:
            [graded] = grade_group(execute, spec, [code], seeds=[None], exec_prefix="batch-1")
            assert isinstance(graded, GradeResult)
            return graded

        first, again = run(), run()
        assert first.reward == again.reward == 1.0
        assert first.output_tail == again.output_tail
        assert first.output_tail
    finally:
        client.delete_session(session)
