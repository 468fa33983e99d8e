"""Random walks over the scripts: whatever is killed, late, doubled, lost or fenced, every batch is answered once.

Actors hold on to every right they were ever given and go on using it; bells vanish and double; time jumps. After every
step the rules of the queue are checked, and at the end a few honest workers must be able to finish everything.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.protocol import GradeBatch, content_hash, infra_verdict, keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.codec import unpack_verdict
from collimate_rl.queue.replies import (
    Claimed,
    Hold,
    Mended,
    Mode,
    Published,
    Released,
    Renewed,
    Submitted,
    Written,
)
from collimate_rl.queue.rq_edge import listed_batches
from tests.fixtures.queue_batches import key_of, make_batch, now_ms, passed, settle, warp

WORKERS = 4
BATCHES = 5
STEPS = 250


class Walk:
    def __init__(self, queue: BatchQueue, seed: int) -> None:
        self.queue = queue
        self.client: Any = queue.client
        self.rng = random.Random(seed)
        self.batches: dict[str, GradeBatch] = {}
        for n in range(BATCHES):
            batch = make_batch(id=f"walk-{n}", k=self.rng.randint(1, 4), deadline_s=self.rng.choice([3600.0, 120.0]))
            self.batches[key_of(batch)] = batch
        self.submitted: dict[str, set[str]] = {}
        self.holds: list[tuple[Hold, str]] = []
        self.current: dict[str, Hold] = {}
        self.verdicts: dict[tuple[str, int], bytes] = {}
        self.answers: dict[str, bytes] = {}
        self.owners = 0
        self.seen: Counter[str] = Counter()

    # What happens.

    def submit(self) -> None:
        k, batch = self.rng.choice(list(self.batches.items()))
        producer = self.rng.choice(["p", "q"])
        asked = GradeBatch(**{**vars(batch), "producer": producer})
        reply = self.queue.submit(k, asked, content_hash(asked))
        known = k in self.submitted
        assert reply.word in ((Submitted.SAME, Submitted.DONE) if known else (Submitted.NEW,))
        if reply.word is not Submitted.DONE:
            self.submitted.setdefault(k, set()).add(producer)

    def pop_and_claim(self) -> None:
        raw = self.client.lpop(keys.rq_queue("grade"))
        if raw is not None:
            self.claim(raw.decode().rpartition("-")[0])

    def stray_claim(self) -> None:
        self.claim(self.rng.choice(list(self.batches)))

    def claim(self, k: str) -> None:
        worker = f"w{self.rng.randrange(WORKERS)}"
        self.owners += 1
        reply = self.queue.claim(k, f"o{self.owners}", worker, "n1")
        self.seen[f"claim {reply.word.value}"] += 1
        if k not in self.submitted:
            assert reply.word is Claimed.GONE
        if reply.grant is not None:
            before = self.current.get(k)
            assert before is None or reply.grant.hold.fence > before.fence
            for index, blob in reply.grant.verdicts.items():
                assert self.verdicts[k, index] == blob
            self.current[k] = reply.grant.hold
            self.holds.append((reply.grant.hold, worker))

    def any_hold(self) -> tuple[Hold, str] | None:
        return self.rng.choice(self.holds[-12:]) if self.holds else None

    def with_hold(self, act: Callable[[Hold], None]) -> None:
        held = self.any_hold()
        if held is not None:
            act(held[0])

    def renew(self) -> None:
        def act(hold: Hold) -> None:
            if self.queue.renew(hold).word is Renewed.OK:
                assert self.current.get(hold.k) == hold

        self.with_hold(act)

    def mark(self) -> None:
        def act(hold: Hold) -> None:
            if self.queue.mark(hold, self.rng.randrange(len(self.batches[hold.k].candidates))):
                assert self.current.get(hold.k) == hold

        self.with_hold(act)

    def note(self) -> None:
        def act(hold: Hold) -> None:
            entry = b"session %d" % self.rng.randrange(10**9)
            if self.queue.note(hold, self.rng.randrange(len(self.batches[hold.k].candidates)), entry).accepted:
                assert self.current.get(hold.k) == hold

        self.with_hold(act)

    def verdict(self) -> None:
        def act(hold: Hold) -> None:
            index = self.rng.randrange(len(self.batches[hold.k].candidates))
            written = self.queue.verdict(hold, passed(index, self.rng.choice([0.0, 0.25, 1.0]), attempt=hold.fence))
            self.seen[f"verdict {written.value}"] += 1
            if written is Written.ACCEPTED and (hold.k, index) not in self.verdicts:
                assert self.current.get(hold.k) == hold
                assert not self.client.exists(keys.BatchKeys(hold.k).done)

        self.with_hold(act)

    def publish(self) -> None:
        def act(hold: Hold) -> None:
            infra = [infra_verdict(i, "draining") for i in range(4) if self.rng.random() < 0.4]
            infra = [v for v in infra if v.index < len(self.batches[hold.k].candidates)]
            reply = self.queue.publish(hold, infra, fill="internal" if self.rng.random() < 0.1 else None)
            self.seen[f"publish {reply.word.value}"] += 1
            if reply.word is Published.OK:
                assert self.current.get(hold.k) == hold
            assert (reply.word is Published.ALREADY) <= self.client.exists(keys.BatchKeys(hold.k).done)

        self.with_hold(act)

    def release(self) -> None:
        def act(hold: Hold) -> None:
            mode = self.rng.choice(list(Mode))
            reply = self.queue.release(hold, mode, drop=self.rng.random() < 0.3)
            if reply.word is Released.RELEASED and self.current.get(hold.k) == hold:
                del self.current[hold.k]

        self.with_hold(act)

    def die(self) -> None:
        """A worker's process ends; its supervisor may see it, now or later, or never."""
        worker = f"w{self.rng.randrange(WORKERS)}"
        if self.rng.random() < 0.7:
            self.client.delete(keys.alive(worker))
        if self.rng.random() < 0.5:
            reply = self.queue.bury("n1", worker)
            if reply.k is not None:
                del self.current[reply.k]

    def live(self) -> None:
        self.queue.alive({f"w{self.rng.randrange(WORKERS)}": ""})

    def mend(self) -> None:
        k = self.rng.choice(list(self.batches))
        listed = listed_batches(self.client, "grade")
        lie = self.rng.random() < 0.1
        mended = self.queue.mend(k, listed=(k in listed) != lie)
        self.seen[f"mend {mended.value}"] += 1
        if mended is Mended.RELEASED:
            del self.current[k]

    def bump(self) -> None:
        self.queue.bump(listed_batches(self.client, "grade"))

    def lose_bells(self) -> None:
        self.client.delete(keys.rq_queue("grade"))

    def double_bells(self) -> None:
        for raw in self.client.lrange(keys.rq_queue("grade"), 0, 5):
            self.client.rpush(keys.rq_queue("grade"), raw)

    def cancel(self) -> None:
        if self.rng.random() < 0.15:
            self.queue.cancel(self.rng.choice(list(self.batches)))

    def time_passes(self) -> None:
        warp(self.queue, self.rng.choice([100, 3_000, 13_000, 40_000]), *self.batches)

    def clock(self) -> None:
        if self.rng.random() < 0.6:
            settle(self.queue)
        else:
            t = now_ms(self.queue)
            self.client.hset(keys.clock("grade"), mapping={"last": t - 7_000, "since": t - 20_000})

    # What must hold.

    def check(self) -> None:
        pending = {raw.decode() for raw in self.client.zrange(keys.pending("grade"), 0, -1)}
        inflight = set(self.queue.inflight("run"))
        for k in self.submitted:
            names = keys.BatchKeys(k)
            done = self.client.get(names.done)
            if k in self.answers:
                assert done == self.answers[k], "an answer changed"
            elif done is not None:
                self.answers[k] = done
                self.current.pop(k, None)
            assert (done is None) == (k in pending) == (k in inflight), "an unanswered batch is no longer looked after"
            status = self.client.hget(names.state, "status")
            assert (status == b"done") == (done is not None)
            for raw, blob in self.client.hgetall(names.verdicts).items():
                assert self.verdicts.setdefault((k, int(raw)), blob) == blob, "a verdict changed"
            for key in (names.payload, names.state, names.askers):
                assert self.client.ttl(key) > 80_000
        self.check_answers()

    def check_answers(self) -> None:
        for producer in ("p", "q"):
            told = Counter(f[b"k"].decode() for _, f in self.client.xrange(keys.results("run", producer)))
            expected = {k for k in self.answers if producer in self.submitted[k]}
            assert told == Counter(expected), "an asker was told twice, or not at all"
        for k in self.answers:
            result = self.queue.result(k)
            assert result is not None
            assert len(result.results) == len(self.batches[k].candidates)
            for verdict in result.results:
                stands = self.verdicts.get((k, verdict.index))
                assert verdict.infra_error == (stands is None)
                assert stands is None or unpack_verdict(stands) == verdict

    def run(self) -> None:
        steps = [
            *[self.submit] * 3,
            *[self.pop_and_claim] * 5,
            self.stray_claim,
            *[self.renew] * 2,
            *[self.verdict] * 6,
            *[self.publish] * 2,
            self.release,
            *[self.die] * 2,
            self.live,
            self.mark,
            self.note,
            *[self.mend] * 3,
            self.bump,
            self.lose_bells,
            self.double_bells,
            self.cancel,
            *[self.time_passes] * 2,
            *[self.clock] * 2,
        ]
        for step in range(STEPS):
            self.rng.choice(steps)()
            if step % 3 == 0:
                self.check()

    def finish(self) -> None:
        """No more chaos: what is left is answered within a bounded number of rounds."""
        for _ in range(60):
            if set(self.answers) == set(self.submitted):
                return
            settle(self.queue)
            warp(self.queue, 5_000, *self.batches)
            for k in self.submitted:
                self.queue.mend(k, listed=k in listed_batches(self.client, "grade"))
            while (raw := self.client.lpop(keys.rq_queue("grade"))) is not None:
                self.owners += 1
                grant = self.queue.claim(raw.decode().rpartition("-")[0], f"o{self.owners}", "good", "n1").grant
                if grant is not None:
                    for index in range(len(self.batches[grant.hold.k].candidates)):
                        self.queue.verdict(grant.hold, passed(index))
                    assert self.queue.publish(grant.hold).word is Published.OK
            self.check()
        raise AssertionError("a batch was lost")


@pytest.mark.parametrize("seed", range(6))
def test_no_walk_loses_a_batch_or_answers_it_twice(each_queue: BatchQueue, seed: int) -> None:
    walk = Walk(each_queue, seed)
    walk.run()
    walk.finish()
    walk.check()
    assert set(walk.answers) == set(walk.submitted)
    assert each_queue.depth() == 0


def test_the_walks_go_everywhere(each_queue: BatchQueue) -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 104):
        each_queue.client.flushall()
        walk = Walk(each_queue, seed)
        walk.run()
        seen += walk.seen
    for reply in ("claim OK", "claim BUSY", "claim DONE", "verdict ACCEPTED", "verdict STANDS", "verdict FENCED"):
        assert seen[reply], f"no walk met {reply}: {seen}"
    for reply in ("publish OK", "publish ALREADY", "publish FENCED", "publish MISSING", "mend LIVE", "mend RUNG"):
        assert seen[reply], f"no walk met {reply}: {seen}"
    for reply in ("mend RELEASED", "mend ANSWERED", "mend SETTLING", "mend WAITING", "mend LISTED", "mend LOOK"):
        assert seen[reply], f"no walk met {reply}: {seen}"
