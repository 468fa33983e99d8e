"""What a run of the suite relies on: see tests/fixtures/run_setup.py."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.fixtures import run_setup
from tests.fixtures.fences import ROOT


def test_the_long_files_are_there_and_named_once() -> None:
    names = [path.name for path in (ROOT / "tests").glob("*/test_*.py")]
    assert {name: names.count(name) for name in run_setup.LONG} == dict.fromkeys(run_setup.LONG, 1)
    assert len(set(run_setup.LONG)) == len(run_setup.LONG)


def test_they_come_first_and_each_file_stays_together(request: pytest.FixtureRequest) -> None:
    names = [item.path.name for item in request.session.items]
    order = list(dict.fromkeys(names))
    assert sum(1 for before, name in zip([None, *names], names, strict=False) if before != name) == len(order)
    long = [name for name in order if name in run_setup.LONG]
    assert long == [name for name in run_setup.LONG if name in order] == order[: len(long)]


def test_bytecode_is_kept_and_an_interrupt_is_heard() -> None:
    assert not sys.dont_write_bytecode
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
