"""The dashboard's pure parts: drawings, texts, and what numbers are said to mean."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from markupsafe import Markup

from collimate_rl.queue.counts import Counts
from collimate_rl.queue.node_numbers import NodeNumbers
from collimate_rl.queue.numbers import Numbers, RewardPoint, RunNumbers
from worker.dashboard import plots, texts, views
from worker.dashboard.batch_pages import outcome_level, replay_command, status_mark
from worker.dashboard.feed import Look
from worker.dashboard.plots import Point
from worker.dashboard.render import Renderer, clock, iso, stamp
from worker.dashboard.views import Level

HOSTILE = "\"><script>alert(1)</script>'&"


def node(name: str = "n1", **fields: Any) -> NodeNumbers:
    given: dict[str, Any] = {
        "heartbeat_s": 1.0,
        "in_flight": 0,
        "slots": 4,
        "processes": 2,
        "up": True,
        "reason": "",
        "draining": False,
        "isolation": "namespaces",
        "backend": "",
        "daemon_version": "",
        "version": "",
        "templates": ("py",),
        "host": "h",
        "counts": Counts(),
    }
    return NodeNumbers(name=name, **{**given, **fields})


def run(name: str = "r", rewards: tuple[RewardPoint, ...] = (), **fields: Any) -> RunNumbers:
    given: dict[str, Any] = {
        "submitted": 1,
        "unanswered": 0,
        "counts": Counts(),
        "rewards": rewards,
        "suspects": {},
        "last_submit_s": 1.0,
        "oldest_s": None,
    }
    return RunNumbers(name=name, **{**given, **fields})


def numbers(**fields: Any) -> Numbers:
    given: dict[str, Any] = {
        "queue": "grade",
        "at": 1_800_000_030.0,
        "unanswered": 0,
        "queued": 0,
        "in_flight": 0,
        "looked_at": 0,
        "oldest_s": None,
        "lossy": 0,
        "answered_per_s": 0.0,
        "graded_per_s": 0.0,
        "batches_per_s": 0.0,
        "minute": Counts(),
        "recent": Counts(),
        "total": Counts(),
        "uncounted": 0,
        "quarantined": 0,
        "settled": True,
        "janitor": "j",
        "runs": (),
        "nodes": (node(),),
    }
    return Numbers(**{**given, **fields})


def paths(drawing: Markup) -> list[str]:
    return [element.get("d", "") for element in ET.fromstring(drawing) if element.get("class") == "plot-line"]


def test_a_line_is_drawn_from_left_to_right_with_gaps_where_nothing_was() -> None:
    values = [0.0, 0.5, None, 1.0, math.nan, 0.25, 0.75]
    drawn = plots.line_plot([Point(at=i, value=v) for i, v in enumerate(values)], label="x")
    first, second = paths(drawn)
    bottom, top = plots.HEIGHT - plots.PAD, plots.PAD
    assert first.startswith(f"M0.0 {bottom:.1f}L")
    assert second.endswith(f"L{plots.WIDTH:.1f} {bottom - 0.75 * (bottom - top):.1f}")
    (dot,) = re.findall(r'plot-dot" d="M([\d.]+) ([\d.]+)h0"', drawn)
    assert dot == ("500.0", f"{top:.1f}")


def test_a_line_stays_in_its_frame_and_is_bounded() -> None:
    drawn = plots.line_plot([Point(at=i, value=v) for i, v in enumerate([-5.0, 7.0])], label="x", area=True)
    ys = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", paths(drawn)[0])]
    assert ys == [plots.HEIGHT - plots.PAD, plots.PAD]
    many = plots.line_plot([Point(at=i, value=0.5) for i in range(10_000)], label="x")
    assert paths(many)[0].count("L") == plots.MAX_POINTS - 1
    assert paths(plots.line_plot([], label="x")) == []
    assert "plot-dot" in plots.line_plot([Point(at=3, value=0.5)], label="x")


def test_drawings_carry_labels_and_no_scripts_or_styles() -> None:
    for drawn in (
        plots.line_plot([Point(at=0, value=0.1), Point(at=1, value=0.2)], label=HOSTILE, area=True),
        plots.bars([1, 2, 0, math.inf, -1], label=HOSTILE),
        plots.meter(0.5, label=HOSTILE),
    ):
        parsed = ET.fromstring(drawn)
        assert (parsed.get("role"), parsed.get("aria-label")) == ("img", HOSTILE)
        assert not any("style" in element.attrib for element in parsed.iter())
        assert {element.tag for element in parsed.iter()} <= {"svg", "path", "rect"}


def test_bars_and_meters_are_as_long_as_their_values() -> None:
    heights = re.findall(r'plot-bar".*? height="([\d.]+)"', plots.bars([1, 2, 0, 4], label="x"))
    assert [float(h) for h in heights] == [24.0, 48.0, 96.0]
    assert "plot-bar" not in plots.bars([0, 0], label="x")
    for share, width in ((0.25, 250.0), (7, 1000.0), (-1, 0.0), (math.nan, 0.0)):
        assert f'meter-part" width="{width}"' in plots.meter(share, label="x")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain text\n\twith lines", "plain text\n\twith lines"),
        ("\x1b[31mred\x1b[0m \x1b[38;5;1mtoo\x1b[m", "red too"),
        ("\x1b[2J\x1b]0;title\x07\r", "\\x1b[2J\\x1b]0;title\\x07\\r"),
        ("a\r\nb", "a\nb"),
        ("\u202egnp.exe\u2066 \u200b\ufeff", "\\u202egnp.exe\\u2066 \\u200b\\ufeff"),
        ("half \ud800 nul \x00 c1 \x9b31m", "half \\ud800 nul \\x00 c1 \\x9b31m"),
        ("a\u00adb\U000e0041\u3164\U000e0100 \u2764\ufe0f", "a\\xadb\\U000e0041\\u3164\\U000e0100 \u2764\ufe0f"),
        ("héllo \u65e5\u672c \U0001f600", "héllo \u65e5\u672c \U0001f600"),
    ],
    ids=["plain", "colours", "steering", "lines", "direction", "halves", "blanks", "letters"],
)
def test_text_is_made_harmless(given: str, shown: str) -> None:
    assert texts.harmless(given) == shown
    shown.encode()


def test_markup_and_numbers_pass_as_they_are() -> None:
    made = Markup("<b>\x1b</b>")
    assert texts.harmless(made) is made
    assert texts.harmless(3) == 3


def test_texts_are_capped() -> None:
    assert texts.cap("x" * 70_000) == texts.Shown(text="x" * 65_536, left_out=4_464)
    assert texts.cap("x").left_out == 0
    assert texts.clip("a  b\nc" + "d" * 100, 8) == "a b cdd\u2026"
    assert texts.clip("short", 8) == "short"


def test_numbers_read_well() -> None:
    ages = [0, 0.0004, 0.05, 0.5, 9.96, 75, 120, 3570, 7500, 200_000, None]
    assert [texts.seconds(age) for age in ages] == [
        "0 ms", "0 ms", "50 ms", "0.5 s", "10 s", "75 s", "2 min", "1 h 00 min", "2 h 05 min", "2 d 7 h", "\u2013",
    ]  # fmt: skip
    assert [texts.millis(ms) for ms in (0, 0.4, 41.5, None)] == ["0 ms", "< 1 ms", "42 ms", "\u2013"]
    assert [texts.ago(s) for s in (0.2, 12, None)] == ["just now", "12 s ago", "\u2013"]
    assert [texts.rate(r) for r in (0, 0.021, 3.44, 120.4, None)] == ["0", "0.02", "3.4", "120", "\u2013"]
    shares = [texts.share(*pair) for pair in ((0, 0), (0, 9), (1, 5000), (4999, 5000), (1, 8), (9, 9))]
    assert shares == ["\u2013", "0 %", "< 0.1 %", "> 99.9 %", "12.5 %", "100 %"]
    assert [texts.reward(r) for r in (None, 0.0, 1.0, 1 / 3)] == ["\u2013", "0", "1", "0.333"]


WAITING = {"unanswered": 9, "queued": 9}


@pytest.mark.parametrize(
    ("fields", "level", "short"),
    [
        ({}, Level.CALM, "Nothing waits"),
        ({**WAITING, "nodes": ()}, Level.BAD, "Nobody grades"),
        ({**WAITING, "nodes": (node(up=False),)}, Level.BAD, "Nobody grades"),
        ({**WAITING, "nodes": (node(draining=True),)}, Level.BAD, "Nobody grades"),
        ({**WAITING, "oldest_s": 90.0}, Level.BAD, "Stalled"),
        ({**WAITING, "oldest_s": 5.0}, Level.CALM, "Starting"),
        ({**WAITING, "batches_per_s": 1.0, "oldest_s": 90.0}, Level.GOOD, "Yes"),
        ({**WAITING, "batches_per_s": 0.01}, Level.WARN, "Behind"),
        ({"unanswered": 2, "in_flight": 2, "batches_per_s": 1.0}, Level.GOOD, "Yes"),
        ({"unanswered": 2, "in_flight": 2, "oldest_s": 400.0}, Level.BAD, "Stalled"),
    ],
    ids=["idle", "no node", "down", "draining", "stalled", "starting", "fast", "slow", "all in work", "hanging"],
)
def test_keeping_up(fields: dict[str, Any], level: Level, short: str) -> None:
    said = views.keeping_up(numbers(**fields))
    assert (said.level, said.short) == (level, short)


def lot(candidates: int, infra: int) -> Counts:
    return Counts(candidates=candidates, infra=infra, infra_share=infra / candidates)


@pytest.mark.parametrize(
    ("fields", "level", "told"),
    [
        ({}, Level.GOOD, "No infra errors"),
        ({"recent": lot(10_000, 3)}, Level.GOOD, "< 0.1 % infra errors"),
        ({"recent": lot(100, 2)}, Level.WARN, "2 % infra errors"),
        ({"recent": lot(100, 20)}, Level.BAD, "20 % infra errors"),
        ({"recent": lot(2, 1)}, Level.WARN, "50 % infra errors"),
        ({"quarantined": 1}, Level.WARN, "1 candidate in quarantine"),
        ({"janitor": ""}, Level.WARN, "no janitor leads"),
        ({"uncounted": 900}, Level.WARN, "counted late"),
        ({"unanswered": 1, "settled": False}, Level.WARN, "not settled"),
        ({"nodes": (node("gone", heartbeat_s=None, in_flight=2),)}, Level.WARN, "lost with work in hand: gone"),
        ({"recent": lot(100, 20), "quarantined": 1}, Level.BAD, "; 1 candidate in quarantine"),
    ],
    ids=["well", "few", "some", "many", "small lot", "quarantine", "janitor", "late", "clock", "lost", "worst wins"],
)
def test_healthy(fields: dict[str, Any], level: Level, told: str) -> None:
    said = views.healthy(numbers(**fields))
    assert said.level is level
    assert told.lower() in said.long.lower()


def test_nodes_and_runs_in_words() -> None:
    mixed = numbers(nodes=(node("a"), node("b", draining=True), node("c", up=False, reason="refused")))
    said = views.nodes_say(mixed)
    assert (said.level, said.short, said.long) == (Level.WARN, "1 of 3 at work", "4 slots; b: draining; c: daemon down")
    failing = node("d", failed_templates={"numpy": "no module"})
    said = views.nodes_say(numbers(nodes=(node("a"), failing)))
    assert (said.level, said.short, said.long) == (Level.WARN, "2 nodes", "8 slots; d: template failed")
    assert views.node_state(failing).long == "template numpy failed: no module"
    assert views.nodes_say(numbers(nodes=())).short == "None"
    assert views.nodes_say(numbers()).level is Level.GOOD
    assert [views.node_state(one).short for one in (*mixed.nodes, node(heartbeat_s=None), node(up=None))] == [
        "Daemon up", "Draining", "Daemon down", "No heartbeat", "Daemon unknown",
    ]  # fmt: skip
    held = numbers(runs=(run("z", last_submit_s=5e3), run("b"), run("a", last_submit_s=5e3, unanswered=1)))
    assert [one.name for one in views.ordered_runs(held)] == ["a", "b", "z"]
    assert (views.used_by(held).short, views.used_by(held).long) == ("2 runs", "a, b")
    assert views.used_by(numbers()).short == "Nobody now"


def test_a_run_is_drawn_over_the_whole_hour() -> None:
    step = 1_800_000_000 // 60 * 60
    rewards = tuple(
        RewardPoint(at=float(step - 60 * back), graded=4, infra=0, mean_reward=0.5) for back in (0, 1, 30, 31)
    )
    held = numbers(runs=(run("r", rewards=rewards),))
    drawn = views.reward_plot(held.runs[0], held)
    assert len(paths(drawn)) == 2
    assert 'aria-label="Mean reward of r over the last hour: first 0.5, last 0.5' in drawn
    assert "no verdict yet" in views.reward_plot(run("r"), held)
    throughput = views.throughput_plot(held.runs, held)
    assert throughput.count("plot-bar") == 4
    assert "16 in all, at most 4" in throughput


def test_failing_is_ordinary_and_attacking_is_not() -> None:
    assert outcome_level("passed") is Level.GOOD
    assert outcome_level("wrong_answer") is Level.MISS
    assert outcome_level("tampered") is Level.BAD
    assert (status_mark("graded").level, status_mark("partial").level) == (Level.GOOD, Level.WARN)


def test_the_command_that_replays_is_quoted() -> None:
    assert replay_command("run", "id.7", 0, 3) == "collimate replay run/id.7 --index 3"
    assert replay_command("run", "id", 2, 0) == "collimate replay run/id --index 0 --epoch 2"
    assert replay_command("r; rm -rf /", "$(x)", 0, 0) == "collimate replay 'r; rm -rf //$(x)' --index 0"


@pytest.mark.parametrize("at", [1e300, -1e300, 1e18, float("inf"), float("nan")])
def test_a_time_beyond_all_calendars_breaks_no_page(at: float) -> None:
    """A producer says when it submitted, and may say anything."""
    assert clock(at) == stamp(at) == iso(at) == "\u2013"


def test_answers_that_nobody_could_read_are_said_beside_the_mean() -> None:
    assert texts.read_of(3, 8, 0) == "3 zeros, 37.5 %"
    assert texts.read_of(3, 10, 2) == "3 zeros, 37.5 %; 2 not read, left out"
    recent = Counts.of(
        {"batches": 2, "candidates": 4, "graded": 4, "unread": 1, "unread_graded": 2, "reward": 2_000_000}
    )
    told = views.healthy(numbers(recent=recent))
    assert (told.level, "1 answer could not be read" in told.long) == (views.Level.WARN, True)


def test_a_package_that_is_replaced_meanwhile_changes_no_page_of_a_running_dashboard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renderer = Renderer("grade")

    def replaced(*_given: object) -> None:
        raise AssertionError("a template was read again")

    monkeypatch.setattr("jinja2.loaders.FileSystemLoader.get_source", replaced)
    look: Look[Numbers] = Look(serial=1, numbers=None, read_at=None)
    values = {"look": look, "live": "", "path": "/", "guarded": False, "trouble": "", "k": "", "what": "page"}
    assert "No such page" in renderer.page("missing.html", **values)
    assert "No such batch" in renderer.page("missing.html", **{**values, "what": "batch"})
