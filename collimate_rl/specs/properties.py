"""A property: random inputs from a generator, and a reference that says what each is to give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from collimate_rl.specs.base import RewardSpec, check_entry, check_limits, last_number
from collimate_rl.specs.classic import property_program
from collimate_rl.specs.options import OPTIONS, CompareOptions, check_credit, wire_options

MAX_K = 10_000


@dataclass
class PropertyReward(RewardSpec):
    """Reward = the fraction of `k` random inputs on which the candidate gives what the reference gives.

    `reference` is the indented body of `def _ref(x)`; `generator` an expression with `random` in scope; x is one
    argument, also when it is a list. A seed fixes the inputs: `random.seed(int(seed, 16))`, then generator and
    reference in turn. The options are `UnitTestReward`'s; `max_cases` takes the first of the random inputs. Not frozen,
    since classic subclasses set fields of their own.
    """

    reference: str
    generator: str
    k: int = 16
    entry: str = "solve"
    _: KW_ONLY
    compare: str = "exact"
    tolerance: float | None = None
    unordered: bool = False
    case_timeout_s: float | None = None
    max_cases: int | None = None
    relative_tolerance: float | None = None
    credit: str = "fraction"

    def __post_init__(self) -> None:
        for name in ("reference", "generator"):
            source: object = getattr(self, name)
            if not isinstance(source, str) or not source.strip():
                raise ValueError(f"{name} is Python source, not {source!r:.100}")
        try:
            compile(reference_source(self.reference), "<reference>", "exec", dont_inherit=True)
            compile(self.generator.strip(), "<generator>", "eval", dont_inherit=True)
        except (SyntaxError, ValueError) as fault:
            raise ValueError(
                f"reference is the indented body of a function of x, and generator one expression: {fault}"
            ) from None
        k: object = self.k
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAX_K:
            raise ValueError(f"k is a whole number from 1 to {MAX_K}, not {k!r}")
        check_entry(self.entry)
        check_limits(self.case_timeout_s, self.max_cases)
        check_credit(self.credit, None, None)
        self.options()

    def options(self) -> CompareOptions:
        """How results are compared, validated."""
        return CompareOptions(
            mode=self.compare,
            tolerance=self.tolerance,
            relative=self.relative_tolerance,
            unordered=self.unordered,
        )

    def build(self, candidate_path: str) -> str:
        """The classic one-program grader, which a subclass that overrides `build` or `parse` is graded by."""
        return property_program(candidate_path, self.entry, reference_source(self.reference), self.generator, self.k)

    def parse(self, stdout: str) -> float:
        return last_number(stdout)

    def to_wire(self) -> dict[str, Any]:
        if type(self) is not PropertyReward:
            return super().to_wire()
        return {"type": "property", **wire_options(self, _FIELDS, ("relative_tolerance", "credit"))}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> PropertyReward:
        """The spec that `to_wire` wrote; ValueError when it didn't."""
        return cls(**{key: value for key, value in wire.items() if key != "type"})


_FIELDS = (
    "reference",
    "generator",
    "k",
    "entry",
    *OPTIONS,
)


def reference_source(body: str) -> str:
    """The function that a reference's body makes."""
    return f"def _ref(x):\n{body}\n"
