"""Which execs have their job held outside of their sandbox, and what is no such job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from collimate_rl import guest
from collimate_rl.errors import CollimateError
from collimate_rl.guest.runner import JOB
from collimate_rl.sandboxd.guests import GuestPrograms
from collimate_rl.sandboxd.wire import Exec
from tests.fixtures.held_jobs import job_of

CODE = "def solve(x): return x\n"


def request_of(job: Any, **fields: Any) -> Exec:
    content = job if isinstance(job, bytes) else json.dumps(job).encode()
    asked = Exec(code=guest.program("runner"), files=((JOB, content),), seed="0" * 64)
    return replace(asked, **fields)


@pytest.fixture(scope="module")
def programs() -> GuestPrograms:
    return GuestPrograms.known()


def test_a_job_of_calls_for_one_candidate_process_is_held(programs: GuestPrograms) -> None:
    job = job_of(CODE, [1, "two"])
    assert programs.held_job(request_of(job)) == job
    more = {**job, "from": 1, "prelude": None, "entry": None, "arguments": True, "prints": True}
    more["ops"] = [
        {"f": ["n", "solve"], "a": ["t"], "k": ["m", ""]},
        {"f": ["p", 0], "do": "get", "a": ["t", "x"]},
        {"f": ["h", 0], "do": "len", "a": ["t"]},
    ]
    assert programs.held_job(request_of(more)) == more


def test_what_a_zygote_loads_for_the_runner_holds_and_is_held(programs: GuestPrograms) -> None:
    assert programs.texts["runner"] == guest.program("held")
    assert programs.name_of(guest.program("runner")) == "runner"
    assert programs.name_of(guest.program("held")) is None


NOT_HELD: dict[str, dict[str, Any]] = {
    "one that is named, and may be sent again": {"id": "x"},
    "one of many candidate processes": {"sole": False},
    "whole programs": {"program": True},
}


@pytest.mark.parametrize("name", NOT_HELD)
def test_other_jobs_go_inside(programs: GuestPrograms, name: str) -> None:
    assert programs.held_job(request_of({**job_of(CODE, [1]), **NOT_HELD[name]})) is None


def test_other_execs_go_inside(programs: GuestPrograms) -> None:
    job = job_of(CODE, [1])
    content = json.dumps(job).encode()
    assert programs.held_job(request_of(job, code="print(1)")) is None
    assert programs.held_job(request_of(job, code=guest.program("runner") + " ")) is None
    assert programs.held_job(request_of(job, code=None, command="true")) is None
    assert programs.held_job(request_of(job, files=())) is None
    assert programs.held_job(request_of(job, files=(("other.json", content),))) is None
    assert programs.held_job(request_of(job, files=((JOB, content), ("more.py", b"")))) is None


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in job_of(CODE, [1]).items() if key != name}


def with_op(**op: Any) -> dict[str, Any]:
    return {"ops": [{"f": ["n", "solve"], "a": ["t", 1], **op}]}


NONE: dict[str, Any] = {
    "no JSON": b"{",
    "no text": b"\xff",
    "nested without end": b"[" * 100_000,
    "a list": [],
    **{f"without {name}": without(name) for name in job_of(CODE, [1]) if name not in ("sole", "id")},
    **{
        name: {**job_of(CODE, [1]), **fields}
        for name, fields in {
            "a mark that is a number": {"mark": 1},
            "an empty mark": {"mark": ""},
            "a mark of two lines": {"mark": "a\nb"},
            "a mark that is no text": {"mark": "\ud800"},
            "code that is none": {"code": None},
            "no program to tell": {"program": None},
            "an entry that is a number": {"entry": 1},
            "ops that are no list": {"ops": {}},
            "an op that is a number": {"ops": [1]},
            "an op without anything": {"ops": [{}]},
            "a whole program's op": {"ops": [{"stdin": ""}]},
            "a target of another kind": with_op(f=["q", 1]),
            "a name that is a number": with_op(f=["n", 1]),
            "an index that is a name": with_op(f=["p", "solve"]),
            "arguments that are no tree": with_op(a=1),
            "names that are no tree": with_op(k=1),
            "something else to do": with_op(do="exec"),
            "nothing that can be done": with_op(do=["call"]),
            "a field too many": with_op(x=1),
            "no time": {"total_s": 0},
            "time below none": {"case_s": -1.0},
            "time without end": {"total_s": float("inf")},
            "time that is no number": {"total_s": float("nan")},
            "time that no clock has": {"total_s": 1e308},
            "time as a huge number": {"total_s": 10**400},
            "time as text": {"case_s": "1"},
            "time as a flag": {"case_s": True},
            "bytes below none": {"value_bytes": -1},
            "bytes and a half": {"all_bytes": 1.5},
            "bytes as a huge number": {"all_bytes": 10**400},
            "a flag as a number": {"prints": 1},
            "a beginning before the first": {"from": -1},
        }.items()
    },
}


@pytest.mark.parametrize("name", NONE)
def test_a_job_that_is_none_is_its_senders_fault(programs: GuestPrograms, name: str) -> None:
    with pytest.raises(CollimateError) as refused:
        programs.held_job(request_of(NONE[name]))
    assert (refused.value.status, refused.value.error_code) == (400, "bad_request")
    assert len(refused.value.message) < 400
