"""Rows whose tests are code: HumanEval, MBPP, KodCode, BigCodeBench and their kin."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

from collimate_rl.formats.pairs import shown
from collimate_rl.specs import AssertReward, RewardSpec, TestFileReward
from collimate_rl.syntax import parse

_REFERENCES: Final = ("canonical_solution", "solution", "completion", "code")
_PROMPTS: Final = ("complete_prompt", "code_prompt", "prompt")
_METHOD: Final = "Solution()."


def is_test_file(source: str) -> bool:
    """Whether code defines tests as pytest or unittest finds them, and no `check` to be called."""
    tree = _tree(source)
    if tree is None:
        return False
    found = False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "check":
                return False
            found = found or node.name.startswith("test")
        elif isinstance(node, ast.ClassDef):
            bases = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
            found = found or node.name.startswith("Test") or any(base.endswith("TestCase") for base in bases)
    return found


def looks_like_tests(text: str) -> bool:
    """Whether text that is no JSON is test code: a file of tests, or asserts alone."""
    tree = _tree(text)
    return tree is not None and (is_test_file(text) or any(isinstance(node, ast.Assert) for node in tree.body))


def from_test(row: Mapping[str, Any], column: str, entry: str | None) -> RewardSpec:
    """A row with test code in `column`: HumanEval's kind, or a file."""
    test = row[column]
    if not isinstance(test, str):
        raise ValueError(f"{column} is Python source, not {shown(test)}")
    named = row.get("entry_point")
    if isinstance(named, str) and named.startswith(_METHOD):
        named = named[len(_METHOD) :]
    prompt = next((value for name in _PROMPTS if isinstance(value := row.get(name), str)), "")
    if is_test_file(test):
        return TestFileReward(
            test,
            entry=named or _function_of(row) or entry,
            prompt=prompt if named else "",
            reference=_reference(row),
        )
    # A chat's list of messages is for the model; only a text is continued by the completion.
    return AssertReward(test, entry=named or entry, prompt=prompt if named else "", reference=_reference(row))


def from_asserts(row: Mapping[str, Any], column: str) -> AssertReward:
    """A row with a list of asserts in `column`."""
    tests = texts(row, column)
    if not tests:
        raise ValueError(f"{column} is empty: every candidate would pass")
    if row.get("challenge_test_list"):
        tests += texts(row, "challenge_test_list")
    setup = row.get("test_setup_code") or ""
    if not isinstance(setup, str):
        raise ValueError(f"test_setup_code is text, not {shown(setup)}")
    imports = texts(row, "test_imports") if row.get("test_imports") else []
    return AssertReward("\n".join(tests), setup="\n".join([*imports, setup]).strip("\n"), reference=row.get("code"))


def from_statements(tests: Sequence[Any]) -> AssertReward:
    """A bare list of asserts."""
    return AssertReward("\n".join(tests))


def texts(row: Mapping[str, Any], column: str) -> list[str]:
    """A column that is a list of texts."""
    value = row[column]
    if not isinstance(value, list | tuple):
        raise ValueError(f"{column} is a list, not {shown(value)}")
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise ValueError(f"{column}[{number}] is text, not {shown(item)}")
    return list(value)


def _reference(row: Mapping[str, Any]) -> str | None:
    for column in _REFERENCES:
        value = row.get(column)
        if value is not None and (isinstance(value, str) or column == "canonical_solution"):
            found: str | None = value
            return found
    return None


def _function_of(row: Mapping[str, Any]) -> str | None:
    """The one function that KodCode's `test_info` names; None where it names several, or a class."""
    info = row.get("test_info")
    names = (
        {item.get("function_name") for item in info if isinstance(item, Mapping)} if isinstance(info, list) else set()
    )
    name = names.pop() if len(names) == 1 else None
    return name if isinstance(name, str) and name.isidentifier() else None


def _tree(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
