"""What the product is to reach on two cores: each figure's bound within one run, told beside it and never asserted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.report import Target

TARGETS: Final[Mapping[str, Target]] = {
    "isolated inline : floor": Target(bound=0.6, why="bare clone with all namespaces, run, reap, on all cores"),
    "isolated inline : plain subprocess": Target(bound=6.0),
    "queued : inline": Target(bound=0.9),
    "added by the queue, p50 ms": Target(bound=10.0, at_least=False),
    "added by the queue, p99 ms": Target(bound=50.0, at_least=False),
    "64 execs at once, p99 ms": Target(bound=250.0, at_least=False),
    "64 creates at once, p99 ms": Target(bound=250.0, at_least=False),
    "private MiB per live session": Target(bound=2.0, at_least=False),
    "numpy template : plain one": Target(bound=0.8),
    "Redis commands per batch, one-shot": Target(bound=100.0, at_least=False),
    "Redis kB per batch beside the payload, one-shot": Target(bound=20.0, at_least=False),
    "10 batches beside 10,000 : alone": Target(bound=3.0, at_least=False),
    "sleeping 100 ms, in sessions : one-shot": Target(bound=0.85),
    "computing 100 ms, in sessions : one-shot": Target(bound=0.85),
}
