"""Rewards: the specs, and grading candidates by them. The door to all that `specs`, `formats` and `grading` hold."""

from __future__ import annotations

from collimate_rl.formats import extract_code, reward_spec_from_ground_truth
from collimate_rl.grading.command_session import work_from_session
from collimate_rl.grading.result import CaseResult, GradeResult, SpecFault
from collimate_rl.rewards._grade import grade, grade_batch
from collimate_rl.specs import (
    AssertReward,
    CommandReward,
    PropertyReward,
    RewardSpec,
    StdioReward,
    TestFileReward,
    UnitTestReward,
    spec_from_wire,
)

__all__ = [
    "AssertReward",
    "CaseResult",
    "CommandReward",
    "GradeResult",
    "PropertyReward",
    "RewardSpec",
    "SpecFault",
    "StdioReward",
    "TestFileReward",
    "UnitTestReward",
    "extract_code",
    "grade",
    "grade_batch",
    "reward_spec_from_ground_truth",
    "spec_from_wire",
    "work_from_session",
]
