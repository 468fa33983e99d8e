"""From a data set's ground truth to a reward spec, by the shape of the row.

Ground truth that cannot be graded by is a `ValueError` that names its fault. It is never a reward of 0: that would
teach a model that every answer to the row is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from collimate_rl.formats.blobs import decode_blob, looks_like_blob
from collimate_rl.formats.code_tests import from_asserts, from_statements, from_test, looks_like_tests
from collimate_rl.formats.many_answers import contradict, python_checker, says_many, statements_of
from collimate_rl.formats.pairs import Pair, call_spec, shown, stdio_spec, without_arrays
from collimate_rl.formats.repositories import is_repository_row, repository_spec
from collimate_rl.specs import PropertyReward, RewardSpec, StdioReward, UnitTestReward

_STDIN_TYPES: Final = frozenset({"stdin", "stdin_stdout"})
_CALL_TYPES: Final = frozenset({"functional", "function_call"})
_PYTHON: Final = frozenset({"python", "python3", "py"})

_OTHER_LANGUAGES: Final = frozenset(
    (
        *("bash", "c", "c#", "c++", "clojure", "cpp", "csharp", "d", "dart", "elixir", "erlang", "f#", "fortran", "go"),
        *("golang", "haskell", "java", "javascript", "js", "julia", "kotlin", "lua", "matlab", "node", "nodejs"),
        *("objective-c", "ocaml", "pascal", "perl", "php", "r", "racket", "ruby", "rust", "scala", "scheme", "sh"),
        *("shell", "sql", "swift", "ts", "typescript", "zig"),
    )
)
"""What a column named `language` may hold that is no natural language."""

_WRAPPERS: Final = (
    *("input_output", "ground_truth", "reward_spec", "reward_model", "verification_info", "official_tests", "tests"),
    *("verifier_metadata", "unit_tests"),
)
"""Columns that hold the ground truth in rows of APPS and its kin, SkyRL, verl, open-r1, DeepCoder and NeMo-Gym."""
_NATIVE: Final = ("public_tests", "private_tests", "generated_tests")
"""CodeContests' own columns, each `{"input": [...], "output": [...]}`."""

_MOST_LAYERS: Final = 6


def reward_spec_from_ground_truth(gt: Any, entry: str = "solve") -> RewardSpec:
    """The spec that a ground truth means; `gt` is JSON text or what it parses to, the inner value or the whole row.

    | shape | spec |
    |---|---|
    | `[{"input", "expected"}]` | `UnitTestReward` on `entry` |
    | `{"reference", "generator", "k"?, "entry"?}` | `PropertyReward` |
    | `{"inputs", "outputs", "fn_name"?}` (APPS, TACO, CodeContests, verl, NeMo-Gym) | `StdioReward`, or `UnitTestReward` on `fn_name` |
    | `[{"input", "output", "testtype"?, "metadata"?}]` (LiveCodeBench, DeepCoder) | the same two |
    | `{"public_tests", "private_tests", "generated_tests"}` of `{"input": [], "output": []}` (CodeContests) | `StdioReward` |
    | `{"prompt"?, "test", "entry_point"}` with a `check` (HumanEval) | `AssertReward` |
    | `{"test", "solution"?}` (KodCode), `{"test", "entry_point"}` (BigCodeBench) with pytest's or unittest's tests | `TestFileReward` |
    | `{"test_list", "test_setup_code"?, "challenge_test_list"?}` (MBPP), `{"assert_case"}` (verl), a list of asserts | `AssertReward` |
    | `{"language", "test_cases"}` (open-r1, SYNTHETIC-1) | `StdioReward`, or `UnitTestReward` |
    | `{"FAIL_TO_PASS", "PASS_TO_PASS"?, "test_patch"?, "patch"?}` (SWE-bench), `{"command", …}` | `CommandReward` |
    | LiveCodeBench's `public_test_cases` and `private_test_cases`, the latter also as a blob | as its cases say |

    A reference solution in the row (`canonical_solution`, MBPP's `code`, KodCode's `solution`) becomes the spec's, a
    checker that is Python judges, and a statement that allows many answers, without one, sets `checker_missing`.
    Raises `ValueError`.
    """  # noqa: E501 - a table's row is one line
    gt = without_arrays(gt)
    rows: list[Mapping[str, Any]] = []
    for _ in range(_MOST_LAYERS):
        if isinstance(gt, str):
            if not looks_like_blob(gt) and gt.lstrip()[:1] not in ("[", "{", '"') and looks_like_tests(gt):
                return from_test({**(rows[-1] if rows else {}), "test": gt}, "test", None)
            gt = _parsed(gt)
        elif isinstance(gt, Mapping):
            rows.append(gt)
            spec = _from_object(gt, entry)
            if isinstance(spec, RewardSpec):
                return _with_checker(spec, rows)
            gt, entry = spec, _entry_of(gt, entry)
        elif isinstance(gt, list | tuple):
            return _with_checker(_from_list(gt, entry), rows)
        else:
            break
    raise ValueError(f"a ground truth is a list or an object (or JSON text of one), not {shown(gt)}")


