"""The end of a batch in one round trip: its last verdict, and with it the answer."""

from __future__ import annotations

from redis.exceptions import NoScriptError

from collimate_rl.protocol.messages import Verdict
from collimate_rl.queue._raw import text
from collimate_rl.queue.batches import BatchQueue, verdict_blob
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.replies import Hold, PublishReply, Written


def end_with(queue: BatchQueue, hold: Hold, verdict: Verdict) -> tuple[Written, PublishReply]:
    """As `BatchQueue.verdict` and then `publish`, which answers the batch where every other candidate has its verdict.

    May be sent again, as each of the two.
    """
    blob = verdict_blob(verdict)
    owned = (hold.k, hold.owner, hold.fence)
    writes, publishes = queue.scripts["verdict"], queue.scripts["publish"]
    doing = f"write the last verdict on queue {queue.queue!r}"
    with translate_errors(doing), queue.client.pipeline(transaction=False) as pipe:
        writes.add_to(pipe, *owned, verdict.index, blob)
        publishes.add_to(pipe, *owned, "", "")
        told = pipe.execute(raise_on_error=False)
        if not any(isinstance(reply, NoScriptError) for reply in told):
            written, published = writes.read(told[0]), publishes.read(told[1])
            return Written(text(written[0])), PublishReply.read(published)
    return queue.verdict(hold, verdict), queue.publish(hold)  # a server that was restarted, or asked for the first time
