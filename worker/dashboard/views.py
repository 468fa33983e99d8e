"""What the numbers say at a glance: pure functions from one look to the words of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from markupsafe import Markup

from collimate_rl.queue.node_numbers import NodeNumbers
from collimate_rl.queue.numbers import Numbers, RunNumbers
from worker.dashboard import plots, texts

BEHIND_S = 120.0
"""What waits would take so long at the present rate: behind."""
STALLED_S = 60.0
"""Something waits for so long, and nothing was answered within the last minute: stalled."""
INFRA_WARN = 0.01
INFRA_BAD = 0.05
SMALL_LOT = 20
"""Below so many candidates a share of infra errors warns and does no more."""
UNCOUNTED = 200
ACTIVE_S = 600.0
MAX_ROWS = 50


class Level(str, Enum):
    """How an answer is shown: by a word and a shape first, and by a colour."""

    GOOD = "good"
    CALM = "calm"
    MISS = "miss"
    """A candidate that failed by itself: the daily bread of training, and no trouble."""
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question, and what the numbers say to it."""

    question: str
    level: Level
    short: str
    long: str


def answers(numbers: Numbers) -> tuple[Answer, ...]:
    """Is grading keeping up, is it healthy, who uses it, which nodes."""
    return (keeping_up(numbers), healthy(numbers), used_by(numbers), nodes_say(numbers))


def keeping_up(numbers: Numbers) -> Answer:
    question = "Keeping up?"
    waits = texts.plural(numbers.queued, "batch waits", "batches wait")
    oldest = "" if numbers.oldest_s is None else f"; the oldest is {texts.seconds(numbers.oldest_s)} old"
    if not numbers.unanswered:
        told = f"{texts.plural(numbers.recent.batches, 'batch', 'batches')} answered in ten minutes"
        return Answer(question=question, level=Level.CALM, short="Nothing waits", long=told)
    able = [node for node in numbers.nodes if takes_work(node)]
    if not able and not numbers.in_flight:
        return Answer(question=question, level=Level.BAD, short="Nobody grades", long=f"{waits}, no node takes work")
    if numbers.batches_per_s == 0 and (numbers.oldest_s or 0) > STALLED_S:
        told = f"Nothing was answered in the last minute{oldest}"
        return Answer(question=question, level=Level.BAD, short="Stalled", long=told)
    if not numbers.queued:
        return Answer(question=question, level=Level.GOOD, short="Yes", long=f"Everything is being graded{oldest}")
    if numbers.batches_per_s == 0:
        return Answer(question=question, level=Level.CALM, short="Starting", long=f"{waits}{oldest}")
    drain = numbers.queued / numbers.batches_per_s
    told = f"{waits}: about {texts.seconds(drain)} of work at this rate{oldest}"
    if drain > BEHIND_S:
        return Answer(question=question, level=Level.WARN, short="Behind", long=told)
    return Answer(question=question, level=Level.GOOD, short="Yes", long=told)


def healthy(numbers: Numbers) -> Answer:
    level, found = Level.GOOD, []
    recent = numbers.recent
    if recent.infra:
        share = recent.infra_share or 0.0
        found.append(f"{texts.share(recent.infra, recent.candidates)} infra errors in ten minutes")
        worst = share >= INFRA_BAD and recent.candidates >= SMALL_LOT
        level = Level.BAD if worst else Level.WARN if share >= INFRA_WARN else Level.GOOD
    if recent.unread:
        found.append(f"{texts.plural(recent.unread, 'answer', 'answers')} could not be read: no mean reward knows them")
        level = _worse(level, Level.WARN)
    lost = [node.name for node in numbers.nodes if node.heartbeat_s is None and node.in_flight]
    if lost:
        found.append(f"lost with work in hand: {', '.join(lost[:3])}{' …' if len(lost) > 3 else ''}")
        level = _worse(level, Level.WARN)
    if numbers.quarantined:
        found.append(f"{texts.plural(numbers.quarantined, 'candidate', 'candidates')} in quarantine")
        level = _worse(level, Level.WARN)
    if numbers.nodes and not numbers.janitor:
        found.append("no janitor leads: what dies is not recovered")
        level = _worse(level, Level.WARN)
    elif numbers.uncounted > UNCOUNTED:
        found.append("answers are counted late")
        level = _worse(level, Level.WARN)
    if numbers.unanswered and not numbers.settled:
        found.append("the clock is not settled: lost owners are not replaced yet")
        level = _worse(level, Level.WARN)
    short = {Level.GOOD: "Yes", Level.WARN: "Look closer", Level.BAD: "No"}[level]
    told = "; ".join(found) or "No infra errors in ten minutes"
    return Answer(question="Healthy?", level=level, short=short, long=told[0].upper() + told[1:])


def used_by(numbers: Numbers) -> Answer:
    active = [run.name for run in ordered_runs(numbers) if is_active(run)]
    if not active:
        return Answer(question="Who uses it?", level=Level.CALM, short="Nobody now", long="No run submits or waits")
    told = ", ".join(active[:3]) + (f" and {len(active) - 3} more" if len(active) > 3 else "")
    return Answer(question="Who uses it?", level=Level.CALM, short=texts.plural(len(active), "run", "runs"), long=told)


