"""What `collimate top` draws, and what it makes of texts that nobody should have to trust."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from collimate_rl.cli.top_command import Look, looks
from collimate_rl.cli.top_view import away, daemon_state, named, plot, screen, seconds
from collimate_rl.cli.trace_command import _time
from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.queue.counts import Counts
from collimate_rl.queue.node_numbers import NodeNumbers
from collimate_rl.queue.numbers import Numbers, RewardPoint, RunNumbers

NODE = NodeNumbers(
    name="n1",
    heartbeat_s=1.0,
    in_flight=2,
    slots=4,
    processes=2,
    up=True,
    reason="",
    draining=False,
    isolation="namespaces",
    backend="unix:/x",
    daemon_version="1",
    version="0.9.0",
    templates=("py",),
    host="h",
    counts=Counts(),
)
RUN = RunNumbers(
    name="run-a",
    submitted=12,
    unanswered=2,
    counts=Counts.of({"batches": 10, "candidates": 40, "graded": 30, "infra": 10, "reward": 15_000_000, "flag:nan": 3}),
    rewards=tuple(
        RewardPoint(at=60.0 * step, graded=count, infra=0, mean_reward=mean)
        for step, (count, mean) in enumerate([(1, 0.0), (0, None), (4, 0.5), (2, 1.0)])
    ),
    suspects={"tampered": 1, "sandbox_killed": 0},
    last_submit_s=3.0,
    oldest_s=5.0,
)
NUMBERS = Numbers(
    queue="grade",
    at=0.0,
    unanswered=2,
    queued=1,
    in_flight=1,
    looked_at=2,
    oldest_s=5.0,
    lossy=0,
    answered_per_s=4.0,
    graded_per_s=3.0,
    batches_per_s=1.0,
    minute=Counts(),
    recent=Counts.of({"candidates": 4, "infra": 1, "code:draining": 1, "recovered:read": 2, "status:expired": 1}),
    total=Counts(),
    uncounted=7,
    quarantined=1,
    settled=True,
    janitor="",
    runs=(RUN,),
    nodes=(NODE,),
)


def drawn(what: Any, width: int = 160) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(what)
    return stream.getvalue()


def test_the_numbers_stand_there() -> None:
    text = drawn(screen(NUMBERS))
    for words in (
        "queued 1",
        "in flight 1",
        "oldest 5.0 s",
        "graded 3.0/s",
        "infra errors 25.0%: draining 1",
        "recoveries: read 2",
        "batches not graded: expired 1",
        "in quarantine 1",
        "no janitor leads: lost batches are not found. 7 answers wait to be counted.",
        "run-a",
        "nan 3, tampered 1",
        "0.500",
        "n1",
        "0.9.0",
    ):
        assert words in text, words


def test_what_a_daemon_says_is_no_markup_and_no_control() -> None:
    hostile = replace(NODE, up=False, reason="[red]\x1b[31m\x07x", version="[bold]\x1b]0;t\x07")
    hostile = replace(hostile, failed_templates={"numpy": "[bold]no\x1b module"})
    text = drawn(screen(replace(NUMBERS, nodes=(hostile,))))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "down: [red]\\x1b[31m\\x07x" in text
    assert "node n1: template numpy failed: [bold]no\\x1b module" in text
    assert "\x1b" not in drawn(away("[red]\x1b[31m", 3.0))


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (NODE, "up"),
        (replace(NODE, isolation="none"), "up, unisolated"),
        (replace(NODE, draining=True), "draining"),
        (replace(NODE, up=None), "not said"),
        (replace(NODE, up=False, reason="gone"), "down: gone"),
        (replace(NODE, heartbeat_s=None), "node stopped or lost"),
    ],
    ids=["up", "unisolated", "draining", "silent", "down", "lost"],
)
def test_a_node_is_said_to_be(node: NodeNumbers, said: str) -> None:
    assert daemon_state(node)[0] == said


def test_a_plot_goes_from_nothing_to_full_and_skips_what_was_not_graded() -> None:
    assert plot(RUN) == "▁▅█"


def test_durations_and_counts_in_words() -> None:
    assert [seconds(value) for value in (None, 0.25, 59.6, 150.0, 9000.0)] == ["-", "0.2 s", "60 s", "2 min", "2.5 h"]
    assert named({"b": 1, "a": 1, "c": 5, "z": 0}) == "c 5, a 1, b 1"
    assert named({}) == "none"


def test_an_outage_is_a_look_and_a_refusal_ends_it() -> None:
    now = [0.0]
    told: Iterator[Numbers | QueueError] = iter(
        [NUMBERS, RedisUnavailable("away"), RedisUnavailable("away"), NUMBERS, QueueError("no")]
    )

    def read() -> Numbers:
        one = next(told)
        if isinstance(one, Exception):
            raise one
        return one

    def sleep(seconds: float) -> None:
        now[0] += seconds

    seen = looks(read, 2.0, clock=lambda: now[0], sleep=sleep)
    found: list[Look] = [next(seen) for _ in range(4)]
    assert [(look.numbers is None, look.error, look.away_s) for look in found] == [
        (False, "", 0.0),
        (True, "away", 0.0),
        (True, "away", 2.0),
        (False, "", 0.0),
    ]
    with pytest.raises(QueueError, match="no"):
        next(seen)


def test_brackets_in_names_are_no_markup_and_unread_answers_are_told() -> None:
    counts = {"candidates": 4, "graded": 4, "unread": 1, "unread_graded": 3, "recovered:[/red]": 2, "status:[bold]": 1}
    odd = replace(RUN, rewards=(RewardPoint(at=0.0, graded=1, infra=0, mean_reward=-7.0),))
    shown = drawn(screen(replace(NUMBERS, recent=Counts.of(counts), runs=(odd,))))
    assert "[/red] 2" in shown
    assert "[bold] 1" in shown
    assert "1 answers could not be read: mean rewards leave 3 candidates out" in shown


def test_a_time_beyond_all_calendars_breaks_no_trace() -> None:
    assert _time(1e300).strip() == _time(float("nan")).strip() == "--"


def test_in_80_columns_a_run_has_its_numbers_whole_and_its_name() -> None:
    points = tuple(RewardPoint(at=60.0 * step, graded=1, infra=0, mean_reward=0.5) for step in range(60))
    name = "qwen3-grpo-2026-11-30-rank0"
    busy = replace(RUN, name=name, submitted=1_234_567, rewards=points)
    lines = drawn(screen(replace(NUMBERS, runs=(busy,))), 80).splitlines()
    told = lines[lines.index(next(line for line in lines if line.startswith("runs"))) :]
    assert told[1].split() == ["run", "submitted", "answered", "open", "mean", "infra", "last", "hour", "flags"]
    assert [word in told[2] for word in ("1,234,567", " 10 ", " 2 ", "0.500", "25.0%")] == [True] * 5
    assert "".join(line.partition(" ")[0] for line in told[2:5]) == name
    assert "…" not in "".join(lines)


def test_what_there_is_none_of_is_a_line() -> None:
    text = drawn(screen(replace(NUMBERS, queue="grad", runs=(), nodes=())))
    assert "runs: none\n" in text
    assert "nodes: none serves queue grad\n" in text
