"""Throughput and latency as the work grows: a real node, one size at a time. Each sweep takes as many batches per
point as its share of time allows, one at least."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import chart, growth_mixed, growth_queue
from benchmarks.measure import median
from benchmarks.nodes import Site
from benchmarks.report import Section
from benchmarks.sweeps import Point, Sweep, table_of
from benchmarks.work import SPEC, TEMPLATE, candidates
from collimate_rl import UnitTestReward
from producer import Producer

WIDTHS = (1, 8, 64, 512)
PROCESSES = (1, 2, 4)
SLOTS = (1, 2, 4, 8, 16)
SIZES = (1 << 10, 16 << 10, 64 << 10, 100 << 10, 256 << 10, 1 << 20)
CASES = (1, 10, 100, 1_000)
PRINTED = (1 << 10, 64 << 10, 1 << 20, 8 << 20)
RETURNED = (10, 1_000, 100_000, 900_000)
GROUP = 8
ANSWER_S = 300.0
FEW_MS = 5_000
"""A group that takes longer alone is not sent four at a time."""
LATENCY, THROUGHPUT = "one batch at a time", "several at once"


def measure(seconds: float) -> Section:
    """`seconds` for each point of each sweep, beside starting what it needs."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp"))
        site = stack.enter_context(Site(Path(directory)))
        found = [*_on_one_node(site, seconds), _over_processes(site, seconds), _over_slots(site, seconds)]
        mixed = growth_mixed.measure(site)
    found += [growth_queue.widths(), growth_queue.runs(), growth_queue.queue_length()]
    lines = {
        sweep.what: [(float(point.x), next(iter(point.ms.values()))) for point in sweep.points]
        for sweep in found
        if sweep.key in ("width", "cases", "candidate-size")
    }
    return Section(
        tables=(*(table_of(sweep) for sweep in found), mixed),
        charts={"growth": chart.lines("Milliseconds per candidate, one batch at a time", lines, x="size", y="ms")},
        data={sweep.key: [{"x": point.x, **point.ms} for point in sweep.points] for sweep in found},
    )


def _on_one_node(site: Site, seconds: float) -> Iterator[Sweep]:
    with site.workers(2), site.producer() as producer:
        yield _sweep(
            "width",
            "candidates per batch",
            ((width, _job(producer, candidates(width))) for width in WIDTHS),
            seconds,
            expected="small batches leave slots empty when they come one at a time",
        )
        yield _sweep(
            "candidate-size",
            "bytes of a candidate",
            ((size, _job(producer, [_padded(code, size) for code in candidates(GROUP // 2)])) for size in SIZES),
            seconds,
            expected="above 90 KB a candidate goes into a session by uploads, as one exec takes 128 KiB",
        )
        yield _sweep(
            "cases",
            "cases per candidate",
            ((count, _job(producer, candidates(GROUP), _products(count))) for count in CASES),
            seconds,
            expected="costs are per candidate: linear growth is what more cases are",
        )
        yield _sweep(
            "printed",
            "bytes printed",
            ((size, _job(producer, [_printing(size, n) for n in range(GROUP)])) for size in PRINTED),
            seconds,
            expected="linear once printing outweighs the fork",
        )
        yield _sweep(
            "returned",
            "bytes returned",
            ((size, _job(producer, [_returning(n) for n in range(GROUP)], _lengths(size))) for size in RETURNED),
            seconds,
            expected="linear once the text outweighs the fork",
        )


def _over_processes(site: Site, seconds: float) -> Sweep:
    def points() -> Iterator[tuple[int, Job]]:
        for processes in PROCESSES:
            with site.workers(processes), site.producer() as producer:
                job = _job(producer, candidates(GROUP))
                job(PROCESSES[-1])  # every process has been at work once
                yield processes, job

    return _sweep("processes", "worker processes", points(), seconds, expected="the slots stay the same")


def _over_slots(site: Site, seconds: float) -> Sweep:
    def points() -> Iterator[tuple[int, Job]]:
        for slots in SLOTS:
            with site.workers(2, slots), site.producer() as producer:
                job = _job(producer, candidates(GROUP))
                job(2)
                yield slots, job

    return _sweep(
        "slots", "slots of the node", points(), seconds, expected="the daemon runs two execs per core; others wait"
    )


def _sweep(key: str, what: str, points: Iterable[tuple[int, Job]], seconds: float, *, expected: str = "") -> Sweep:
    """`points` are sizes with a job: so many batches at once, to the seconds per candidate."""
    measured: list[Point] = []
    for size, job in points:
        if not measured:
            job(1)  # connections, and what is assembled once
        ms = {LATENCY: 1000 * _rounds(lambda job=job: job(1), seconds / 2)}  # type: ignore[misc]
        if len(job.codes) * ms[LATENCY] < FEW_MS:
            ms[THROUGHPUT] = 1000 * _rounds(lambda job=job: job(4), seconds / 2)  # type: ignore[misc]
        measured.append(Point(x=size, ms=ms))
    return Sweep(key=key, what=what, unit="candidate", points=tuple(measured), expected=expected)


def _rounds(run: Callable[[], float], seconds: float) -> float:
    end = time.monotonic() + seconds
    took = [run()]
    while time.monotonic() < end and len(took) < 50:
        took.append(run())
    return median(took)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The same batch, so many at once; called, it tells the seconds per candidate."""

    producer: Producer
    codes: Sequence[str]
    spec: UnitTestReward

    def __call__(self, batches: int) -> float:
        began = time.perf_counter()
        handles = [
            self.producer.submit(
                template=TEMPLATE, candidates=self.codes, spec=self.spec, timeout_seconds=10, recovery="rerun"
            )
            for _ in range(batches)
        ]
        for handle in handles:
            result = handle.result(timeout=ANSWER_S)
            if result.rewards() != [1.0] * len(self.codes):
                raise RuntimeError(f"a right candidate did not pass: {result.results[0]}")
        return (time.perf_counter() - began) / batches / len(self.codes)


def _job(producer: Producer, codes: Sequence[str], spec: UnitTestReward = SPEC) -> Job:
    return Job(producer=producer, codes=codes, spec=spec)


def _padded(code: str, size: int) -> str:
    line = "# " + "x" * 61 + "\n"
    return code + line * max(0, (size - len(code)) // len(line))


def _products(count: int) -> UnitTestReward:
    return UnitTestReward(tests=[{"input": [n, n + 1], "expected": n * (n + 1)} for n in range(count)])


def _printing(size: int, number: int) -> str:
    return f"print('x' * {size - 1})\ndef solve(a, b):\n    # {number}\n    return a * b\n"


def _returning(number: int) -> str:
    return f"def solve(n):\n    # {number}\n    return 'x' * n\n"


def _lengths(size: int) -> UnitTestReward:
    return UnitTestReward(tests=[{"input": [size], "expected": "x" * size}])