def nodes_say(numbers: Numbers) -> Answer:
    question = "Which nodes?"
    alive = [node for node in numbers.nodes if node.heartbeat_s is not None]
    able = [node for node in alive if takes_work(node)]
    if not alive:
        told = "No node has a heartbeat: start one with python -m worker"
        return Answer(question=question, level=Level.WARN, short="None", long=told)
    slots = sum(node.slots or 0 for node in able)
    unwell = [node for node in alive if not takes_work(node) or node.failed_templates]
    said = [f"{node.name}: {node_state(node).short.lower()}" for node in unwell]
    short = (
        f"{len(able)} of {len(alive)} at work" if len(able) < len(alive) else texts.plural(len(alive), "node", "nodes")
    )
    named = "; ".join([*said[:3], *(["\u2026"] if len(said) > 3 else [])])
    told = f"{texts.plural(slots, 'slot', 'slots')}" + (f"; {named}" if named else ", all take work")
    level = Level.GOOD if not unwell else Level.WARN if able else Level.BAD
    return Answer(question=question, level=level, short=short, long=told)


def is_active(run: RunNumbers) -> bool:
    """It submitted within ten minutes, or waits."""
    return run.last_submit_s <= ACTIVE_S or run.unanswered > 0


def ordered_runs(numbers: Numbers) -> list[RunNumbers]:
    """Active ones first, and by name: an order in which rows stay where they are from look to look."""
    return sorted(numbers.runs, key=lambda run: (not is_active(run), run.name))


_ORDER = (Level.CALM, Level.MISS, Level.GOOD, Level.WARN, Level.BAD)


def _worse(one: Level, other: Level) -> Level:
    return max(one, other, key=_ORDER.index)


def takes_work(node: NodeNumbers) -> bool:
    """A heartbeat, a daemon that was not found wanting, and no drain."""
    return node.heartbeat_s is not None and node.up is not False and not node.draining


def node_state(node: NodeNumbers) -> Answer:
    """One node in a word."""
    if node.heartbeat_s is None:
        told = "holds batches whose leases will run out" if node.in_flight else "stopped, or lost"
        return Answer(question=node.name, level=Level.WARN, short="No heartbeat", long=told)
    if node.draining:
        return Answer(question=node.name, level=Level.WARN, short="Draining", long=node.reason or "takes no batch")
    if node.up is False:
        return Answer(question=node.name, level=Level.BAD, short="Daemon down", long=node.reason or "no sandboxes")
    if node.up is None:
        return Answer(question=node.name, level=Level.CALM, short="Daemon unknown", long="it has not said yet")
    if node.failed_templates:
        told = "; ".join(f"template {name} failed: {why}" for name, why in sorted(node.failed_templates.items()))
        return Answer(question=node.name, level=Level.WARN, short="Template failed", long=told)
    return Answer(question=node.name, level=Level.GOOD, short="Daemon up", long="")


def reward_plot(run: RunNumbers, numbers: Numbers, *, area: bool = False) -> Markup:
    """Mean reward per step of time, over the series' whole span; steps without a verdict are gaps."""
    label = f"Mean reward of {run.name} over the {span_words(numbers)}: {_summary(run)}"
    return plots.line_plot(_steps(run, numbers), label=label, area=area)


def _summary(run: RunNumbers) -> str:
    values = [point.mean_reward for point in run.rewards if point.mean_reward is not None]
    if not values:
        return "no verdict yet"
    return (
        f"first {texts.reward(values[0])}, last {texts.reward(values[-1])}, lowest {texts.reward(min(values))}, "
        f"highest {texts.reward(max(values))}"
    )


def _steps(run: RunNumbers, numbers: Numbers) -> list[plots.Point]:
    """Every step of the span; so that time is time, also where nothing was graded."""
    by_step = {int(point.at): point.mean_reward for point in run.rewards}
    return [plots.Point(at=float(at), value=by_step.get(at)) for at in _times(numbers)]


def _times(numbers: Numbers) -> range:
    step = numbers.series.step_s
    last = int(numbers.at) // step * step
    return range(last - numbers.series.span_s + step, last + step, step)


def throughput_plot(runs: Iterable[RunNumbers], numbers: Numbers) -> Markup:
    """Candidates graded per step of time, of all runs shown."""
    graded: dict[int, int] = {}
    for run in runs:
        for point in run.rewards:
            graded[int(point.at)] = graded.get(int(point.at), 0) + point.graded
    values = [graded.get(at, 0) for at in _times(numbers)]
    label = (
        f"Candidates graded per {step_words(numbers)} over the {span_words(numbers)}: "
        f"{sum(values):,} in all, at most {max(values, default=0):,}"
    )
    return plots.bars(values, label=label)


def span_words(numbers: Numbers) -> str:
    """`last hour`, `last 24 hours`."""
    hours = numbers.series.span_s / 3600
    return "last hour" if hours == 1 else f"last {hours:g} hours"


def step_words(numbers: Numbers) -> str:
    """`minute`, `10 minutes`."""
    minutes = numbers.series.step_s / 60
    return "minute" if minutes == 1 else f"{minutes:g} minutes"


def ranked(counts: Iterable[tuple[str, int]]) -> Sequence[tuple[str, int]]:
    """Names with something to count, the most frequent first."""
    return sorted(((name, n) for name, n in counts if n), key=lambda item: (-item[1], item[0]))[:MAX_ROWS]


def infra_by_node(numbers: Numbers) -> Sequence[tuple[str, int]]:
    """Infra-flagged candidates of the last ten minutes by node, the worst first."""
    return ranked((node.name, node.counts.infra) for node in numbers.nodes)
