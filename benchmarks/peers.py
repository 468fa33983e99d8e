"""The product beside what else one would use, in the same rounds: graders, and queues; and how long an answer takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks import chart, peer_graders, peer_queues
from benchmarks.floors import FORK, WORK, clone_contenders
from benchmarks.measure import Contender, median, percentile, rates, ratio
from benchmarks.peer_graders import BWRAP, POOL, SUBPROCESS, ExecPool
from benchmarks.report import Cell, Figure, Section, Table, shown
from benchmarks.targets import TARGETS
from benchmarks.work import CONCURRENCY, SPEC, TEMPLATE, candidates
from collimate_rl import CollimateClient, grade_batch
from collimate_rl.cli.stack import QUEUE, LocalStack
from producer import Producer

GROUPS, WIDTH = 8, 24
COLD = 24
"""Candidates per round for whoever starts an interpreter for each."""
SHORT = 4
"""Candidates of the batch whose latency is measured."""
PROCESSES = 2
INLINE, QUEUED = "inline, isolated", "queued, isolated"
RQ, STREAM = "the same job on plain rq", "the same job on a bare Redis stream"

LACKS: dict[str, tuple[str, str, str]] = {
    # isolation; forged results; what a killed worker costs
    INLINE: ("namespaces, seccomp, limits", "expected values never in reach", "no queue: the caller retries"),
    QUEUED: ("namespaces, seccomp, limits", "expected values never in reach", "taken over, answered once"),
    SUBPROCESS: ("none", "the candidate can print its score", "none"),
    BWRAP: ("namespaces; no limits, no seccomp", "the candidate can print its score", "none"),
    POOL: ("none: it runs in the grader", "the candidate can replace the grader", "the pool hangs or loses the task"),
    RQ: ("the daemon's", "expected values in a pickle", "requeued by hand or on a time-out; may run or answer twice"),
    STREAM: ("the daemon's", "the daemon's", "stays pending until somebody claims it by code of one's own"),
}
"""What each contender gives, as far as it matters for a reward."""


def measure(rounds: int, batches: int) -> Section:
    """`batches` short ones per contender for the latency."""
    with ExitStack() as stack:
        site = stack.enter_context(LocalStack())
        redis_socket = site.directory / "redis" / "redis.sock"
        client = stack.enter_context(site.client())
        producer = stack.enter_context(Producer(site.redis_url, run="bench", queue=QUEUE))
        slots = peer_queues.slots()
        for kind in ("rq", "stream"):
            stack.enter_context(peer_queues.workers(kind, redis_socket, site.socket, PROCESSES, site.logs))
        rq = peer_queues.RqPeer(redis_socket, site.socket, slots)
        stack.callback(rq.close)
        stream = peer_queues.StreamPeer(redis_socket, slots)
        stack.callback(stream.close)
        pool = stack.enter_context(ExecPool())
        work = GROUPS * WIDTH
        measured = rates(
            {
                INLINE: Contender(run=lambda: _inline(client), units=work),
                QUEUED: Contender(run=lambda: _queued(producer), units=work),
                RQ: Contender(run=lambda: _peer(rq), units=work),
                STREAM: Contender(run=lambda: _peer(stream), units=work),
                POOL: Contender(run=lambda: pool.grade(work), units=work),
                **{
                    name: Contender(run=lambda run=run: run(COLD), units=COLD)  # type: ignore[misc]
                    for name, run in peer_graders.FORMS.items()
                },
                **{name: each for name, each in clone_contenders().items() if name in (WORK, FORK)},
            },
            rounds,
        )
        waits = latency(
            {
                INLINE: lambda: _graded(client, SHORT, SHORT),
                QUEUED: lambda: _answered(producer, SHORT),
                RQ: lambda: _checked(rq.result(rq.submit(candidates(SHORT), SPEC.tests))),
                STREAM: lambda: _checked(stream.result(stream.submit(candidates(SHORT), SPEC.tests))),
            },
            batches,
        )
    return _section(measured, waits)


def latency(contenders: dict[str, Callable[[], object]], count: int) -> dict[str, list[float]]:
    """Milliseconds from submit to answer, one batch at a time, the contenders by turns."""
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-3, count):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            began = time.perf_counter()
            contenders[name]()
            if number >= 0:
                took[name].append((time.perf_counter() - began) * 1000)
    return took


def _section(measured: dict[str, list[float]], waits: dict[str, list[float]]) -> Section:
    medians = {name: median(values) for name, values in measured.items()}
    floor = f"{shown(medians[WORK])} per second: {WORK}"
    added = {percent: percentile(waits[QUEUED], percent) - percentile(waits[INLINE], percent) for percent in (50, 99)}
    bare = percentile(waits[STREAM], 50) - percentile(waits[INLINE], 50)
    return Section(
        tables=(
            Table(
                key="peers",
                title="candidates of ten cases per second, and what each does not give",
                columns=(
                    "per second",
                    "median",
                    "lowest",
                    "highest",
                    "of the floor",
                    "isolation",
                    "a false reward",
                    "a worker dies",
                ),
                rows=tuple(
                    _row(name, values, ratio(measured, name, WORK))
                    for name, values in sorted(measured.items(), key=lambda item: -medians[item[0]])
                ),
                note=f"{CONCURRENCY} at once; worker processes of each queue: {PROCESSES}; medians of rounds by turns",
            ),
            Table(
                key="latency",
                title=f"milliseconds from submit to answer, one batch of {SHORT} candidates at a time",
                columns=("way", "p50", "p99", "p50 over inline"),
                rows=tuple(
                    (
                        name,
                        percentile(took, 50),
                        percentile(took, 99),
                        percentile(took, 50) - percentile(waits[INLINE], 50),
                    )
                    for name, took in waits.items()
                ),
                note="percentiles of each way's own batches; the difference is that of the percentiles",
            ),
        ),
        figures=(
            _figure("isolated inline : floor", ratio(measured, INLINE, WORK), floor),
            _figure(
                "isolated inline : plain subprocess",
                ratio(measured, INLINE, SUBPROCESS),
                f"{shown(medians[SUBPROCESS])} per second: {SUBPROCESS}",
            ),
            _figure(
                "queued : inline", ratio(measured, QUEUED, INLINE), f"{shown(medians[STREAM])} per second: {STREAM}"
            ),
            _figure("added by the queue, p50 ms", added[50], f"{shown(bare)} ms: a bare stream, p50"),
            _figure("added by the queue, p99 ms", added[99]),
        ),
        charts={"peers": chart.bars("Candidates of ten cases per second", medians, unit="/s", notes=_notes())},
        data={"per second": measured, "latency ms": waits},
    )


def _row(name: str, values: Sequence[float], to_floor: float) -> tuple[Cell, ...]:
    lacks = LACKS.get(name, ("a floor: nothing is judged", "", ""))
    return (name, median(list(values)), min(values), max(values), to_floor, *lacks)


def _notes() -> dict[str, str]:
    return dict.fromkeys((SUBPROCESS, POOL), "no isolation") | {WORK: "floor", FORK: "floor, no isolation"}


def _figure(name: str, value: float, floor: str = "") -> Figure:
    return Figure(name=name, value=value, target=TARGETS[name], floor=floor)


def _inline(client: CollimateClient) -> None:
    for _ in range(GROUPS):
        _graded(client, WIDTH, CONCURRENCY)


def _graded(client: CollimateClient, count: int, concurrency: int) -> None:
    results = grade_batch(client, TEMPLATE, candidates(count), SPEC, concurrency=concurrency, timeout_seconds=10)
    _checked([result.reward for result in results])


def _queued(producer: Producer) -> None:
    handles = [
        producer.submit(template=TEMPLATE, candidates=candidates(WIDTH), spec=SPEC, timeout_seconds=10)
        for _ in range(GROUPS)
    ]
    for handle in handles:
        _checked(handle.result(timeout=120).rewards())


def _answered(producer: Producer, count: int) -> None:
    handle = producer.submit(template=TEMPLATE, candidates=candidates(count), spec=SPEC, timeout_seconds=10)
    _checked(handle.result(timeout=120).rewards())


def _peer(peer: Any) -> None:
    for job in [peer.submit(candidates(WIDTH), SPEC.tests) for _ in range(GROUPS)]:
        _checked(peer.result(job))


def _checked(rewards: Sequence[float | None]) -> None:
    if any(reward != 1.0 for reward in rewards):
        raise RuntimeError(f"a right candidate did not pass: {rewards}")
