"""Problems with many right answers: told by their statements, and by cases that contradict each other.

A flag on grades says that a right answer may have failed (`checker_missing`). It changes no reward, so that a statement
that only sounds so costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

STATEMENTS: Final = (
    *("question", "question_content", "problem", "problem_description", "problem_statement", "statement"),
    *("description", "instruction", "output_format", "note", "text", "prompt"),
)
"""Columns that hold a problem's statement, or a part of it."""
CHECKERS: Final = ("generated_checker", "checker")

_MOST: Final = 200_000
_MANY: Final = re.compile(
    r"\b(?:print|output|return|report|write|display|give)s?\s+(?:out\s+)?any\b(?!\s+(?:two|number|integer))"
    r"|\b(?:multiple|several|many|more\s+than\s+one|different|various)\s+"
    r"(?:(?:possible|valid|correct|optimal|suitable|such|right)\s+)*"
    r"(?:answers?|solutions?|outputs?|ways|results?|options?|variants?|sequences?|strings?|arrays?|permutations?)"
    r"[^.\n]{0,120}\b(?:any|either|arbitrary)\b"
    r"|\bany\s+(?:one\s+)?of\s+(?:them|these|those)\s+(?:is|are|will|can|may|would)\b"
    r"|\bany\s+(?:valid|correct|acceptable|optimal)\s+(?:answer|solution|output)s?\b"
    r"|\b(?:print|output|return|answers?)\b[^.\n]{0,80}\bin\s+any\s+order\b"
    r"|\bother\s+(?:valid|correct|possible)\s+(?:answers|solutions)\b"
    r"|\bone\s+(?:of\s+the\s+)?possible\s+(?:answer|solution|output|way|sequence|distribution|arrangement|assignment)s?\b"
    r"|\bspecial\s+(?:judge|checker)\b",
    re.IGNORECASE,
)


def says_many(text: str) -> bool:
    """Whether a statement says that there may be more than one right answer."""
    return _MANY.search(text[:_MOST]) is not None


def statements_of(row: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a row that state its problem; of a chat, what its messages say."""
    for column in STATEMENTS:
        value = row.get(column)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for message in value:
                if isinstance(message, Mapping) and isinstance(message.get("content"), str):
                    yield message["content"]


def contradict(pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether the same input has two outputs that differ in more than white space."""
    seen: dict[str, list[str]] = {}
    return any(seen.setdefault(given, wanted.split()) != wanted.split() for given, wanted in pairs)


def python_checker(row: Mapping[str, Any]) -> tuple[str | None, bool]:
    """A row's checker where it is Python, and whether it has one at all."""
    for column in CHECKERS:
        value = row.get(column)
        if isinstance(value, str) and value.strip():
            try:
                compile(value, "<checker>", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None, True
            return value, True
    return None, False
