"""What data sets and models write: ground truths as reward specs, completions as code."""

from __future__ import annotations

from collimate_rl.formats.extract import extract_code
from collimate_rl.formats.ground_truth import reward_spec_from_ground_truth

__all__ = ["extract_code", "reward_spec_from_ground_truth"]
