"""What a submit says of a spec that can't go with a batch."""

from __future__ import annotations

from typing import Any

import pytest

from collimate_rl import RewardSpec
from producer.producer import _spec_text


class Unregistered(RewardSpec):
    def build(self, candidate_path: str) -> str:
        return candidate_path

    def parse(self, stdout: str) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (Unregistered(), r"^test_producer_specs\.Unregistered can't travel: register it in the entry-point group "),
        ({"type": "x", "value": object()}, "^the spec's wire form is not plain JSON data: "),
        ([], "^a list is no reward spec: "),
    ],
    ids=["not registered", "no data", "no spec"],
)
def test_it_says_what_is_wrong_and_no_more(spec: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _spec_text(spec)
