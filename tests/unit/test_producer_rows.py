"""Rows of a file: what a line may be, what is wrong with it, and what it becomes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from producer.submit_file import BadLine, Defaults, Row, read_row

UNIT = [{"input": 1, "expected": 2}]


def read(data: Any, **defaults: Any) -> Row:
    return read_row(1, json.dumps(data).encode(), Defaults(**defaults))


def test_a_row_is_extracted_and_its_spec_built() -> None:
    completion = "Sure:\n```python\ndef solve(x):\n    return x + 1\n```\n"
    row = read({"ground_truth": UNIT, "completions": [completion, "def solve(x):\n    return 0\n"], "id": "a-1"})
    assert row.id == "a-1"
    assert row.submit["candidates"][0].strip() == "def solve(x):\n    return x + 1"
    assert row.submit["spec"].to_wire()["type"]
    assert (row.submit["template"], row.submit["timeout_seconds"]) == ("py", 30)


def test_a_row_overrules_the_defaults() -> None:
    row = read(
        {"ground_truth": UNIT, "completions": ["x"], "template": "numpy", "timeout_seconds": 3, "entry": "f"},
        template="py",
        timeout_seconds=9,
        seed_mode="crn",
    )
    assert (row.submit["template"], row.submit["timeout_seconds"], row.submit["seed_mode"]) == ("numpy", 3, "crn")
    assert row.submit["spec"].to_wire()["entry"] == "f"


def test_the_default_id_is_the_lines_own() -> None:
    line = json.dumps({"ground_truth": UNIT, "completions": ["x"]}).encode()
    assert read_row(1, line, Defaults()).id == hashlib.sha256(line).hexdigest()[:16]
    assert read_row(7, line, Defaults()).id == read_row(1, line, Defaults()).id


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"nonsense", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"{}", "ground_truth is missing"),
        (b'{"ground_truth": []}', "completions is missing"),
        (b'{"ground_truth": [{"input": 1, "expected": 2}], "completions": "x"}', "not a list of texts"),
        (b'{"ground_truth": [{"input": 1, "expected": 2}], "completions": [1]}', "not a list of texts"),
        (b'{"ground_truth": [{"input": 1, "expected": 2}], "completions": ["x"], "id": "a b"}', "is no name"),
        (b'{"ground_truth": [{"input": 1, "expected": 2}], "completions": ["x"], "id": 5}', "is no name"),
        (b'{"ground_truth": [{"input": 1, "expected": 2}], "completions": ["x"], "entry": 5}', "entry is not"),
        (b'{"ground_truth": [{"input": 1, "expected": 2}], "completions": ["x"], "template": null}', "template is"),
        (b'{"ground_truth": {"nothing": "known"}, "completions": ["x"]}', ""),
        (b'{"ground_truth": "not a truth", "completions": ["x"]}', ""),
        (b'{"ground_truth": null, "completions": ["x"]}', ""),
    ],
)
def test_a_bad_line_says_what_is_wrong(line: bytes, told: str) -> None:
    with pytest.raises(BadLine) as caught:
        read_row(1, line, Defaults())
    assert told in str(caught.value)
