"""Real processes, killed, paused and cut off on a seeded schedule; then every promise of the queue is looked at.

The short form is part of the suite. `make chaos` runs the long one (CHAOS=long). CHAOS_SEED=<n> in the environment
gives the same faults at the same points of progress, and the same batches; which instruction a kill hits is up to the
machine. The seed is printed at the start, and stands in every failure's message.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter

import pytest

from collimate_rl.protocol import ResultStatus
from collimate_rl.queue import codec
from collimate_rl.queue.server import find_servers
from tests.fixtures.chaos_record import Record, run_chaos
from tests.fixtures.chaos_schedule import LONG, SHORT, counts, schedule
from tests.fixtures.sandbox_daemon import RunningDaemon

IS_LONG = os.environ.get("CHAOS") == "long"
PLAN = LONG if IS_LONG else SHORT
SEED = int(os.environ.get("CHAOS_SEED") or (secrets.randbelow(10**6) if IS_LONG else 1))
FOR_EVER = {
    "rq:queues": "rq's set of queue names: one entry per queue",
    "rq:finished:grade": "rq's registry: its own cleaning takes what is due out",
    "rq:failed:grade": "rq's registry: its own cleaning takes what is due out",
    "rq:wip:grade": "the same; a server that lost its last second brings back an execution that had ended",
}
"""Keys without a lifetime, and whose they are. No rq job is among them."""


def said(what: object) -> str:
    return f"CHAOS_SEED={SEED}{' CHAOS=long' if IS_LONG else ''}: {str(what)[:4000]}"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory, sandbox_daemon: RunningDaemon) -> Record:
    """The run. `sandbox_daemon` is not its: that skips where no daemon can isolate."""
    if not find_servers():
        pytest.skip("no Redis or Valkey server on this machine")
    print(f"\n{said(f'{PLAN.batches} batches of {PLAN.k}, {sum(PLAN.faults.values())} faults')}", flush=True)
    return run_chaos(tmp_path_factory.mktemp("chaos"), SEED, PLAN)


def test_every_fault_of_the_schedule_struck(record: Record) -> None:
    assert record.inflicted == counts(schedule(SEED, PLAN)), said("some faults found nothing to hit")


def test_every_batch_is_answered_exactly_once(record: Record) -> None:
    answered = Counter(k for _, k in record.entries)
    odd = {k: answered[k] for k in {*record.questions, *answered} if answered[k] != 1}
    assert not odd, said(f"answers per batch, where not one: {odd}")


def test_every_answer_is_a_whole_group(record: Record) -> None:
    assert record.results.keys() == record.questions.keys(), said("batches without a result")
    for k, result in record.results.items():
        indices = [verdict.index for verdict in result.results]
        assert indices == list(range(PLAN.k)), said(f"batch {k} has answers for {indices}")


def test_every_verdict_is_right(record: Record) -> None:
    wrong = [
        f"{k} candidate {verdict.index}: {verdict.reward} ({verdict.outcome}, {verdict.detail})"
        for k, result in record.results.items()
        for verdict, right in zip(result.results, record.questions[k].rewards, strict=True)
        if not verdict.infra_error and verdict.reward != right
    ]
    assert not wrong, said(wrong)


def test_no_verdict_ever_changed(record: Record) -> None:
    assert not record.changed, said(record.changed)
    other = [where for where, blob in record.first_seen.items() if record.verdicts.get(where) != blob]
    assert not other, said(f"verdicts that were others when they were first seen: {other}")
    published = {(k, v.index): v for k, r in record.results.items() for v in r.results if not v.infra_error}
    assert published.keys() == record.verdicts.keys(), said("a result holds other verdicts than were written")
    differ = [where for where, blob in record.verdicts.items() if codec.unpack_verdict(blob) != published[where]]
    assert not differ, said(f"published otherwise than written: {differ}")


def test_no_infra_flag_where_no_daemon_was_down(record: Record) -> None:
    unexcused = [flag for flag in record.flagged() if flag.split()[0] not in record.excused]
    assert not unexcused, said(unexcused)
    odd = {k: r.status for k, r in record.results.items() if r.status is ResultStatus.QUARANTINED}
    assert not odd, said(f"no batch lost three owners, and yet: {odd}")
    assert not any("quarantined" in flag for flag in record.flagged()), said(record.flagged())


def test_every_trainer_got_its_answers_and_they_are_the_published_ones(record: Record) -> None:
    for number, (name, lines) in enumerate(sorted(record.trainers.items())):
        share = {question.k for at, question in enumerate(record.questions.values()) if at % PLAN.trainers == number}
        assert {line["k"] for line in lines} == share, said(f"trainer {name} got other answers than it asked for")
        for line in lines:
            rewards = [verdict.reward for verdict in record.results[line["k"]].results]
            assert line["rewards"] == rewards, said(f"trainer {name} was told otherwise of {line['k']}")


def test_nothing_is_left_to_do(record: Record) -> None:
    """Queue, intermediate list, pending, owners; and no session on any daemon."""
    assert not record.unrest, said(record.unrest)


def test_no_key_is_without_an_owner_or_a_lifetime(record: Record) -> None:
    endless = sorted(name for name, ms in record.lifetimes.items() if ms == -1 and name not in FOR_EVER)
    assert not endless, said(endless)


def test_everything_stopped_in_order_and_nothing_of_ours_failed(record: Record) -> None:
    assert set(record.exit_codes.values()) == {0}, said(record.exit_codes)
    assert not record.failures, said(record.failures)


def test_no_process_is_left(record: Record) -> None:
    assert not record.strays, said(record.strays)
