"""verl: `compute_score`, graded inline. `producer.verl` is the same function over the queue."""

from __future__ import annotations

from collimate_rl.verl.reward import compute_score

__all__ = ["compute_score"]
