"""What every reward spec is: the classic two methods, and how a spec travels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from collimate_rl.seeds import is_valid_seed

ENTRY_POINTS: Final = "collimate_rl.rewards"
"""The entry-point group under which a worker finds spec classes that aren't ours."""


class RewardSpec(ABC):
    """How a candidate is scored. Users subclass it with `build` and `parse`; what comes with us is graded split.

    A subclass of one's own travels in a batch by the name under which its class is registered in the entry-point group
    `collimate_rl.rewards`, with `wire_arguments()` as the keyword arguments that make it again.
    """

    @abstractmethod
    def build(self, candidate_path: str) -> str:
        """The one program that runs the candidate in the file `candidate_path` and prints its score last."""

    @abstractmethod
    def parse(self, stdout: str) -> float:
        """The reward in [0, 1] that the program's output means; `last_number(stdout)` is the classic reading."""

    def wire_arguments(self) -> dict[str, Any]:
        """JSON-able keyword arguments from which the class makes this spec again; by default its instance's fields."""
        return dict(vars(self))

    def to_wire(self) -> dict[str, Any]:
        """The spec as a JSON-able dict; ValueError when its class isn't registered."""
        name = _registered_name(type(self))
        return {"type": "registered", "name": name, "arguments": self.wire_arguments()}


def last_number(stdout: str) -> float:
    """The last non-empty line as a number in [0, 1]; 0.0 when it is none."""
    lines = stdout.split()
    last = next((line.strip() for line in reversed(stdout.splitlines()) if line.strip()), "") if lines else ""
    try:
        value = float(last)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and 0.0 <= value <= 1.0 else 0.0


def registered(name: str, arguments: Mapping[str, Any]) -> RewardSpec:
    """The spec that a registered class makes of `arguments`; ValueError when there is no such class."""
    for point in entry_points(group=ENTRY_POINTS, name=name):
        made = point.load()(**arguments)
        if isinstance(made, RewardSpec):
            return made
        raise ValueError(f"the entry point {name!r} of {ENTRY_POINTS} makes no RewardSpec")
    raise ValueError(
        f"no reward spec {name!r} is registered here: install the package that declares it in the entry-point group "
        f"{ENTRY_POINTS} on every worker"
    )


def _registered_name(kind: type) -> str:
    for point in entry_points(group=ENTRY_POINTS):
        if point.module == kind.__module__ and point.attr == kind.__qualname__:
            return point.name
    raise ValueError(
        f"{kind.__module__}.{kind.__qualname__} can't travel: register it in the entry-point group {ENTRY_POINTS} "
        "(here and on the workers), or grade it inline"
    )


def check_entry(entry: object) -> str:
    """The name of a function, or `Class.method`; ValueError when it is neither."""
    if not isinstance(entry, str) or not all(part.isidentifier() for part in entry.split(".")) or entry.count(".") > 1:
        raise ValueError(f"entry is a function's name, or Class.method, not {entry!r}")
    return entry


def check_limits(case_timeout_s: Any, max_cases: Any) -> None:
    """ValueError unless both are None or in range."""
    if case_timeout_s is not None and not (is_number(case_timeout_s) and 0.0 < case_timeout_s <= 3600.0):
        raise ValueError(f"case_timeout_s is a number of seconds above 0, at most 3600, not {case_timeout_s!r}")
    if max_cases is not None and (isinstance(max_cases, bool) or not isinstance(max_cases, int) or max_cases < 1):
        raise ValueError(f"max_cases is a whole number of at least 1, not {max_cases!r}")


def check_flag(name: str, value: Any) -> None:
    """ValueError unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is true or false, not {value!r:.100}")


def is_number(value: Any) -> bool:
    """A finite int or float that is no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_seed(seed: str | None) -> None:
    """ValueError unless it is None or 64 hex digits."""
    if seed is not None and not is_valid_seed(seed):
        raise ValueError(f"a seed is 64 hex digits (32 bytes), not {seed!r}")
