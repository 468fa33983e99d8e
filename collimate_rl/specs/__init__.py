"""Reward specs: what a candidate is judged by, as validated data that travels in a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collimate_rl.specs.asserts import AssertReward
from collimate_rl.specs.base import RewardSpec, last_number, registered
from collimate_rl.specs.command import CommandReward
from collimate_rl.specs.properties import PropertyReward
from collimate_rl.specs.stdio import StdioReward
from collimate_rl.specs.testfiles import TestFileReward
from collimate_rl.specs.unit import UnitTestReward

__all__ = [
    "AssertReward",
    "CommandReward",
    "PropertyReward",
    "RewardSpec",
    "StdioReward",
    "TestFileReward",
    "UnitTestReward",
    "last_number",
    "spec_from_wire",
]

_READERS = {
    "unit_test": UnitTestReward.from_wire,
    "property": PropertyReward.from_wire,
    "stdio": StdioReward.from_wire,
    "assert": AssertReward.from_wire,
    "test_file": TestFileReward.from_wire,
    "command": CommandReward.from_wire,
}


def spec_from_wire(wire: Mapping[str, Any]) -> RewardSpec:
    """The spec that `to_wire()` wrote; ValueError when nothing of ours did."""
    kind = wire.get("type")
    try:
        if kind == "registered":
            return registered(wire["name"], wire["arguments"])
        if kind in _READERS:
            return _READERS[kind](wire)
    except (TypeError, KeyError) as fault:
        raise ValueError(f"a field of the {kind} spec is missing or unknown: {fault}") from None
    raise ValueError(f"{kind!r} is no type of reward spec")
