"""A results file is hostile input: what is missing, double, skipped or unreadable never counts as passed."""

from __future__ import annotations

from typing import Any

import pytest

from collimate_rl.grading.command_decoys import draw_decoys
from collimate_rl.grading.command_verdict import CommandReport, judge_command
from collimate_rl.grading.junit import MAX_DEPTH, MAX_XML, BadResults, Runs, keys_of, read_junit
from collimate_rl.specs.command import CommandReward

NAMES = ["t/test_a.py::test_one", "t/test_a.py::C::test_two[x::y]"]
ONE = '<testcase classname="t.test_a" name="test_one" time="0.25"/>'
TWO = '<testcase classname="t.test_a.C" name="test_two[x::y]" time="1,000.5"/>'


def xml(*cases: str) -> bytes:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>".encode()


def judged(spec: CommandReward, **report: Any) -> list[str]:
    fields = {"stage": "ran", "state": "ok", **report}
    return [outcome for outcome, _, _ in judge_command(spec, CommandReport(**fields), None).verdicts]


SPEC = CommandReward("run {results}", fail_to_pass=NAMES[:1], pass_to_pass=NAMES[1:])


@pytest.mark.parametrize(
    ("cases", "outcomes"),
    [
        ([ONE, TWO], ["passed", "passed"]),
        ([TWO, '<testcase classname="x" name="other"><failure/></testcase>', ONE], ["passed", "passed"]),
        ([ONE], ["passed", "runtime_error"]),
        ([], ["runtime_error", "runtime_error"]),
        ([ONE, TWO, ONE], ["runtime_error", "passed"]),
        ([ONE.replace("/>", "><failure message='assert 1 == 2'/></testcase>"), TWO], ["wrong_answer", "passed"]),
        ([ONE.replace("/>", "><error/></testcase>"), TWO], ["runtime_error", "passed"]),
        ([ONE.replace("/>", "><skipped/></testcase>"), TWO], ["runtime_error", "passed"]),
        ([ONE.replace("/>", ' status="notrun"/>'), TWO], ["runtime_error", "passed"]),
        ([ONE.replace("/>", "><system-out><failure/></system-out></testcase>"), TWO], ["passed", "passed"]),
        ([ONE.replace("test_one", "test_One"), TWO], ["runtime_error", "passed"]),
        ([ONE.replace("t.test_a", "u.test_a"), TWO], ["runtime_error", "passed"]),
    ],
)
def test_named_tests_have_to_be_there_once_as_passed(cases: list[str], outcomes: list[str]) -> None:
    assert judged(SPEC, results=xml(*cases), code=1) == outcomes


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        ({"state": "missing"}, "runtime_error"),
        ({"state": "missing", "code": 1}, "runtime_error"),
        ({"state": "large"}, "output_limit"),
        ({"results": b""}, "tampered"),
        ({"results": b"", "code": 1}, "runtime_error"),
        ({"results": xml(ONE, TWO)[:-3]}, "tampered"),
        ({"results": xml(ONE, TWO), "how": "t"}, "timeout"),
        ({"results": xml(ONE, TWO), "how": "l"}, "output_limit"),
        ({"results": xml(ONE, TWO), "how": "m"}, "memory_limit"),
    ],
)
def test_a_run_without_whole_results_passes_nothing(report: dict[str, Any], outcome: str) -> None:
    assert judged(SPEC, **report) == [outcome] * 2


def test_all_tests_of_a_file_count_where_none_is_named() -> None:
    spec = CommandReward("run {results}", min_tests=2)
    assert judged(spec, results=xml(ONE, TWO)) == ["passed", "passed"]
    assert judged(spec, results=xml(ONE)) == ["passed", "runtime_error"]
    assert judged(spec, results=xml()) == ["runtime_error", "runtime_error"]
    assert judged(spec, results=xml(ONE, ONE)) == ["runtime_error", "runtime_error"]
    assert judged(spec, results=xml(ONE, TWO), code=1) == ["passed", "passed", "runtime_error"]
    assert judged(spec, results=xml(ONE, TWO.replace("/>", "><failure/></testcase>")), code=1)[1] == "wrong_answer"


