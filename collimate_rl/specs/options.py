"""How results are compared, and what passed cases are worth: a spec's options, validated."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from collimate_rl.specs.base import is_number

VALUE_MODES: Final = ("exact", "json")
TEXT_MODES: Final = ("lines", "tokens", "exact")
CREDITS: Final = ("fraction", "all", "weighted", "first_failure")
OPTIONS: Final = ("compare", "tolerance", "unordered", "case_timeout_s", "max_cases")
"""What every spec of calls or programs sends along, in this order."""
CASE_OPTIONS: Final = ("relative_tolerance", "checker", "credit", "weights", "checker_missing")
"""What it sends where it was set."""
CALL_OPTIONS: Final = (*CASE_OPTIONS, "wrapped", "prelude")
"""The same, of one that calls a function."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How a result is compared with the expected one.

    `tolerance` alone is absolute up to 1 and relative above. Beside a `relative` one it is absolute, and numbers may
    differ by the larger of the two, as in `math.isclose`. Neither ever applies between two integers.
    """

    mode: str
    tolerance: float | None = None
    relative: float | None = None
    unordered: bool = False
    text: bool = False

    def __post_init__(self) -> None:
        modes = TEXT_MODES if self.text else VALUE_MODES
        if self.mode not in modes:
            raise ValueError(f"compare is one of {', '.join(modes)}, not {self.mode!r}")
        for name, value in (("tolerance", self.tolerance), ("relative_tolerance", self.relative)):
            if value is not None and not (is_number(value) and 0.0 <= value < 1.0):
                raise ValueError(f"{name} is a number from 0.0 to below 1.0, not {value!r}")
        if not isinstance(self.unordered, bool):
            raise ValueError(f"unordered is true or false, not {self.unordered!r}")
        tolerant = self.tolerance is not None or self.relative is not None
        if self.unordered and tolerant:
            raise ValueError("unordered can't be combined with a tolerance: which item would belong to which?")
        if self.text and self.mode == "exact" and (self.unordered or tolerant):
            raise ValueError("an exact comparison of text has neither a tolerance nor an order to ignore")

    def near(self, expected: float) -> float | None:
        """How far a number may be from the expected one; None where it has to be equal."""
        if self.relative is not None:
            return max(self.tolerance or 0.0, self.relative * abs(expected))
        return None if self.tolerance is None else self.tolerance * max(1.0, abs(expected))


@dataclass(frozen=True, kw_only=True)
class Credit:
    """What passed cases are worth.

    "fraction": the passed ones' share; "all": 1.0 when every case passed, else 0.0; "weighted": the share of their
    `weights`, one per case; "first_failure": the share of those before the first that failed, and nothing more is run
    once a case has no result.
    """

    mode: str = "fraction"
    weights: Sequence[float] | None = None

    @property
    def stops(self) -> bool:
        """Whether nothing is run after a failed case."""
        return self.mode == "first_failure"

    def of(self, cases: Sequence[int]) -> Credit:
        """The same for some of the cases, by their places."""
        weights = None if self.weights is None else [self.weights[place] for place in cases]
        if weights is not None and not sum(weights) > 0:
            return Credit()
        return Credit(mode=self.mode, weights=weights)

    def reward(self, passed: Sequence[bool]) -> float:
        """The reward for cases of which these passed; 0.0 where there is none."""
        if not passed:
            return 0.0
        if self.mode == "all":
            return float(all(passed))
        if self.mode == "first_failure":
            return [*passed, False].index(False) / len(passed)
        if self.mode == "weighted" and self.weights is not None:
            won = sum(weight for weight, good in zip(self.weights, passed, strict=True) if good)
            return 1.0 if all(passed) else min(1.0, won / sum(self.weights))
        return sum(passed) / len(passed)


def check_credit(credit: Any, weights: Any, cases: int | None) -> None:
    """ValueError unless the two fit together; `cases` is how many weights there have to be, None where any number."""
    if credit not in CREDITS:
        raise ValueError(f"credit is one of {', '.join(CREDITS)}, not {credit!r}")
    if (credit == "weighted") != (weights is not None):
        raise ValueError("weights go with credit='weighted', and that needs them")
    if weights is not None:
        check_weights(weights, cases)


def check_weights(weights: Any, cases: int | None) -> None:
    """ValueError unless it is a list of finite numbers from 0, not all 0."""
    if not isinstance(weights, list | tuple) or not all(is_number(w) and w >= 0 for w in weights):
        raise ValueError(f"weights is a list of numbers from 0, one per case, not {weights!r:.200}")
    if cases is not None and len(weights) != cases:
        raise ValueError(f"there are {len(weights)} weights and {cases} cases")
    if weights and not 0 < sum(weights) < float("inf"):
        raise ValueError("the weights are all 0, or have no finite sum: nothing could be scored")


def chosen(count: int, most: int | None, content: Any) -> list[int]:
    """The indices of the cases that `max_cases` leaves, in order.

    Drawn by a seed from the cases' own text (`content`, JSON-able), so that every candidate and every recovery meets
    the same ones, and not only those that a data set lists first, which are its easy samples.
    """
    if most is None or most >= count:
        return list(range(count))
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode("utf-8", "surrogatepass"))
    return sorted(random.Random(digest.digest()).sample(range(count), most))


def check_checker(checker: Any) -> None:
    """ValueError unless it is None or Python source."""
    if checker is None:
        return
    if not isinstance(checker, str) or not checker.strip():
        raise ValueError(f"checker is Python source, not {checker!r:.100}")
    check_python("checker", checker)


def check_prelude(prelude: Any) -> None:
    """ValueError unless it is Python source, or empty."""
    if not isinstance(prelude, str):
        raise ValueError(f"prelude is Python source, not {prelude!r:.100}")
    check_python("prelude", prelude)


def check_python(name: str, source: str) -> None:
    """ValueError unless the source compiles here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, f"<{name}>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
            raise ValueError(f"{name} is no Python: {fault}") from None


def wire_options(spec: Any, always: Sequence[str], later: Sequence[str]) -> dict[str, Any]:
    """A spec's options for the wire. Those of `later` travel only where they were set: what has none of them is the
    same message, under the same hash, as from a sender that never knew them."""
    defaults = {field.name: field.default for field in dataclasses.fields(spec)}
    wire = {name: getattr(spec, name) for name in always}
    return wire | {name: getattr(spec, name) for name in later if getattr(spec, name) != defaults[name]}
