"""Rows whose tests are code, rows with checkers or many right answers, and rows for other languages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collimate_rl.formats.ground_truth import reward_spec_from_ground_truth
from collimate_rl.formats.many_answers import says_many
from collimate_rl.specs import AssertReward, StdioReward, TestFileReward, UnitTestReward
from tests.fixtures.rows import rows

PYTEST = "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"
UNITTEST = (
    "import unittest\n\nclass TestCases(unittest.TestCase):\n    def test_a(self):\n"
    "        self.assertEqual(task_func(1), 2)\n"
)
KODCODE = {
    "question": "Add two numbers.",
    "solution": "def add(a, b):\n    return a + b",
    "test": PYTEST,
    "test_info": [{"function_name": "add", "function_declaration": "def add(a, b):", "parameter_list": "(a, b)"}],
}
BIGCODEBENCH = {
    "task_id": "BigCodeBench/0",
    "complete_prompt": 'import os\n\ndef task_func(n):\n    """Adds one."""\n',
    "instruct_prompt": "Write task_func.",
    "canonical_solution": "    return n + 1",
    "code_prompt": "import os\ndef task_func(n):\n",
    "test": UNITTEST,
    "entry_point": "task_func",
    "libs": "['os']",
}


@pytest.mark.parametrize("dump", [lambda row: row, json.dumps, lambda row: {"ground_truth": json.dumps(row)}])
def test_kodcode(dump: Any) -> None:
    spec = reward_spec_from_ground_truth(dump(KODCODE))
    assert isinstance(spec, TestFileReward)
    assert (spec.test, spec.entry, spec.reference, spec.prompt) == (PYTEST, "add", KODCODE["solution"], "")
    assert spec.module == "solution"


def test_kodcode_with_several_functions_names_no_entry() -> None:
    info = [{"function_name": "add"}, {"function_name": "sub"}]
    spec = reward_spec_from_ground_truth({**KODCODE, "test_info": info})
    assert isinstance(spec, TestFileReward)
    assert spec.entry is None


def test_bigcodebench() -> None:
    spec = reward_spec_from_ground_truth(BIGCODEBENCH)
    assert isinstance(spec, TestFileReward)
    assert (spec.entry, spec.prompt) == ("task_func", BIGCODEBENCH["complete_prompt"])
    assert spec.program(str(spec.reference)).endswith("    return n + 1")


@pytest.mark.parametrize("test", [PYTEST, UNITTEST, "assert add(1, 2) == 3\n"])
def test_test_code_alone(test: str) -> None:
    kind = AssertReward if test.startswith("assert") else TestFileReward
    for gt in (test, {"tests": test}, {"reward_model": {"ground_truth": {"functional": test}}}):
        spec = reward_spec_from_ground_truth(gt)
        assert type(spec) is kind, gt
        assert spec.test == test


def test_a_method_of_solution_as_entry_point_and_a_list_of_asserts() -> None:
    row = {
        "test": "def check(candidate):\n    assert candidate(1) == 1\n",
        "entry_point": "Solution().one",
        "prompt": "",
    }
    spec = reward_spec_from_ground_truth(row)
    assert isinstance(spec, AssertReward)
    assert spec.entry == "one"
    asserts = ["assert f(1) == 1", "assert f(2) == 2"]
    for gt in (asserts, {"test_cases": asserts}):
        spec = reward_spec_from_ground_truth(gt)
        assert isinstance(spec, AssertReward)
        assert spec.test == "\n".join(asserts)


def test_code_contests_own_columns_and_lists_as_text() -> None:
    native = {
        "public_tests": {"input": ["1\n"], "output": ["1\n"]},
        "private_tests": {"input": [], "output": []},
        "generated_tests": {"input": ["2\n", "3\n"], "output": ["2\n", "3\n"]},
    }
    spec = reward_spec_from_ground_truth(native)
    assert isinstance(spec, StdioReward)
    assert [case["stdin"] for case in spec.cases] == ["1\n", "2\n", "3\n"]
    with pytest.raises(ValueError, match="same length"):
        reward_spec_from_ground_truth({**native, "private_tests": {"input": ["1"], "output": []}})
    spec = reward_spec_from_ground_truth({"inputs": '["1"]', "outputs": '["2"]'})
    assert isinstance(spec, StdioReward)
    assert spec.cases == [{"stdin": "1", "stdout": "2"}]


# Other languages


@pytest.mark.parametrize("language", ["cpp", "C++", "java", "JavaScript", "go", "rust"])
def test_another_language_is_named(language: str) -> None:
    for row in (
        {"language": language, "test_cases": [{"input": "1", "output": "1"}]},
        {"language": language, "inputs": ["1"], "outputs": ["1"]},
        {"verification_info": {"lang": language, "inputs": ["1"], "outputs": ["1"]}},
        {**KODCODE, "programming_language": language},
    ):
        with pytest.raises(ValueError, match="candidates here are Python"):
            reward_spec_from_ground_truth(row)


@pytest.mark.parametrize("language", ["python", "Python3", "en", "English", "zh"])
def test_python_and_natural_languages_are_not_refused(language: str) -> None:
    spec = reward_spec_from_ground_truth({"language": language, "inputs": ["1"], "outputs": ["1"]})
    assert isinstance(spec, StdioReward)


# Many right answers


MANY = [
    "If there are multiple possible answers, output any; if there is no answer, print -1.",
    "If there are several optimal solutions, output any of them.",
    "If there are multiple answers, you can print any.",
    "Print any valid permutation.",
    "You may return the result in any order.",
    "If more than one solution exists, any of them will be accepted.",
    "Note that other valid answers will also be accepted.",
    "The problem has a special checker.",
]
ONE = [
    "If there are several optimal variants, Bob chooses the one that lets fill the bath in the quickest way.",
    "consider themselves one kingdom if and only if any two planets in the set can reach each other",
    "The tap can transmit any integer number of water units per second.",
    "Print the number of ways. There are no multiple edges.",
    "You can jump to any position. Print the minimum number of jumps.",
]


@pytest.mark.parametrize("statement", MANY)
def test_statements_that_allow_many_answers(statement: str) -> None:
    assert says_many("Read n.\n\n" + statement + "\n\nExamples")
    spec = reward_spec_from_ground_truth({"question": statement, "input_output": '{"inputs": ["1"], "outputs": ["1"]}'})
    assert isinstance(spec, StdioReward)
    assert spec.checker_missing


@pytest.mark.parametrize("statement", ONE)
def test_statements_with_one_answer(statement: str) -> None:
    assert not says_many(statement)


def test_what_a_chat_says_and_calls_are_looked_at_too() -> None:
    chat = [{"role": "user", "content": MANY[0]}]
    row = {"prompt": chat, "reward_model": {"ground_truth": {"inputs": ["1"], "outputs": ["1"], "fn_name": "f"}}}
    spec = reward_spec_from_ground_truth(row)
    assert isinstance(spec, UnitTestReward)
    assert spec.checker_missing


def test_cases_that_contradict_each_other() -> None:
    spec = reward_spec_from_ground_truth({"inputs": ["1", "1"], "outputs": ["1 2", "2 1"]})
    assert isinstance(spec, StdioReward)
    assert spec.checker_missing
    spec = reward_spec_from_ground_truth({"inputs": ["1", "1"], "outputs": ["1 2", "1  2\n"]})
    assert isinstance(spec, StdioReward)
    assert not spec.checker_missing


def test_a_checker_in_python_judges_and_one_in_another_language_is_missing() -> None:
    row = {"description": MANY[0], "official_tests": [{"input": "1", "output": "1"}]}
    spec = reward_spec_from_ground_truth({**row, "generated_checker": "import sys\nprint(1)\n"})
    assert isinstance(spec, StdioReward)
    assert (spec.checker, spec.checker_missing) == ("import sys\nprint(1)\n", False)
    spec = reward_spec_from_ground_truth(
        {"inputs": ["1"], "outputs": ["1"], "checker": '#include "testlib.h"\nint main() {}'}
    )
    assert isinstance(spec, StdioReward)
    assert (spec.checker, spec.checker_missing) == (None, True)


@pytest.mark.skipif(not rows("code_contests"), reason="no data set beside the checkout")
def test_the_slice_of_code_contests() -> None:
    marked = {
        row["name"].split(".")[0]
        for row in rows("code_contests")
        if getattr(reward_spec_from_ground_truth(row), "checker_missing", False)
    }
    # 1256_C has many right answers too, and says so nowhere.
    assert marked == {"1025_B", "1090_C", "1157_C2", "1214_H"}
