"""Verdicts of one batch written together, in one round trip; and with the last of them the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import NoScriptError

from collimate_rl.protocol.messages import Verdict
from collimate_rl.queue._raw import text
from collimate_rl.queue.batches import BatchQueue, verdict_blob
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.replies import Hold, PublishReply, Written


class Packed(NamedTuple):
    """A verdict as it is sent."""

    verdict: Verdict
    blob: bytes

    @classmethod
    def of(cls, verdict: Verdict) -> Packed:
        """ValueError for what is no verdict."""
        return cls(verdict, verdict_blob(verdict))


def write_together(queue: BatchQueue, hold: Hold, verdicts: Sequence[Packed]) -> list[Written]:
    """As `BatchQueue.verdict` for each, in this order; at least one. May be sent again."""
    with translate_errors(f"write verdicts on queue {queue.queue!r}"):
        return _words(queue.scripts["verdict"](hold.k, hold.owner, hold.fence, *_pairs(verdicts)))


def end_with(queue: BatchQueue, hold: Hold, verdicts: Sequence[Packed]) -> tuple[list[Written], PublishReply]:
    """As `write_together` and then `publish`, which answers the batch where every other candidate has its verdict.

    May be sent again, as each of the two.
    """
    owned = (hold.k, hold.owner, hold.fence)
    writes, publishes = queue.scripts["verdict"], queue.scripts["publish"]
    doing = f"write the last verdicts on queue {queue.queue!r}"
    with translate_errors(doing), queue.client.pipeline(transaction=False) as pipe:
        writes.add_to(pipe, *owned, *_pairs(verdicts))
        publishes.add_to(pipe, *owned, "", "")
        told = pipe.execute(raise_on_error=False)
        if not any(isinstance(reply, NoScriptError) for reply in told):
            written, published = writes.read(told[0]), publishes.read(told[1])
            return _words(written), PublishReply.read(published)
    # A server that was restarted, or asked for the first time.
    return write_together(queue, hold, verdicts), queue.publish(hold)


def _pairs(verdicts: Sequence[Packed]) -> list[int | bytes]:
    return [part for verdict, blob in verdicts for part in (verdict.index, blob)]


def _words(reply: Sequence[object]) -> list[Written]:
    return [Written(text(word)) for word in reply]