def _parsed(text: str) -> Any:
    if looks_like_blob(text):
        return decode_blob(text)
    if not text.strip():
        raise ValueError("the ground truth is empty")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"the ground truth is no JSON: {exc}: {shown(text)}") from exc


def _from_object(row: Mapping[str, Any], entry: str) -> Any:
    """The spec of a row, or the value of the column that holds its ground truth."""
    if is_repository_row(row):
        return repository_spec(row)
    _refuse_other_languages(row)
    if "reference" in row and "generator" in row:
        return PropertyReward(row["reference"], row["generator"], row.get("k", 16), _entry_of(row, entry))
    if isinstance(row.get("test"), str) or ("test" in row and "entry_point" in row):
        return from_test(row, "test", None)
    if row.get("test_list") is not None:
        return from_asserts(row, "test_list")
    if row.get("assert_case") is not None:
        return from_asserts(row, "assert_case")
    if isinstance(row.get("functional"), str):
        return from_test(row, "functional", None)
    if "inputs" in row and "outputs" in row:
        return _from_inputs_and_outputs(row)
    if "test_cases" in row:
        return _from_test_cases(row, entry)
    if any(isinstance(row.get(column), Mapping) for column in _NATIVE):
        return _from_native(row)
    if "public_test_cases" in row or "private_test_cases" in row:
        return _from_livecodebench(row, entry)
    for column in _WRAPPERS:
        if row.get(column) is not None:
            return row[column]
    raise ValueError(
        f"a ground truth with the keys {', '.join(sorted(map(str, row)))[:200] or '(none)'} is of no known shape: "
        "see reward_spec_from_ground_truth for those that are"
    )


def _from_list(cases: Sequence[Any], entry: str) -> RewardSpec:
    if not cases:
        raise ValueError("the ground truth has no test cases: every candidate would score alike")
    if all(isinstance(case, str) and case.lstrip().startswith("assert") for case in cases):
        return from_statements(cases)
    for number, case in enumerate(cases):
        if not isinstance(case, Mapping):
            raise ValueError(f"case {number} is an object, not {shown(case)}")
    if all("expected" in case for case in cases):
        for number, case in enumerate(cases):
            if "input" not in case:
                raise ValueError(f"case {number} has no 'input'")
        return UnitTestReward([{"input": case["input"], "expected": case["expected"]} for case in cases], entry)
    kinds = set()
    names = set()
    for number, case in enumerate(cases):
        if "input" not in case or "output" not in case:
            raise ValueError(f"case {number} has neither 'input' and 'expected' nor 'input' and 'output'")
        kinds.add(_kind(case, number))
        metadata = _object(case.get("metadata"), f"case {number}: its metadata")
        names.add(_name(metadata.get("func_name") or case.get("fn_name"), f"case {number}") or entry)
    if len(kinds) > 1:
        raise ValueError("some cases are calls and some are programs: a candidate can't be both")
    pairs = [Pair(given=case["input"], wanted=case["output"], where=f"case {n}") for n, case in enumerate(cases)]
    if kinds == {"stdin"}:
        return stdio_spec(pairs)
    if len(names) > 1:
        raise ValueError(f"the cases call several functions: {', '.join(sorted(names))[:200]}")
    return call_spec(pairs, names.pop(), may_be_wrapped=True)


def _kind(case: Mapping[str, Any], number: int) -> str:
    kind = case.get("testtype", case.get("type"))
    if kind is None:
        return "call" if case.get("fn_name") else "stdin"
    if isinstance(kind, str) and kind in _STDIN_TYPES:
        return "stdin"
    if isinstance(kind, str) and kind in _CALL_TYPES:
        return "call"
    raise ValueError(f"case {number} has the unknown type {shown(kind)}")


