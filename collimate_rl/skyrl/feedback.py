"""What a model is told after a turn that failed: how hidden tests ended, and which public ones failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from collimate_rl.grading.command_work import is_work
from collimate_rl.grading.grader import GroupScore
from collimate_rl.hooks.rows import TRUTH_COLUMNS, is_empty
from collimate_rl.rewards import StdioReward, UnitTestReward, extract_code, reward_spec_from_ground_truth
from collimate_rl.syntax import parse

SHOWN_CASES: Final = 5
SHOWN_CHARS: Final = 1000
PUBLIC_COLUMNS: Final = ("public_tests", "public_test_cases")


def public_tests_of(extras: Mapping[str, Any]) -> Any:
    """The row's public tests, in any shape of a ground truth: a column `public_tests` (or `public_test_cases`) of the
    row, of its extra_info or beside its ground truth. None where there are none: then every test is hidden."""
    places = [extras, extras.get("extra_info"), *(extras.get(column) for column in TRUTH_COLUMNS)]
    for place in places:
        if isinstance(place, Mapping):
            for column in PUBLIC_COLUMNS:
                if not is_empty(place.get(column)):
                    return place[column]
    return None


def feedback(answer: str, score: GroupScore, public: Any, on_public: GroupScore | None, entry: str) -> str:
    """The next observation. Of hidden tests it tells which failed and how they ended, and nothing that the candidate
    returned, printed or raised in them: it could return its input. Of public ones that failed it shows both."""
    lines = [f"Your answer failed: {score.outcome}."]
    if score.cases_total:
        lines[0] = f"Your answer passed {score.cases_passed} of {score.cases_total} tests."
        failing = [(n, outcome) for n, outcome in enumerate(score.cases, 1) if outcome != "passed"]
        lines += [f"- test {n}: {outcome}" for n, outcome in failing[:SHOWN_CASES]]
        if len(failing) > SHOWN_CASES:
            lines.append(f"- and {len(failing) - SHOWN_CASES} more")
    fault = _syntax_error(answer, entry)
    if fault:
        lines.append(_short(fault))
    if on_public is not None and on_public.failure is None:
        shown = list(_public_failures(public, on_public, entry))[:SHOWN_CASES]
        if shown:
            lines += ["Public tests that failed:", *shown]
            if on_public.detail and not fault:
                lines.append(_short(on_public.detail))
    lines.append("Correct it, and answer with the whole program.")
    return "\n".join(lines)


def _public_failures(public: Any, score: GroupScore, entry: str) -> Iterator[str]:
    spec = reward_spec_from_ground_truth(public, entry=entry)
    for n, outcome in enumerate(score.cases):
        if outcome == "passed":
            continue
        if isinstance(spec, UnitTestReward):
            test = spec.tests[n]
            given = test["input"] if isinstance(test["input"], list) else [test["input"]]
            call = f"{spec.entry}({', '.join(map(repr, given))})"
            yield _short(f"- {call} should return {test['expected']!r}: {outcome}")
        elif isinstance(spec, StdioReward):
            case = spec.cases[n]
            yield _short(f"- input {case['stdin']!r} should print {case['stdout']!r}: {outcome}")


def _syntax_error(answer: str, entry: str) -> str | None:
    """Why the code does not parse, which says nothing about any test; None where it does, or the answer is a patch."""
    if is_work(answer):
        return None
    code = extract_code(answer, entry=entry)
    if code[:1] in (" ", "\t"):
        code = "def body():\n" + code  # a bare body, as HumanEval's prompts are continued
    try:
        parse(code)
    except SyntaxError as error:
        return f"SyntaxError: {error.msg}" + (f": {error.text.strip()}" if error.text else "")
    except (ValueError, RecursionError, MemoryError):
        return "the code cannot be parsed"
    return None


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + " …"
