"""Everything that the product needs to know of rq, and every workaround for it, in one place (rq >= 3.0, < 4).

An rq job is only a bell: it says that there may be work on batch `k`. It may be lost, doubled or late.
"""

from __future__ import annotations

from typing import Any

import msgpack
from redis import Redis
from rq.job import Job, JobStatus
from rq.utils import now

from collimate_rl.protocol import keys

JOB_FUNCTION = "collimate.grade/1"
"""The one name that our jobs carry. It is no import path: only our worker resolves it, to the batch job."""
RESULT_TTL_S = 60
FAILURE_TTL_S = 3600


class MsgpackSerializer:
    """rq's serializer for our queues; by dotted path `collimate_rl.queue.rq_edge.MsgpackSerializer`.

    rq's default is pickle: whoever writes to the server would run code in the worker.
    """

    @staticmethod
    def dumps(obj: Any) -> bytes:
        return bytes(msgpack.packb(obj, use_bin_type=True))

    @staticmethod
    def loads(data: bytes) -> Any:
        return msgpack.unpackb(data, raw=False, strict_map_key=True)


SERIALIZER = f"{MsgpackSerializer.__module__}.{MsgpackSerializer.__qualname__}"


class _NoServer(Redis):
    """rq wants a connection to build a job; building one sends nothing."""

    def execute_command(self, *args: Any, **_options: Any) -> Any:
        raise AssertionError(f"building a bell must not talk to a server: {args[0]}")


_NOWHERE = _NoServer()


def bell_fields(k: str, queue: str) -> bytes:
    """The fields of a bell's job hash, made by rq's own `Job.to_dict()`, as netstrings for `scripts/prelude.lua`.

    No timeout (-1: rq's default of 180 s is raised by SIGALRM in the main thread, while threads run on), no retry, no
    meta, no group.
    """
    job = Job.create(
        JOB_FUNCTION,
        args=(k,),
        id=f"{k}-0",
        connection=_NOWHERE,
        serializer=MsgpackSerializer,
        timeout=-1,
        result_ttl=RESULT_TTL_S,
        failure_ttl=FAILURE_TTL_S,
        status=JobStatus.QUEUED,
        origin=queue,
    )
    job.enqueued_at = now()
    out = bytearray()
    for name, value in job.to_dict(include_meta=False).items():
        if value is None:
            continue
        raw = value if isinstance(value, bytes) else str(getattr(value, "value", value)).encode()
        for part in (name.encode(), raw):
            out += b"%d:%s" % (len(part), part)
    return bytes(out)


def k_of(job: Job) -> str | None:
    """The batch that a bell is for, or None when the job is none of ours."""
    return keys.k_of_job(job.id)
