"""What all candidates of a group have in common of a job is written once, and reads as ever."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collimate_rl.grading.calls import call_op, runner_job
from collimate_rl.grading.frames import Ops, compose
from collimate_rl.guest.plain import dumps


def sent(ops: list[Any], code: str) -> dict[str, Any]:
    job = runner_job(code, ops, timeout_seconds=10, case_s=5.0, entry="solve")
    ((_, text),) = compose("runner", job, timeout_seconds=10, seed=None).request.files
    told: dict[str, Any] = json.loads(text)
    assert len(told.pop("mark")) == 32
    assert told == job
    return told


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_job_says_the_same_with_ops_that_are_shared(count: int) -> None:
    ops = [call_op("solve", ["t", n, 'a "quoted" ä\ud800']) for n in range(count)]
    shared = Ops(ops)
    for code in ("def solve(*a): pass", '}],"ops":[]'):
        assert sent(shared, code) == sent(ops, code)


def test_shared_ops_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    def write(value: Any) -> str:
        written.append(value)
        return dumps(value)

    monkeypatch.setattr("collimate_rl.grading.frames.dumps", write)
    ops = Ops([call_op("solve", ["t", 1])])
    for code in ("one", "two", "three"):
        assert sent(ops, code)["code"] == code
    assert sum(isinstance(value, Ops) for value in written) == 1
    assert not any("ops" in value for value in written if isinstance(value, dict))
