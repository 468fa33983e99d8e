"""The same groups over the queue and inline, against one daemon."""

from __future__ import annotations

from benchmarks.measure import Contender, rates
from benchmarks.work import CONCURRENCY, SPEC, TEMPLATE, candidates
from collimate_rl import CollimateClient, grade_batch
from collimate_rl.cli.stack import QUEUE, LocalStack
from producer import Producer

GROUPS, WIDTH = 8, 24
ONE_SHOT_S, SESSION_S = 10, 11
"""Time limits: up to 10 s a worker runs a candidate in one exec, above it in a session that another could take over."""


def measure(rounds: int) -> dict[str, list[float]]:
    """Candidates per second, by contender."""
    with (
        LocalStack() as stack,
        stack.client() as client,
        Producer(stack.redis_url, run="bench", queue=QUEUE) as producer,
    ):
        work = GROUPS * WIDTH
        return rates(
            {
                "queued": Contender(run=lambda: _queued(producer, ONE_SHOT_S), units=work),
                "inline": Contender(run=lambda: _inline(client), units=work),
                "queued, in sessions": Contender(run=lambda: _queued(producer, SESSION_S), units=work),
            },
            rounds,
        )


def _queued(producer: Producer, timeout_seconds: int) -> None:
    handles = [
        producer.submit(template=TEMPLATE, candidates=candidates(WIDTH), spec=SPEC, timeout_seconds=timeout_seconds)
        for _ in range(GROUPS)
    ]
    for handle in handles:
        if handle.result(timeout=120).rewards() != [1.0] * WIDTH:
            raise RuntimeError(f"a right candidate did not pass: {handle.result(0).results}")


def _inline(client: CollimateClient) -> None:
    for _ in range(GROUPS):
        results = grade_batch(
            client, TEMPLATE, candidates(WIDTH), SPEC, concurrency=CONCURRENCY, timeout_seconds=ONE_SHOT_S
        )
        if any(result.reward != 1.0 for result in results):
            raise RuntimeError(f"a right candidate did not pass: {results}")
