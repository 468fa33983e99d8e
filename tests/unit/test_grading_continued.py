"""One candidate process as a rule, and a second exec for the calls that its early end left undone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest

from collimate_rl.grading.execute import ExecRequest, Role
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.rewards import UnitTestReward
from collimate_rl.sandbox import ExecResult
from tests.fixtures.plain_executor import PlainExecutor
from tests.fixtures.recording import RecordingExecutor

SEED = "5" * 64
TESTS = [{"input": [n], "expected": n} for n in range(5)]
ENDS_AT_TWO = "import os, time\ndef solve(n):\n    print('call', n)\n    if n == 2:\n        %s\n    return n\n"


def graded(executor: Any, code: str, **spec: Any) -> tuple[GradeResult, list[dict[str, Any]], list[ExecRequest]]:
    """The grade, and the jobs and requests that it took."""
    recording = RecordingExecutor(executor)
    found = grade_group(
        recording, UnitTestReward(tests=TESTS, **spec), [code], seeds=[SEED], timeout_seconds=10, exec_prefix="b-1"
    )[0]
    assert isinstance(found, GradeResult), found
    requests = [request for _, _, request in recording.requests]
    return found, [json.loads(request.files[0][1]) for request in requests], requests


def test_a_candidate_that_answers_takes_one_exec(plain_executor: PlainExecutor) -> None:
    found, jobs, _ = graded(plain_executor, "def solve(n):\n    return n\n")
    assert (found.reward, found.cases_passed) == (1.0, 5)
    assert [job["sole"] for job in jobs] == [True]


@pytest.mark.parametrize("failure", ["raise ValueError(n)", "return object()", "return 7"])
def test_a_failed_call_is_no_end(plain_executor: PlainExecutor, failure: str) -> None:
    found, jobs, _ = graded(plain_executor, ENDS_AT_TWO % failure)
    assert (found.reward, len(jobs)) == (0.8, 1)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("os._exit(3)", "runtime_error"),
        ("os.kill(os.getpid(), 11)", "runtime_error"),
        ("time.sleep(60)", "timeout"),
    ],
)
def test_the_calls_after_an_end_go_to_a_second_exec(plain_executor: PlainExecutor, end: str, outcome: str) -> None:
    found, jobs, requests = graded(plain_executor, ENDS_AT_TWO % end, case_timeout_s=1.0)
    assert [case.outcome for case in found.cases] == ["passed", "passed", outcome, "passed", "passed"]
    assert found.reward == 0.8
    assert [(job["sole"], job.get("from", 0)) for job in jobs] == [(True, 0), (False, 3)]
    assert jobs[1]["total_s"] < jobs[0]["total_s"]
    assert jobs[0]["id"] != jobs[1]["id"]
    assert [request.seed for request in requests] == [SEED, SEED]
    printed = b"".join(b"call %d\n" % n for n in (0, 1, 3, 4))
    assert found.output_tail.replace(b"call 2\n", b"") == printed


def test_many_ends_take_no_third_exec(plain_executor: PlainExecutor) -> None:
    found, jobs, _ = graded(plain_executor, "import os\ndef solve(n):\n    os._exit(n)\n")
    assert [case.outcome for case in found.cases] == ["runtime_error"] * 5
    assert [(job["sole"], job.get("from", 0)) for job in jobs] == [(True, 0), (False, 1)]


def test_nothing_follows_where_the_spec_stops(plain_executor: PlainExecutor) -> None:
    found, jobs, _ = graded(plain_executor, ENDS_AT_TWO % "os._exit(0)", credit="first_failure")
    assert (found.reward, found.cases_total, len(jobs)) == (0.4, 5, 1)


def test_code_that_can_not_be_loaded_takes_one_exec(plain_executor: PlainExecutor) -> None:
    found, jobs, _ = graded(plain_executor, "import os\nos._exit(1)\n")
    assert (found.reward, len(jobs)) == (0.0, 1)


def test_code_that_loads_only_once_fails_what_is_left(plain_executor: PlainExecutor) -> None:
    """Each fresh process loads the code anew, and what that comes to is the verdict on each call left."""

    class SecondIsBroken:
        def __init__(self) -> None:
            self.turn = 0

        def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
            self.turn += 1
            if self.turn == 2:
                job = json.loads(request.files[0][1])
                job["code"] = "raise RuntimeError('again')\n"
                request = replace(request, files=((request.files[0][0], json.dumps(job)),))
            return plain_executor.run(request, role=role, index=index)

    found, _, _ = graded(SecondIsBroken(), ENDS_AT_TWO % "os._exit(0)")
    assert [case.outcome for case in found.cases] == ["passed", "passed", *["runtime_error"] * 3]


def test_what_a_sole_candidate_leaves_running_is_ended_with_it(plain_executor: PlainExecutor, tmp_path: Any) -> None:
    note = tmp_path / "orphan"
    leaves = (
        "import os, time\n"
        "def solve(n):\n"
        "    read, write = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        f"            open({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "            os.write(write, b'.')\n"
        "            time.sleep(600)\n"
        "        os._exit(0)\n"
        "    os.read(read, 1)\n"
        "    os._exit(0)\n"
    )
    recording = RecordingExecutor(plain_executor)
    spec = UnitTestReward(tests=TESTS[:1])
    found = grade_group(recording, spec, [leaves], seeds=[SEED], timeout_seconds=10)[0]
    assert isinstance(found, GradeResult)
    assert (found.reward, len(recording.requests)) == (0.0, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
