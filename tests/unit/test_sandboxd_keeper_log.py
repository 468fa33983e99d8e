"""A template that cannot be brought up: tried again and again, and said when it begins, changes and ends."""

from __future__ import annotations

import logging
import time

import pytest

from collimate_rl.sandboxd.keepers import ZygoteKeeper
from collimate_rl.sandboxd.zygotes import ZygotePlan


def test_what_keeps_a_template_down_is_said_once_and_when_it_changes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collimate_rl.sandboxd.keepers._BACKOFF_S", (0.0, 0.001))
    reasons = iter([*["no such module"] * 10, *["no memory"] * 10])
    asked: list[str] = []

    def plan() -> ZygotePlan:
        asked.append(next(reasons, "the end"))
        raise ValueError(asked[-1])

    keeper = ZygoteKeeper("broken", plan, 1)
    with caplog.at_level(logging.INFO, logger="collimate_rl.sandboxd.keepers"):
        keeper.start()
        deadline = time.monotonic() + 60
        while len(asked) < 25:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert keeper.failure == "the end"
        keeper.close()
        told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"template broken: a warm interpreter could not be started: {reason}"
        for reason in ("no such module", "no memory", "the end")
    ]
    caplog.clear()
    keeper._report(None)
    keeper._report(None)
    assert [record.getMessage() for record in caplog.records] == ["template broken: its warm interpreters are up now"]
