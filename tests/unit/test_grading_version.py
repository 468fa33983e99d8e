"""The grader's version changes with the code that judges, and every result carries it."""

from __future__ import annotations

import re
from pathlib import Path

import collimate_rl
from collimate_rl import guest, values
from collimate_rl.grading import version
from collimate_rl.grading.result import GradeResult
from collimate_rl.grading.version import SEMANTICS, digest_of, grader_version, sources


def test_it_is_a_number_and_a_digest_that_every_result_carries() -> None:
    assert re.fullmatch(rf"{re.escape(SEMANTICS)}\+[0-9a-f]{{12}}", grader_version())
    assert GradeResult(1.0).grader_version == grader_version()
    assert grader_version() == f"{SEMANTICS}+{digest_of(sources())}"


def test_every_guest_program_and_every_comparer_is_in_it() -> None:
    names = set(sources())
    assert {f"guest/{module}.py" for modules in guest.MODULES.values() for module in modules} <= names
    package = Path(collimate_rl.__file__).parent
    for folder in ("grading", "specs"):
        assert {path.relative_to(package).as_posix() for path in (package / folder).rglob("*.py")} <= names
    assert Path(values.__file__).relative_to(package).as_posix() in names


def test_any_change_of_any_of_them_changes_it() -> None:
    files = sources()
    digests = {digest_of(files)}
    for name, content in files.items():
        digests.add(digest_of({**files, name: content + b"\n"}))
        digests.add(digest_of({other: text for other, text in files.items() if other != name}))
    digests.add(digest_of({**files, "grading/another.py": b""}))
    assert len(digests) == 2 * len(files) + 2


def test_what_a_file_is_called_and_where_it_ends_counts() -> None:
    assert digest_of({"a": b"bc"}) != digest_of({"ab": b"c"})
    assert digest_of({"a": b"", "b": b""}) != digest_of({"a": b"b"})
    assert digest_of({"a": b"1", "b": b"2"}) == digest_of({"b": b"2", "a": b"1"})


def test_a_file_that_cannot_be_found_is_no_smaller_digest() -> None:
    assert all(any(name == part or name.startswith(f"{part}/") for name in sources()) for part in version.JUDGING)
