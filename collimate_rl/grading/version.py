"""Which grader judged: a number that people raise, and a digest of the code that judges."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final

SEMANTICS: Final = "2"
"""Raised by hand when the same candidate is meant to score otherwise."""
JUDGING: Final = ("grading", "guest", "specs", "values.py")
"""What of the package decides a reward: guest programs, comparers, and what reads their results."""


@lru_cache(maxsize=1)
def sdk_version() -> str:
    """This package's version as it is installed; empty where it runs from sources that are not."""
    try:
        return metadata.version("collimate-rl")
    except metadata.PackageNotFoundError:
        return ""


@lru_cache(maxsize=1)
def grader_version() -> str:
    """`SEMANTICS`, a plus sign, and 12 hex digits over every source file that judges.

    Any edit of those changes it, also one that changes no reward: that errs on the safe side.
    """
    return f"{SEMANTICS}+{digest_of(sources())}"


def digest_of(files: Mapping[str, bytes]) -> str:
    """12 hex digits over names and contents, whatever the order."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        for part in (name.encode(), content):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()[:12]


def sources() -> dict[str, bytes]:
    """The source files that judge, by their path in the package."""
    package = Path(__file__).resolve().parent.parent
    found = {}
    for part in JUDGING:
        place = package / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            # Line ends are a matter of how the package was checked out.
            found[path.relative_to(package).as_posix()] = path.read_bytes().replace(b"\r\n", b"\n")
    return found
