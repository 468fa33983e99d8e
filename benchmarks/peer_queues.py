"""The same job over other queues: plain rq, and a bare Redis stream with a consumer group. As short as one would write
them, against the same sandbox daemon, with as many worker processes as the product has.

`python -m benchmarks.peer_queues rq|stream REDIS_SOCKET DAEMON_SOCKET` is one worker process.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import Job

from benchmarks.nodes import until
from benchmarks.work import TEMPLATE
from collimate_rl import CollimateClient, UnitTestReward, grade_batch
from collimate_rl.cli.processes import Child
from worker.settings import default_slots

RQ_QUEUE, STREAM, GROUP = "peer", "peer:jobs", "graders"
WAIT_S = 120
READY = "peer worker ready"
_client: CollimateClient | None = None


def grade_here(socket: str, codes: Sequence[str], tests: Sequence[dict[str, Any]], concurrency: int) -> list[float]:
    """The job itself, in a worker process."""
    global _client
    if _client is None:
        _client = CollimateClient(unix_socket=socket)
    spec = UnitTestReward(tests=[dict(test) for test in tests])
    graded = grade_batch(_client, TEMPLATE, codes, spec, concurrency=concurrency, timeout_seconds=10)
    return [result.reward or 0.0 for result in graded]


def slots() -> int:
    """Execs that one batch has under way at a time: as many as a node of ours has slots, for every queue the same."""
    return default_slots()


class RqPeer:
    """rq as it comes: pickle, its own job records, results polled for by `latest_result`."""

    def __init__(self, redis_socket: Path, daemon_socket: Path, concurrency: int) -> None:
        self._redis = Redis(unix_socket_path=str(redis_socket), socket_timeout=WAIT_S + 5, protocol=2)
        self._queue = Queue(RQ_QUEUE, connection=self._redis)
        self._fixed = (str(daemon_socket), concurrency)

    def submit(self, codes: Sequence[str], tests: Sequence[Any]) -> Job:
        socket, concurrency = self._fixed
        return self._queue.enqueue(grade_here, socket, list(codes), list(tests), concurrency)

    def result(self, job: Job) -> list[float]:
        found = job.latest_result(timeout=WAIT_S)
        if found is None or found.return_value is None:
            raise RuntimeError(f"rq gave no result: {found and found.exc_string}")
        return list(found.return_value)

    def close(self) -> None:
        self._redis.close()


class StreamPeer:
    """XADD and XREADGROUP; an answer is pushed to a list of its own."""

    def __init__(self, redis_socket: Path, concurrency: int) -> None:
        self._redis = Redis(unix_socket_path=str(redis_socket), socket_timeout=WAIT_S + 5, protocol=2)
        self._concurrency = concurrency

    def submit(self, codes: Sequence[str], tests: Sequence[Any]) -> str:
        name = uuid.uuid4().hex
        job = {"id": name, "codes": list(codes), "tests": list(tests), "concurrency": self._concurrency}
        self._redis.xadd(STREAM, {"job": json.dumps(job)})
        return name

    def result(self, name: str) -> list[float]:
        found: Any = self._redis.blpop([f"peer:answer:{name}"], timeout=WAIT_S)
        if found is None:
            raise RuntimeError("the stream's worker gave no answer")
        return list(json.loads(found[1]))

    def close(self) -> None:
        self._redis.close()


@contextmanager
def workers(kind: str, redis_socket: Path, daemon_socket: Path, processes: int, logs: Path) -> Iterator[None]:
    """So many worker processes of one kind, all of them waiting."""
    with ExitStack() as stack:
        children = []
        for number in range(processes):
            argv = [sys.executable, "-m", "benchmarks.peer_queues", kind, str(redis_socket), str(daemon_socket)]
            child = Child.start(f"{kind} worker", argv, logs / f"peer-{kind}-{number}.log")
            stack.callback(child.stop, 5.0)
            children.append(child)
        until(lambda: all(READY in child.log.read_text() for child in children), f"{kind} workers")
        yield


def main(arguments: Sequence[str]) -> int:
    """One worker process."""
    kind, redis_socket, daemon_socket = arguments
    if kind == "rq":
        print(READY, flush=True)
        connection = Redis(unix_socket_path=redis_socket, socket_timeout=None, protocol=2)
        SimpleWorker([Queue(RQ_QUEUE, connection=connection)], connection=connection).work(logging_level="WARNING")
    else:
        _serve_stream(Redis(unix_socket_path=redis_socket, socket_timeout=None, protocol=2), daemon_socket)
    return 0


def _serve_stream(redis: Redis, daemon_socket: str) -> None:
    try:
        redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    except Exception as error:
        if "BUSYGROUP" not in str(error):
            raise
    print(READY, flush=True)
    name = f"w{os.getpid()}"
    while True:
        found: Any = redis.xreadgroup(GROUP, name, {STREAM: ">"}, count=1, block=0)
        for _, entries in found:
            for entry, fields in entries:
                job = json.loads(fields[b"job"])
                rewards = grade_here(daemon_socket, job["codes"], job["tests"], job["concurrency"])
                pipe = redis.pipeline()
                pipe.rpush(f"peer:answer:{job['id']}", json.dumps(rewards))
                pipe.expire(f"peer:answer:{job['id']}", 600)
                pipe.xack(STREAM, GROUP, entry)
                pipe.execute()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
