"""The work that is measured: right candidates for ten cases of a small function."""

from __future__ import annotations

from collimate_rl import UnitTestReward

TEMPLATE = "py"
CONCURRENCY = 24
SPEC = UnitTestReward(tests=[{"input": [n, n + 1], "expected": n * (n + 1)} for n in range(10)])


def candidates(count: int) -> list[str]:
    """Distinct texts, so that nothing can be remembered from one to the next."""
    return [f"def solve(a, b):\n    # candidate {number}\n    return a * b\n" for number in range(count)]
