"""`CommandReward` is validated when built and travels whole; work and rows are read, or refused with a reason."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import pytest

from collimate_rl.formats import candidate_of
from collimate_rl.grading.command_work import Escapes, work_of
from collimate_rl.grading.grader import GroupScore
from collimate_rl.rewards import CommandReward, UnitTestReward, reward_spec_from_ground_truth, spec_from_wire
from collimate_rl.skyrl.feedback import feedback
from tests.fixtures.command_tasks import FAIL_TO_PASS, PASS_TO_PASS, RIGHT, task


@pytest.mark.parametrize(
    "spec",
    [
        CommandReward("make check"),
        CommandReward(["pytest", "{results}"], min_tests=3, credit="fraction", case_timeout_s=2.5),
        task(),
        CommandReward(
            "run {results} {decoys}",
            files={"a/b.bin": b"\x00\xff", "t": "\u00fc"},
            base="/data/repo",
            root="/work/repo",
            setup=["make"],
            tests={"test_a.py": "x"},
            test_patch=RIGHT,
            fail_to_pass=["a"],
            pass_to_pass=("b",),
            allow=["conftest.py"],
            env={"A": "b"},
            reference=RIGHT,
            max_cases=1,
        ),
    ],
)
def test_specs_travel(spec: CommandReward) -> None:
    text = json.dumps(spec.to_wire(), allow_nan=False)
    back = spec_from_wire(json.loads(text))
    assert isinstance(back, CommandReward)
    assert back.to_wire() == spec.to_wire()
    assert back.digest == spec.digest
    assert dict(back.files) == dict(spec.files)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ""}, "command"),
        ({"command": []}, "command"),
        ({"command": ["a", 1]}, "command"),
        ({"command": "a\0b"}, "command"),
        ({"setup": " "}, "setup"),
        ({"files": {"../a": ""}}, "below the tree"),
        ({"files": {"/a": ""}}, "below the tree"),
        ({"files": {"a/": ""}}, "below the tree"),
        ({"files": {"a": 1}}, "text or bytes"),
        ({"files": {"a": "\ud800"}}, "text or bytes"),
        ({"files": ["a"]}, "object"),
        ({"tests": {"a/../b": ""}}, "below the tree"),
        ({"base": "repo"}, "absolute"),
        ({"base": "/a/../b"}, "absolute"),
        ({"root": ".."}, "root"),
        ({"root": ""}, "root"),
        ({"test_patch": ""}, "test_patch"),
        ({"reference": 1}, "reference"),
        ({"fail_to_pass": "a"}, "fail_to_pass"),
        ({"fail_to_pass": ["a"]}, "results file"),
        ({"command": "x {results}", "fail_to_pass": ["a", "a"]}, "named twice: a"),
        ({"command": "x {results}", "fail_to_pass": ["a"], "pass_to_pass": ["a"]}, "named twice"),
        ({"command": "x {results}", "fail_to_pass": ["a"], "min_tests": 2}, "min_tests"),
        ({"command": "x {decoys}"}, "decoys"),
        ({"credit": "fraction"}, "exit code"),
        ({"credit": "most"}, "credit"),
        ({"credit": "weighted"}, "weights"),
        ({"min_tests": 0}, "min_tests"),
        ({"min_tests": True}, "min_tests"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"A=": "1"}}, "env"),
        ({"env": {"PATH": "bin:/usr/bin"}}, "PATH"),
        ({"env": {"PATH": "/usr/bin:"}}, "PATH"),
        ({"allow": [""]}, "allow"),
        ({"case_timeout_s": 0}, "case_timeout_s"),
        ({"max_cases": 0}, "max_cases"),
        ({"files": {"a": b"\0" * (3 << 20)}}, "4,194,304"),
    ],
)
def test_a_bad_spec_is_a_value_error(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CommandReward(**{"command": "make", **options})


@pytest.mark.parametrize("wire", [{"type": "command"}, {"type": "command", "command": "a", "files": {"a": {"b": 1}}}])
def test_a_bad_wire_is_a_value_error(wire: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        spec_from_wire(wire)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("text", "patch", "files", "deleted"),
    [
        (RIGHT, RIGHT, None, ()),
        (f"Here it is.\n```diff\n{RIGHT}```\nDone.", RIGHT, None, ()),
        (f"```diff\nold\n```\nno:\n```patch\n{RIGHT}```", RIGHT, None, ()),
        (f"```\n{RIGHT}```", RIGHT, None, ()),
        (f"```diff\n{RIGHT}", RIGHT, None, ()),
        (f"words first\n{RIGHT}", f"words first\n{RIGHT}", None, ()),
        (f"```python\nx = 1\n```\n```diff\n{RIGHT}```", RIGHT, None, ()),
        ("```python src/a.py\nx = 1\n```", None, {"src/a.py": "x = 1\n"}, ()),
        (
            "```py path=src/a.py\nx = 1\n```\n```py file='b.py'\ny\n```",
            None,
            {"src/a.py": "x = 1\n", "b.py": "y\n"},
            (),
        ),
        ("```src/a.py\n1\n```\n```src/a.py\n2\n```", None, {"src/a.py": "2\n"}, ()),
        ('{"files": {"a.py": "x"}, "deleted": ["b.py"]}', None, {"a.py": "x"}, ("b.py",)),
        (json.dumps({"files": {"a": {"base64": b64("x")}}}), None, {"a": "x"}, ()),
        (f"```text\nnever closed\n~~~diff\n{RIGHT}~~~", RIGHT, None, ()),
        ("```diff\r\n" + RIGHT.replace("\n", "\r\n") + "```\r\n", RIGHT.replace("\n", "\r\n"), None, ()),
        ("```py:src/a.py\n1\n```", None, {"src/a.py": "1\n"}, ()),
    ],
)
def test_work_is_found(text: str, patch: str | None, files: dict[str, str] | None, deleted: tuple[str, ...]) -> None:
    work = work_of(text)
    assert work is not None
    assert (work.patch, work.deleted) == (patch, deleted)
    assert work.files == (None if files is None else {path: b64(content) for path, content in files.items()})


LONG = {
    "a mark without an end": "~" * 200_000 + "\n" + "x\n" * 200_000,
    "a tag of dots": "```" + "." * 200_000 + " x y\nx = 1\n```\n",
    "many marks": "\n".join("`" * n + "\nx" for n in range(3, 1200)),
    "many names": "--- a\n" * 100_000,
    "many attributes": "```" + "path=' a=\"" * 50_000 + "\nx\n```",
}


@pytest.mark.parametrize("kind", sorted(LONG))
def test_no_text_holds_its_reader_up(kind: str) -> None:
    code = "import sys; from collimate_rl.grading.command_work import is_work; is_work(sys.stdin.read())"
    subprocess.run([sys.executable, "-c", code], input=LONG[kind], text=True, check=True, timeout=60)


@pytest.mark.parametrize("text", ["", "I give up.", "```python\nx = 1\n```", "```diff\nnothing\n```", '{"files": {}}'])
def test_no_work_is_none(text: str) -> None:
    assert work_of(text) is None


@pytest.mark.parametrize(
    "text", ['{"files": []}', "{not json}", '{"files": {"a": 1}}', '{"files": {"a": {"base64": "*"}}}']
)
def test_unreadable_work_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        work_of(text)


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", "", "a\0"])
def test_work_that_leads_out_of_the_tree_is_told_apart(path: str) -> None:
    for text in (json.dumps({"files": {path: ""}}), json.dumps({"deleted": [path]})):
        with pytest.raises(Escapes):
            work_of(text)


def test_a_completion_is_read_by_its_spec() -> None:
    completion = f"<think>```diff\nno\n```</think>\n```diff\n{RIGHT}```"
    assert work_of(candidate_of(task(), completion)) == work_of(RIGHT)
    assert candidate_of(task(), "<think>never ends") == ""
    assert candidate_of(UnitTestReward([], "f"), "```python\ndef f(): pass\n```") == "def f(): pass"


def test_a_patch_is_not_called_bad_python() -> None:
    score = GroupScore(reward=0.0, outcome="wrong_answer", cases=("wrong_answer",), cases_total=1)
    assert "SyntaxError" in feedback("```python\ndef f(:\n```", score, None, None, "f")
    assert "SyntaxError" not in feedback(f"```diff\n{RIGHT}```", score, None, None, "f")


ROW = {
    "instance_id": "x__y-1",
    "repo": "x/y",
    "FAIL_TO_PASS": json.dumps(FAIL_TO_PASS),
    "PASS_TO_PASS": PASS_TO_PASS,
    "test_patch": "--- a/tests/test_ops.py\n+++ b/tests/test_ops.py\n@@ -1 +1 @@\n-a\n+b\n",
    "patch": RIGHT,
}


def test_a_repository_row_becomes_a_spec() -> None:
    spec = reward_spec_from_ground_truth(json.dumps(ROW))
    assert isinstance(spec, CommandReward)
    assert (list(spec.fail_to_pass), list(spec.pass_to_pass)) == (FAIL_TO_PASS, PASS_TO_PASS)
    assert (spec.base, spec.root, spec.reference) == ("/testbed", "/testbed", RIGHT)
    assert spec.command == (
        "{python} -m pytest -q -p no:cacheprovider --junitxml={results} tests/test_ops.py tests/test_old.py {decoys}"
    )


def test_a_repository_row_says_where_its_files_are() -> None:
    own = reward_spec_from_ground_truth({**ROW, "base": "/data/y", "setup": "make", "allow": ["pyproject.toml"]})
    assert isinstance(own, CommandReward)
    assert (own.base, own.root, own.setup, list(own.allow)) == ("/data/y", "tree", "make", ["pyproject.toml"])
    plain = reward_spec_from_ground_truth({"command": "make check", "files": {"a": "b"}, "unknown": 1})
    assert isinstance(plain, CommandReward)
    assert (plain.command, plain.files) == ("make check", {"a": "b"})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "nope"}, "no JSON"),
        ({"FAIL_TO_PASS": [1]}, "list of tests"),
        ({"FAIL_TO_PASS": ["test_x (a.B)"]}, "command"),
        ({"command": ""}, "command"),
    ],
)
def test_a_bad_repository_row_is_a_value_error(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reward_spec_from_ground_truth({**ROW, **changed})
