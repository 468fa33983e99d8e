"""The same groups over the queue and inline, against one daemon."""

from __future__ import annotations

from benchmarks.measure import Contender, rates
from benchmarks.work import CONCURRENCY, SPEC, TEMPLATE, candidates
from collimate_rl import CollimateClient, grade_batch
from collimate_rl.cli.stack import QUEUE, LocalStack
from producer import Producer

GROUPS, WIDTH = 8, 24


def measure(rounds: int) -> dict[str, list[float]]:
    """Candidates per second, by contender."""
    with (
        LocalStack() as stack,
        stack.client() as client,
        Producer(stack.redis_url, run="bench", queue=QUEUE) as producer,
    ):
        return rates(
            {
                "queued": Contender(run=lambda: _queued(producer), units=GROUPS * WIDTH),
                "inline": Contender(run=lambda: _inline(client), units=GROUPS * WIDTH),
            },
            rounds,
        )


def _queued(producer: Producer) -> None:
    handles = [
        producer.submit(template=TEMPLATE, candidates=candidates(WIDTH), spec=SPEC, timeout_seconds=30)
        for _ in range(GROUPS)
    ]
    for handle in handles:
        assert handle.result(timeout=120).rewards() == [1.0] * WIDTH


def _inline(client: CollimateClient) -> None:
    for _ in range(GROUPS):
        results = grade_batch(client, TEMPLATE, candidates(WIDTH), SPEC, concurrency=CONCURRENCY, timeout_seconds=30)
        assert [result.reward for result in results] == [1.0] * WIDTH
