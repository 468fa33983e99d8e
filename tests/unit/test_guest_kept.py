"""Assembled programs that are kept are those of the sources that are there, or they are made anew."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from collimate_rl import guest
from collimate_rl.guest import assemble
from collimate_rl.guest.kept import kept

MODULES = guest.MODULES["runner"]


class Maker:
    """Makes texts that can be told apart, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        return f"text é {self.made}\n"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys.modules[kept.__module__], "_LOADED_AT", time.time() + 60)
    folder = Path(guest.__file__).parent
    (tmp_path / folder.relative_to("/")).mkdir(parents=True)
    return Maker()


def files(tmp_path: Path) -> list[Path]:
    return list(tmp_path.rglob("program_*"))


def test_it_is_made_once_and_read_then(make: Maker, tmp_path: Path) -> None:
    assert [kept("one", MODULES, make) for _ in range(3)] == ["text é 1\n"] * 3
    [path] = files(tmp_path)
    assert path.stat().st_mode & 0o022 == 0


def test_each_program_has_its_own(make: Maker) -> None:
    assert kept("one", MODULES, make) != kept("two", MODULES, make)


def test_what_was_made_of_other_sources_is_made_anew(make: Maker) -> None:
    assert kept("one", MODULES, make) == "text é 1\n"
    assert kept("one", MODULES[1:], make) == "text é 2\n"
    assert kept("one", MODULES, make) == "text é 3\n"


@pytest.mark.parametrize("harm", ["", "nonsense", "cut", "grown", "changed"])
def test_what_is_not_as_it_was_written_is_made_anew(make: Maker, tmp_path: Path, harm: str) -> None:
    kept("one", MODULES, make)
    [path] = files(tmp_path)
    was = path.read_bytes()
    path.write_bytes(
        {
            "": b"",
            "nonsense": b"\xff\xfe\n\xff",
            "cut": was[:-1],
            "grown": was + b"x",
            "changed": was.replace(b"text", b"TEXT"),
        }[harm]
    )
    assert kept("one", MODULES, make) == "text é 2\n"
    assert kept("one", MODULES, make) == "text é 2\n"


def test_nothing_is_kept_where_no_bytecode_is(make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert [kept("one", MODULES, make) for _ in range(2)] == ["text é 1\n", "text é 2\n"]
    assert files(tmp_path) == []


def test_what_was_replaced_after_the_package_was_loaded_is_not_kept(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of it may have been read before."""
    newest = max((Path(guest.__file__).parent / f"{name}.py").stat().st_ctime for name in MODULES)
    monkeypatch.setattr(sys.modules[kept.__module__], "_LOADED_AT", newest)
    assert [kept("one", MODULES, make) for _ in range(2)] == ["text é 1\n", "text é 2\n"]
    assert files(tmp_path) == []


def test_where_nothing_can_be_written_it_is_made_every_time(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", os.devnull)
    assert [kept("one", MODULES, make) for _ in range(2)] == ["text é 1\n", "text é 2\n"]


def test_the_packages_programs_are_what_their_sources_make() -> None:
    assert {name: assemble(guest.MODULES[name]) for name in guest.MODULES} == dict(guest.programs())
