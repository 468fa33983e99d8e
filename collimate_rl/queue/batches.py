"""`BatchQueue`: the queue's scripts as typed calls. The contracts are in the headers of `scripts/*.lua`.

Every call may be sent again: redis-py repeats a command whose reply was lost. What a server refuses or an outage
prevents comes out as `QueueError`, `RedisUnavailable` or `ValueError`, never as an error of redis.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from redis import Redis

from collimate_rl.errors import BadMessage
from collimate_rl.protocol import keys
from collimate_rl.protocol.bounds import check_name, clip_text, one_line
from collimate_rl.protocol.codes import SUSPECT_OUTCOMES
from collimate_rl.protocol.messages import GradeBatch, Verdict
from collimate_rl.protocol.results import BatchResult
from collimate_rl.protocol.timing import Timing
from collimate_rl.queue import codec, lua
from collimate_rl.queue._raw import heartbeat, server_ms
from collimate_rl.queue._raw import raw as _bytes
from collimate_rl.queue._raw import text as _text
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.replies import (
    BeatReply,
    Buried,
    BuryReply,
    Cancelled,
    Claimed,
    ClaimReply,
    Grant,
    Hold,
    LeaseReply,
    Mended,
    Mode,
    NoteReply,
    PublishReply,
    Purged,
    Released,
    ReleaseReply,
    Remembered,
    Renewed,
    RenewReply,
    SeatReply,
    SubmitReply,
    Submitted,
    Tallied,
    TallyReply,
    Written,
)
from collimate_rl.queue.rq_edge import bell_fields

DEFAULT_DEPTH = 10_000
DEFAULT_WINDOW = 256


def verdict_blob(verdict: Verdict) -> bytes:
    """What stands for a candidate's grade; ValueError for what is none."""
    if verdict.infra_error:
        raise ValueError("an infra-flagged answer is no verdict: give it to publish")
    return codec.pack_verdict(verdict)


