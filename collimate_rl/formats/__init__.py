"""What data sets and models write: ground truths as reward specs, completions as what is graded."""

from __future__ import annotations

from collimate_rl.formats.candidates import candidate_of
from collimate_rl.formats.extract import extract_code
from collimate_rl.formats.ground_truth import reward_spec_from_ground_truth

__all__ = ["candidate_of", "extract_code", "reward_spec_from_ground_truth"]
