"""How results are compared: a spec's options, validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from collimate_rl.specs.base import is_number

VALUE_MODES: Final = ("exact", "json")
TEXT_MODES: Final = ("lines", "tokens", "exact")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """`tolerance` is absolute up to 1 and relative above, and never applies between two integers."""

    mode: str
    tolerance: float | None = None
    unordered: bool = False
    text: bool = False

    def __post_init__(self) -> None:
        modes = TEXT_MODES if self.text else VALUE_MODES
        if self.mode not in modes:
            raise ValueError(f"compare is one of {', '.join(modes)}, not {self.mode!r}")
        if self.tolerance is not None and not (is_number(self.tolerance) and 0.0 <= self.tolerance < 1.0):
            raise ValueError(f"tolerance is a number from 0.0 to below 1.0, not {self.tolerance!r}")
        if not isinstance(self.unordered, bool):
            raise ValueError(f"unordered is true or false, not {self.unordered!r}")
        if self.unordered and self.tolerance is not None:
            raise ValueError("unordered can't be combined with a tolerance: which item would belong to which?")
        if self.text and self.mode == "exact" and (self.unordered or self.tolerance is not None):
            raise ValueError("an exact comparison of text has neither a tolerance nor an order to ignore")