class BatchQueue:
    """One queue on one server.

    client -- from `clients.connect_commands`; shared between threads safely.
    queue -- its name.
    timing -- leases and pauses; all processes of a queue should hold the same.
    """

    def __init__(self, client: Redis, queue: str = "grade", *, timing: Timing | None = None) -> None:
        self.client = client
        self.queue = check_name("queue", queue)
        self.timing = timing or Timing()
        self.scripts = {name: lua.Bound(client, name, self.timing) for name in (*lua.SCRIPTS, *lua.READING)}

    def _run(self, script: str, *args: str | bytes | int) -> list[Any]:
        with translate_errors(f"{script} on queue {self.queue!r}"):
            return self.scripts[script](*args)

    # What producers call.

    def submit(
        self,
        k: str,
        batch: GradeBatch,
        content_hash: str,
        *,
        window: int = DEFAULT_WINDOW,
        depth: int = DEFAULT_DEPTH,
    ) -> SubmitReply:
        """Stores the batch and rings its first bell, unless (run, epoch, id) is known, or there is no room.

        `k` and `content_hash` come from `protocol.identity`. Never waits for room: the caller does.
        """
        payload = codec.pack_batch(batch)
        reply = self._run(
            "submit",
            k,
            self.queue,
            batch.run,
            batch.id,
            batch.epoch,
            batch.producer,
            content_hash,
            len(batch.candidates),
            max(1, round(batch.deadline_s * 1000)),
            f"{batch.submitted_at:.6f}",
            depth,
            window,
            bell_fields(k, self.queue),
            payload,
        )
        return SubmitReply(Submitted(_word(reply)), int(reply[1]))

    def payload(self, k: str) -> bytes | None:
        """The packed batch `k`, while the server has it."""
        with translate_errors("read a batch"):
            raw = self.client.get(keys.BatchKeys(k).payload)
        return None if raw is None else _bytes(raw)

    def result(self, k: str) -> BatchResult | None:
        """The answer of batch `k`; None while there is none, or no longer one. Raises `BadMessage`."""
        with translate_errors("read a result"):
            raw = self.client.get(keys.BatchKeys(k).done)
        return None if raw is None else codec.unpack_result(_bytes(raw))

    def cancel(self, k: str) -> Cancelled:
        """Answers batch `k` `cancelled`, or asks its owner to; verdicts that stand, stand."""
        return Cancelled(_word(self._run("cancel", k)))

    def purge(self, k: str, run: str) -> Purged:
        """Removes batch `k` of `run` and all that is kept of it, whoever owns it; `purging.purge_run` does a run."""
        return Purged(_word(self._run("purge", k, run)))

    # What the owner of a batch calls.

    def claim(self, k: str, owner: str, worker: str, node: str) -> ClaimReply:
        """Makes `owner` (unique per execution) the owner of batch `k`, with a lease and a fence."""
        reply = self._run("claim", k, owner, worker, node)
        word = Claimed(_word(reply))
        if word is Claimed.BUSY:
            return ClaimReply(word, None, int(reply[1]))
        if word is not Claimed.OK:
            return ClaimReply(word)
        fence, lease, deadline, queued, cautious, losses, errors, passes = (int(x) for x in reply[1:9])
        grant = Grant(
            hold=Hold(k, owner, fence),
            payload=_bytes(reply[9]),
            lease_s=lease / 1000,
            deadline_in_s=deadline / 1000,
            queue_ms=float(queued),
            verdicts=_indexed(reply[10]),
            ledger=_indexed(reply[11]),
            cautious=bool(cautious),
            blame={i: int(n) for i, n in enumerate(reply[12])},
            losses=losses,
            errors=errors,
            passes=passes,
            max_blame=self.timing.max_blame,
        )
        return ClaimReply(word, grant)

    def renew(self, hold: Hold) -> RenewReply:
        """Prolongs the lease; to be called every `timing.renew_every_ms` by a thread of its own."""
        reply = self._run("renew", hold.k, hold.owner, hold.fence)
        word = Renewed(_word(reply))
        if word is not Renewed.OK:
            return RenewReply(word)
        return RenewReply(word, int(reply[1]) / 1000, bool(int(reply[2])), int(reply[3]) / 1000)

    def note(self, hold: Hold, index: int, entry: bytes, session: str = "", node: str = "") -> NoteReply:
        """Enters in the ledger where candidate `index` has its session, before anything runs in it.

        With the session's id and the node whose daemon has it, the session is also kept among those noted once.
        """
        named = (session.encode("utf-8", "surrogatepass"), node) if session else ()
        reply = self._run("note", hold.k, hold.owner, hold.fence, index, entry, *named)
        if _word(reply) != "OK":
            return NoteReply(False, noted=bool(session) and int(reply[1]) == 1)
        return NoteReply(True, _bytes(reply[1]) or None, noted=bool(session))

    def mark(self, hold: Hold, index: int) -> bool:
        """Says that candidate `index` starts now (it matters in a cautious batch); False when fenced."""
        return _word(self._run("mark", hold.k, hold.owner, hold.fence, index)) == "OK"

    def verdict(self, hold: Hold, verdict: Verdict) -> Written:
        """Writes a verdict, once. An infra-flagged answer is no verdict: give it to `publish`."""
        blob = verdict_blob(verdict)
        return Written(_word(self._run("verdict", hold.k, hold.owner, hold.fence, verdict.index, blob)))

    def remember(self, hold: Hold, digest: str, verdict: Verdict, *, room: int) -> Remembered:
        """Keeps a verdict in the run's cache under `digest` (64 hex digits), at most `room` bytes for the whole run."""
        if verdict.infra_error:
            raise ValueError("an infra-flagged answer is no verdict: it is never kept")
        blob = codec.pack_verdict(verdict)
        return Remembered(_word(self._run("remember", hold.k, hold.owner, hold.fence, digest, blob, room)))

    def remembered(self, run: str, digests: Iterable[str]) -> dict[str, Verdict]:
        """What the run's cache holds under these digests. A blob that is none of ours counts as none."""
        asked = list(dict.fromkeys(digests))
        with translate_errors("read a run's cache"):
            raw = self.client.hmget(keys.cache(run), asked) if asked else []
        found: dict[str, Verdict] = {}
        for digest, blob in zip(asked, raw, strict=True):
            if blob is not None:
                try:
                    found[digest] = codec.unpack_verdict(_bytes(blob))
                except BadMessage:  # kept by a later release: graded again
                    continue
        return found

    def pin_grader(self, run: str, epoch: int, version: str) -> str:
        """Holds the run to `version` unless it is held to one already; returns the one that it is held to."""
        key = keys.grader(run, epoch)
        with translate_errors("read which grader the run is held to"), self.client.pipeline() as pipe:
            pipe.set(key, version, nx=True)
            pipe.pexpire(key, self.timing.keep_ms)
            pipe.get(key)
            standing = pipe.execute()[2]
        return _text(standing)

    def suspect(self, run: str, outcome: str, k: str, index: int) -> None:
        """Counts candidate `index` of batch `k` among those of the run that came to `outcome`; again is no more."""
        key = keys.suspects(run, outcome)
        with translate_errors("count a suspect outcome"), self.client.pipeline() as pipe:
            pipe.pfadd(key, f"{k}:{index}")
            pipe.pexpire(key, self.timing.keep_ms)
            pipe.execute()

    def cases(self, hold: Hold, blob: bytes) -> bytes | None:
        """Stores made cases once; returns those that stand, or None when fenced."""
        reply = self._run("cases", hold.k, hold.owner, hold.fence, blob)
        return _bytes(reply[1]) if _word(reply) == "OK" else None

    def stored_cases(self, k: str) -> bytes | None:
        """The cases that stand for batch `k`, if any."""
        with translate_errors("read cases"):
            raw = self.client.get(keys.BatchKeys(k).cases)
        return None if raw is None else _bytes(raw)

    def publish(
        self, hold: Hold, infra: Iterable[Verdict] = (), *, fill: str | None = None, detail: str = ""
    ) -> PublishReply:
        """Answers the batch: the verdicts that stand, `infra` for candidates without one, `fill` for the rest.

        infra -- infra-flagged answers (`protocol.infra_verdict`), in any order.
        fill -- a code for every candidate that has neither; without it, such candidates make the reply MISSING.
                "expired" and "cancelled" give the result that status, any other code "failed".
        detail -- for people, beside `fill`; clipped to 4 KiB.
        """
        pairs: list[str | bytes | int] = []
        for verdict in infra:
            if not verdict.infra_error:
                raise ValueError(f"candidate {verdict.index} has a verdict: write it with verdict()")
            pairs += [verdict.index, codec.pack_verdict(verdict)]
        text = clip_text(detail).encode("utf-8", "surrogatepass")
        reply = self._run("publish", hold.k, hold.owner, hold.fence, fill or "", text, *pairs)
        return PublishReply.read(reply)

    def release(
        self, hold: Hold, mode: Mode, *, drop: bool = False, home: bool = False, detail: str = ""
    ) -> ReleaseReply:
        """Gives the batch back, see `Mode`. With `drop`, returns the ledger entries of unjudged candidates.

        home -- no other node reaches the sessions that the batch keeps: with `CLEAN`, this node has the first try.
        """
        text = clip_text(detail).encode("utf-8", "surrogatepass")
        reply = self._run("release", hold.k, hold.owner, hold.fence, mode.value, int(drop), int(home), text)
        return ReleaseReply(Released(_word(reply)), _indexed(reply[1:]))

    # What supervisors and janitors call.

    def bury(self, node: str, worker: str, *, counts: bool = True, home: bool = False) -> BuryReply:
        """Gives back what worker `worker` of `node` owned; its process is known to be gone.

        counts -- False when it ended because this server was away from it, which no candidate can bring about.
        home -- no other node reaches the sessions on this node's daemon: a batch that has some there is kept for this
                node for `timing.home_ms`.
        """
        reply = self._run("bury", node, worker, int(counts), int(home))
        return BuryReply(Buried(_word(reply)), _text(reply[1]) if len(reply) > 1 else None)

    def mend(self, k: str, *, listed: bool = False) -> Mended:
        """Puts right what is wrong with batch `k`, whose check is due; `listed` when a bell of it is on the list."""
        return Mended(_word(self._run("mend", k, self.queue, int(listed))))

    def bump(self, ks: Iterable[str]) -> int:
        """Batches whose bell is on the list: moves their next check on. Returns how many were pending."""
        some = list(ks)
        return int(self._run("bump", self.queue, *some)[0]) if some else 0

    def beat(self, node: str | None = None, heartbeat: Mapping[str, Any] | None = None) -> BeatReply:
        """To be called every `timing.beat_every_ms`. With a node's name, also writes its heartbeat.

        heartbeat -- JSON data; `templates` (a list of names) is what producers check at submit, and `reason` with `up`
                     False is what a batch that expires meanwhile is told.
        """
        said = dict(heartbeat or {})
        away = one_line(str(said.get("reason") or "it takes no work")) if said.get("up") is False else ""
        reply = self._run("beat", self.queue, node or "", json.dumps(said), away.encode("utf-8", "surrogatepass"))
        return BeatReply(bool(int(reply[0])), int(reply[1]))

    def alive(self, workers: Mapping[str, str]) -> None:
        """Says that these workers' processes are there; to be called every 5 s.

        workers -- name to which process it is, for whoever later asks `who_is_alive`; free text.
        """
        with translate_errors("say who is alive"), self.client.pipeline(transaction=False) as pipe:
            for worker, process in workers.items():
                pipe.set(keys.alive(worker), process or "1", px=self.timing.alive_ms)
            pipe.execute()

    def who_is_alive(self, workers: Iterable[str]) -> dict[str, str]:
        """Of these workers, those whose alive key stands, with what it says of their process."""
        names = list(workers)
        with translate_errors("read who is alive"):
            found = self.client.mget([keys.alive(name) for name in names]) if names else []
        return {name: _text(raw) for name, raw in zip(names, found, strict=True) if raw is not None}

    def owned(self, node: str) -> dict[str, str]:
        """Worker to batch, as the node's workers hold them now: what a restarted supervisor buries."""
        with translate_errors("read who owns what"):
            raw = self.client.hgetall(keys.owned(node))
        return {_text(worker): _text(k) for worker, k in raw.items()}

    def lease(self, name: str, token: str, ms: int) -> LeaseReply:
        """Takes or renews the lease `name` for `ms`; 0 gives it back."""
        reply = self._run("lease", name, token, ms)
        return LeaseReply(bool(int(reply[0])), int(reply[1]))

    def seat(self, gate: str, token: str, ms: int, *, cap: int, held: bool = False) -> SeatReply:
        """Takes or renews a place for `ms` under the cap of `gate`; 0 gives it back.

        `held`: the sandbox of that `token` runs already, so the place is its whatever the cap.
        """
        reply = self._run("seat", gate, token, ms, cap, int(held))
        return SeatReply(bool(int(reply[0])), int(reply[1]))

    def tally(self, token: str, start: str, end: str, groups: Iterable[str | int]) -> TallyReply:
        """Adds counts of the answers after `start` up to `end`, and moves the cursor on; `groups` as in the script.

        token -- the leading janitor's.
        """
        reply = self._run("tally", self.queue, token, start, end, *groups)
        return TallyReply(Tallied(_word(reply)), _text(reply[1]) if len(reply) > 1 else "")

    def gists(self, ks: Iterable[str]) -> list[tuple[str, ...]]:
        """For each batch a word (`OK`, `GONE`, `BIG`) and, after `OK`, six texts per candidate, as in the script."""
        some = list(ks)
        reply = self._run("gist", *some) if some else []
        return [tuple(_text(part) for part in one) for one in reply]

    # Looking on.

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Heartbeats of the nodes that serve this queue now, by name."""
        with translate_errors("read heartbeats"):
            now_ms = server_ms(self.client.time())
            names = self.client.zrangebyscore(keys.nodes(self.queue), now_ms, "+inf")
            texts = self.client.mget([keys.node(_text(name)) for name in names]) if names else []
        beats: dict[str, dict[str, Any]] = {}
        for name, text in zip(names, texts, strict=True):
            if text is not None:
                beats[_text(name)] = heartbeat(text)
        return beats

    def depth(self) -> int:
        """How many batches are unanswered."""
        with translate_errors("read the depth"):
            return int(self.client.zcard(keys.pending(self.queue)))

    def suspects(self, runs: Iterable[str]) -> dict[str, dict[str, int]]:
        """Per run and suspect outcome about how many candidates came to it (exact while they are few)."""
        asked = [(run, outcome) for run in runs for outcome in SUSPECT_OUTCOMES]
        with translate_errors("read suspect outcomes"), self.client.pipeline(transaction=False) as pipe:
            for run, outcome in asked:
                pipe.pfcount(keys.suspects(run, outcome))
            counts = pipe.execute()
        found: dict[str, dict[str, int]] = {run: {} for run, _ in asked}
        for (run, outcome), count in zip(asked, counts, strict=True):
            found[run][outcome] = int(count)
        return found

    def inflight(self, run: str) -> list[str]:
        """The run's unanswered batches."""
        with translate_errors("read a run's batches"):
            return [_text(k) for k in self.client.zrange(keys.inflight(run), 0, -1)]


def _word(reply: list[Any]) -> str:
    return _text(reply[0])


def _indexed(flat: list[Any]) -> dict[int, bytes]:
    return {int(flat[i]): _bytes(flat[i + 1]) for i in range(0, len(flat), 2)}