def test_an_exit_code_is_right_or_wrong() -> None:
    spec = CommandReward(["make", "check"])
    assert judged(spec, state="none") == ["passed"]
    assert judged(spec, state="none", code=1) == ["wrong_answer"]
    assert judged(spec, state="none", code=-11) == ["runtime_error"]
    assert judged(spec, state="none", how="t") == ["timeout"]


def test_words_tell_no_expected_value() -> None:
    told = xml(ONE.replace("/>", "><failure message='assert 1 == 42'>assert 1 == 42</failure></testcase>"), TWO)
    judgement = judge_command(SPEC, CommandReport(stage="ran", state="ok", results=told), None)
    assert "42" not in "".join(words for _, _, words in judgement.verdicts)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuites>&b;</testsuites>', "document type"),
        (b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuites/>', "document type"),
        (b"<testsuites>&undefined;</testsuites>", "no XML"),
        (b"<html/>", "testsuites"),
        (b"<testsuites>" + b"<a>" * MAX_DEPTH + b"</a>" * MAX_DEPTH + b"</testsuites>", "deep"),
        (b" " * (MAX_XML + 1), "bytes"),
        (xml("<testcase><testcase/></testcase>"), "in a testcase"),
        (xml(ONE) + xml(ONE), "no XML"),
        (b"\xff\xfe<\x00t\x00", "no XML"),
        (xml(ONE).replace(b"test_one", b"test\xff"), "no XML"),
    ],
)
def test_hostile_files_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadResults, match=words):
        read_junit(data)


def test_more_tests_than_anybody_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collimate_rl.grading.junit.MAX_TESTS", 3)
    with pytest.raises(BadResults, match="more than 3"):
        read_junit(xml(*[ONE] * 4))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("tests/test_a.py::test_b", [("tests.test_a", "test_b")]),
        ("test_a.py::A::B::test_b[c.py::d]", [("test_a.A.B", "test_b[c.py::d]")]),
        ("test_b (app.tests.Case)", [("app.tests.Case", "test_b")]),
        ("test_b (app.tests.Case.test_b)", [("app.tests.Case", "test_b")]),
        ("app.tests.Case.test_b", [("app.tests.Case", "test_b"), ("*", "app.tests.Case.test_b")]),
        ("test_b", [("*", "test_b")]),
        ("it adds numbers", [("*", "it adds numbers")]),
    ],
)
def test_names_are_found_as_tools_write_them(name: str, keys: list[tuple[str, str]]) -> None:
    assert keys_of(name) == keys


def test_a_bare_name_that_two_tests_have_is_ambiguous() -> None:
    runs = Runs(read_junit(xml(ONE, ONE.replace("t.test_a", "u.test_a"))))
    assert len(runs.of("test_one")) == 2


def decoy_xml(ends: dict[str, str], *cases: str) -> bytes:
    told = [
        f'<testcase classname="d" name="{n}">{"" if e == "passed" else "<failure/>"}</testcase>'
        for n, e in ends.items()
    ]
    return xml(*cases, *told)


def test_decoys_show_a_run_that_lies() -> None:
    decoys = draw_decoys()
    assert set(decoys.ends.values()) == {"passed", "failed"}
    compile(decoys.text, decoys.path, "exec")

    def outcome(results: bytes) -> tuple[str, str] | None:
        return judge_command(SPEC, CommandReport(stage="ran", state="ok", results=results), decoys).refused

    failing = ONE.replace("/>", "><failure/></testcase>")
    assert outcome(decoy_xml(dict(decoys.ends), ONE, TWO)) is None
    assert (outcome(decoy_xml(dict.fromkeys(decoys.ends, "passed"), ONE, TWO)) or ("", ""))[0] == "tampered"
    assert (outcome(decoy_xml(dict.fromkeys(decoys.ends, "failed"), ONE, TWO)) or ("", ""))[0] == "tampered"
    assert (outcome(xml(ONE, TWO)) or ("", ""))[0] == "tampered"
    assert (outcome(xml(failing, TWO)) or ("", ""))[0] == "wrong_answer"


def test_no_two_runs_have_the_same_decoys() -> None:
    first, second = draw_decoys(), draw_decoys()
    assert first.path != second.path
    assert not set(first.ends) & set(second.ends)
