"""Fakes for the tests of code that uses this package: no daemon, no Redis, no clock."""

from __future__ import annotations

from collimate_rl.testing.graders import FakeGrader

__all__ = ["FakeGrader"]