def _from_inputs_and_outputs(row: Mapping[str, Any]) -> RewardSpec:
    inputs, outputs = [
        _parsed(row[name]) if isinstance(row[name], str) else row[name] for name in ("inputs", "outputs")
    ]
    if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple):
        raise ValueError("inputs and outputs are two lists")
    if len(inputs) != len(outputs):
        raise ValueError(f"there are {len(inputs)} inputs and {len(outputs)} outputs")
    pairs = [
        Pair(given=given, wanted=wanted, where=f"case {number}")
        for number, (given, wanted) in enumerate(zip(inputs, outputs, strict=True))
    ]
    name = _name(row.get("fn_name"), "the row")
    return call_spec(pairs, name, may_be_wrapped=True) if name else stdio_spec(pairs)


def _from_test_cases(row: Mapping[str, Any], entry: str) -> Any:
    language = row.get("language")
    if language is not None and (not isinstance(language, str) or language.lower() not in _PYTHON):
        raise ValueError(f"the row wants candidates in {shown(language)}, and candidates here are Python")
    return row["test_cases"] if isinstance(row["test_cases"], str) else _from_list(_list(row, "test_cases"), entry)


def _from_livecodebench(row: Mapping[str, Any], entry: str) -> RewardSpec:
    cases: list[Any] = []
    for column in ("public_test_cases", "private_test_cases"):
        value = row.get(column)
        if isinstance(value, str) and value.strip():
            value = _parsed(value)
        if isinstance(value, str) and value:
            raise ValueError(f"{column} is text in text")
        if value:
            cases += _list({column: value}, column)
    metadata = _object(row.get("metadata"), "the row's metadata")
    return _from_list(cases, _name(metadata.get("func_name"), "the row") or entry)


def _from_native(row: Mapping[str, Any]) -> RewardSpec:
    pairs: list[Pair] = []
    for column in _NATIVE:
        tests = _object(row.get(column), column)
        given, wanted = tests.get("input") or [], tests.get("output") or []
        if not isinstance(given, list | tuple) or not isinstance(wanted, list | tuple) or len(given) != len(wanted):
            raise ValueError(f"{column}: input and output are two lists of the same length")
        pairs += [
            Pair(given=a, wanted=b, where=f"{column}[{n}]") for n, (a, b) in enumerate(zip(given, wanted, strict=True))
        ]
    return stdio_spec(pairs)


def _refuse_other_languages(row: Mapping[str, Any]) -> None:
    for column in ("language", "lang", "programming_language"):
        language = row.get(column)
        if isinstance(language, str) and language.strip().lower() in _OTHER_LANGUAGES:
            raise ValueError(f"the row wants candidates in {shown(language)}, and candidates here are Python")


def _with_checker(spec: RewardSpec, rows: Sequence[Mapping[str, Any]]) -> RewardSpec:
    """The spec with the row's checker, or marked where many answers are right and there is none."""
    if not isinstance(spec, StdioReward | UnitTestReward):
        return spec
    found = [python_checker(row) for row in rows]
    checker = next((source for source, _ in found if source is not None), None)
    if checker is not None and isinstance(spec, StdioReward):
        return replace(spec, checker=checker)
    if isinstance(spec, StdioReward) and not any(case["stdout"].strip() for case in spec.cases):
        raise ValueError("every expected output is empty: a program that does nothing would pass")
    many = any(there for _, there in found) or any(says_many(text) for row in rows for text in statements_of(row))
    if isinstance(spec, StdioReward):
        many = many or contradict([(case["stdin"], case["stdout"]) for case in spec.cases])
    return replace(spec, checker_missing=True) if many else spec


def _list(row: Mapping[str, Any], column: str) -> list[Any]:
    value = row[column]
    if not isinstance(value, list | tuple):
        raise ValueError(f"{column} is a list, not {shown(value)}")
    return list(value)


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, str):
        value = _parsed(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is an object, not {shown(value)}")
    return value


def _name(value: Any, where: str) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ValueError(f"{where}: a function's name is text, not {shown(value)}")
    return value


def _entry_of(row: Mapping[str, Any], entry: str) -> str:
    return _name(row.get("entry"), "the row") or entry
