"""What a replay found, for people and as JSON. What a candidate wrote reaches a terminal with its controls escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collimate_rl.cli.explain import explain
from collimate_rl.grading.result import printable

if TYPE_CHECKING:
    from collimate_rl.replay.again import Again
    from collimate_rl.replay.recorded import Recorded, Then
    from collimate_rl.replay.views import CaseView

CASES_SHOWN: Final = 50
LINES_SHOWN: Final = 12
WIDTH: Final = 400


def as_dict(recorded: Recorded, again: Again) -> dict[str, Any]:
    """Everything, as plain JSON data."""
    from collimate_rl.replay.views import views_of

    then, now = again.then, again.now
    return {
        "batch": recorded.name,
        "index": then.index,
        "same": not again.differences,
        "differences": again.differences,
        "then": {
            "reward": then.reward,
            "outcome": then.outcome,
            "error_code": then.error_code,
            "detail": then.detail,
            "cases_total": then.cases_total,
            "cases_passed": then.cases_passed,
            "grader_version": then.grader_version,
            "python": then.python,
            "flags": list(then.flags),
        },
        "now": {
            "reward": now.reward,
            "outcome": now.outcome,
            "cases_total": now.cases_total,
            "cases_passed": now.cases_passed,
            "grader_version": now.grader_version,
            "python": now.python,
            "flags": list(now.flags),
            "integrity": now.integrity,
            "detail": now.detail,
            "output_tail": now.output_tail.decode("utf-8", "replace"),
        },
        "seed": now.seed,
        "template": recorded.template,
        "manifest": None if then.manifest is None else then.manifest.as_json_data(),
        "cases": [
            {"outcome": view.outcome, "ms": view.ms, "given": view.given, "expected": view.expected, "came": view.came}
            for view in views_of(again)
        ],
    }


def account(recorded: Recorded, again: Again) -> str:
    """The same for people: then, now, whether it is the same, and case by case."""
    from collimate_rl.replay.views import views_of

    then, now = again.then, again.now
    lines = [
        f"candidate {then.index} of {recorded.name}, template {recorded.template}, seed {now.seed}",
        f"then      {_verdict(then.reward, then.outcome or then.error_code)}{_counts(then)}{_made_by(then)}",
        f"now       {_verdict(now.reward, now.outcome)}{_counts(now)}{_made_by(now)}",
    ]
    if then.error_code is not None and then.detail:
        lines.insert(2, f"why       {printable(' '.join(str(then.detail).split()))}")
    if again.differences:
        lines += ["it is NOT the same", *(f"  {each}" for each in again.differences)]
    else:
        lines.append("it is the same")
    lines.append(f"meaning   {explain(now.outcome)}")
    if now.detail:
        lines += _block("detail", now.detail)
    for flag in now.flags:
        lines.append(f"flag      {flag}")
    if now.integrity == "shared":
        lines.append("note      the candidate shared its sandbox with the tests: there are no values of cases to show")
    views = views_of(again)
    for number, view in enumerate(views[:CASES_SHOWN], 1):
        lines += _case(number, view)
    if now.cases_total > len(views[:CASES_SHOWN]) and again.detailed is None:
        lines.append(f"… {now.cases_total - len(views[:CASES_SHOWN])} more cases")
    tail = now.output_tail.decode("utf-8", "replace")
    if tail.strip():
        lines += _block("its own prints" + (" (the end)" if now.truncated else ""), tail)
    return "\n".join(_plain(line) for line in lines)


def _verdict(reward: float | None, outcome: str | None) -> str:
    return f"{'no reward' if reward is None else f'reward {reward:g}'}, {outcome}"


def _counts(told: Any) -> str:
    return f", {told.cases_passed} of {told.cases_total} cases" if told.cases_total else ""


def _made_by(told: Then | Any) -> str:
    python = f", Python {told.python}" if told.python else ""
    return f" (grader {told.grader_version or 'unknown'}{python})"


def _case(number: int, view: CaseView) -> list[str]:
    lines = [f"case {number}  {view.outcome}  {view.ms:.1f} ms"]
    for name, text in (("given", view.given), ("expected", view.expected), ("came", view.came)):
        if text:
            lines += _block(f"  {name:<8}", text)
    return lines


def _block(name: str, text: str) -> list[str]:
    """A name and its text: beside it where that is one line, else below, so much of it as one looks at."""
    lines = text.splitlines() or [""]
    if len(lines) == 1:
        return [f"{name}  {_clipped(lines[0])}"]
    shown = [f"    {_clipped(line)}" for line in lines[:LINES_SHOWN]]
    if len(lines) > LINES_SHOWN:
        shown.append(f"    … {len(lines) - LINES_SHOWN} more lines")
    return [name, *shown]


def _clipped(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}… ({len(line):,} characters)"


def _plain(line: str) -> str:
    """One line of the account: nothing in it moves the cursor, colours, or looks like another line."""
    return printable(line).replace("\n", "\\n")
