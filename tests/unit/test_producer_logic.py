"""The producer's own logic, on fakeredis and on clocks that tests hold: handles, the file run, the reader."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import fakeredis
import pytest

import producer.producer as producer_module
from collimate_rl.errors import BatchConflict, QueueFull, RedisUnavailable, RunMisconfigured
from collimate_rl.protocol import BatchResult, Timing, Verdict, content_hash, infra_verdict
from collimate_rl.queue.batches import BatchQueue
from producer import BatchHandle, Producer, as_completed
from producer.submit_file import OUTAGE_BUDGET_S, Defaults, FileRun
from tests.fixtures.queue_batches import key_of, make_batch, passed, take

WAIT_S = 30.0


def result_of(*verdicts: Verdict) -> BatchResult:
    return BatchResult(
        run="run",
        id="x",
        epoch=0,
        status="graded",  # type: ignore[arg-type]
        results=verdicts or (passed(0),),
        submitted_at=0.0,
        claimed_at=0.0,
        finished_at=0.0,
        attempts=1,
        worker="w",
    )


def new_handle(id: str = "x") -> BatchHandle:
    batch = make_batch(id=id)
    return BatchHandle(None, key_of(batch), batch, content_hash(batch))  # type: ignore[arg-type]


# handles


def test_a_handle_is_answered_once() -> None:
    handle, told = new_handle(), []
    handle.add_done_callback(told.append)
    first, second = result_of(), result_of(infra_verdict(0, "expired"))
    assert handle.finish(first)
    assert not handle.finish(second)
    handle.add_done_callback(told.append)
    assert told == [handle, handle]
    assert handle.result(0) is first


def test_a_handle_raises_what_it_was_given() -> None:
    handle = new_handle()
    handle.finish(None, RedisUnavailable("gone"))
    with pytest.raises(RedisUnavailable):
        handle.result()
    with pytest.raises(RedisUnavailable):
        asyncio.run(_await(handle))


async def _await(handle: BatchHandle) -> BatchResult:
    return await handle


def test_many_tasks_await_one_handle_and_a_cancelled_one_harms_none() -> None:
    handle = new_handle()

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(_await(handle)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        threading.Thread(target=handle.finish, args=(result_of(),)).start()
        return await asyncio.gather(*tasks, return_exceptions=True)

    cancelled, *others = asyncio.run(main())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [r.rewards() for r in others] == [[1.0], [1.0]]
    assert handle._callbacks == []


def test_as_completed_gives_what_is_done_first() -> None:
    a, b = new_handle("a"), new_handle("b")
    b.finish(result_of())
    found = as_completed([a, b], timeout=WAIT_S)
    assert next(found) is b
    a.finish(result_of())
    assert list(found) == [a]
    assert list(as_completed([])) == []


# the file run


class Scripted:
    """Stands in for a producer: `submit` does what is next in the script."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.t = 0.0

    def submit(self, **options: Any) -> BatchHandle:
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        handle = new_handle(options["id"])
        handle.finish(step)
        return handle

    def sleep(self, seconds: float) -> None:
        self.t += seconds


def run_file(script: Scripted, *lines: str) -> tuple[int, list[dict[str, Any]]]:
    out: list[dict[str, Any]] = []
    run = FileRun(
        script,  # type: ignore[arg-type]
        Defaults(),
        write=lambda line: out.append(json.loads(line)),
        clock=lambda: script.t,
        sleep=script.sleep,
    )
    return run.run(line.encode() for line in lines), out


def row(id: str) -> str:
    return json.dumps({"ground_truth": [{"input": 1, "expected": 1}], "completions": ["x = 1"], "id": id})


def test_a_full_queue_is_waited_for() -> None:
    script = Scripted(QueueFull("full"), QueueFull("full"), result_of())
    code, out = run_file(script, row("a"))
    assert (code, out[0]["id"]) == (0, "a")
    assert script.t > 0


def test_a_queue_that_stays_full_fails_the_row_as_infrastructure() -> None:
    code, out = run_file(Scripted(QueueFull("full")), row("a"))
    assert code == 3
    assert out == [{"line": 1, "id": "a", "error": "full"}]


def test_an_outage_is_sat_out_once_and_then_fails_the_rest_quickly() -> None:
    script = Scripted(RedisUnavailable("away"))
    code, out = run_file(script, row("a"), row("b"), row("c"))
    assert code == 3
    assert [line["error"] for line in out] == ["away"] * 3
    assert OUTAGE_BUDGET_S <= script.t < 2 * OUTAGE_BUDGET_S


@pytest.mark.parametrize("wrong", [ValueError("bad"), BatchConflict("known"), RunMisconfigured("no template")])
def test_what_is_wrong_with_a_row_is_bad_input_and_wins(wrong: Exception) -> None:
    script = Scripted(wrong, result_of(infra_verdict(0, "expired")))
    code, out = run_file(script, row("a"), row("b"))
    assert code == 2
    assert out[0] == {"line": 1, "error": str(wrong)}
    assert out[1]["results"][0]["error_code"] == "expired"


# on fakeredis


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fakeredis.FakeServer:
    server = fakeredis.FakeServer()

    def connect(*_args: Any, **_kwargs: Any) -> fakeredis.FakeRedis:
        return fakeredis.FakeRedis(server=server)

    monkeypatch.setattr(producer_module, "connect_commands", connect)
    monkeypatch.setattr(producer_module, "connect_blocking", connect)
    monkeypatch.setattr(producer_module, "check_server", lambda client: "fake")
    return server


def test_submit_wait_and_take_up_again(fake: fakeredis.FakeServer) -> None:
    queue = BatchQueue(fakeredis.FakeRedis(server=fake))
    with Producer("redis://fake", run="run", name="p", timing=Timing()) as producer:
        handle = producer.submit(template="py", candidates=["a"], spec={"type": "x"}, id="one")
        hold = take(queue, handle.k).hold
        queue.verdict(hold, passed(0, 0.5))
        queue.publish(hold)
        assert handle.result(WAIT_S).rewards() == [0.5]
        assert producer.submit(template="py", candidates=["a"], spec={"type": "x"}, id="one").done()
        with pytest.raises(BatchConflict):
            producer.submit(template="py", candidates=["b"], spec={"type": "x"}, id="one")
        with pytest.raises(ValueError, match="not 0"):
            producer.submit(template="py", candidates=[], spec={"type": "x"})


def test_what_is_no_candidates_no_spec_and_no_time_limit(fake: fakeredis.FakeServer) -> None:
    with Producer("redis://fake", run="run") as producer:
        with pytest.raises(ValueError, match="one text"):
            producer.submit(template="py", candidates="def solve(x): ...", spec={"type": "x"})
        for spec in (None, [{"input": 1, "expected": 2}]):
            with pytest.raises(ValueError, match="no reward spec: reward_spec_from_ground_truth"):
                producer.submit(template="py", candidates=["a"], spec=spec)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="from 1 to 3600"):
            producer.submit(template="py", candidates=["a"], spec={"type": "x"}, timeout_seconds=3601)


def test_a_timeout_tells_where_no_worker_serves(fake: fakeredis.FakeServer) -> None:
    queue = BatchQueue(fakeredis.FakeRedis(server=fake))
    with Producer("redis://fake", run="run") as producer:
        handle = producer.submit(template="py", candidates=["a"], spec={"type": "x"})
        with pytest.raises(TimeoutError, match="within 0 s; no worker served queue 'grade'"):
            handle.result(0)
        queue.beat("n1", {"templates": ["py"], "up": False, "reason": "cannot connect"})
    with Producer("redis://fake", run="run") as producer:
        handle = producer.submit(template="py", candidates=["away"], spec={"type": "x"})
        with pytest.raises(TimeoutError, match=r"no node of queue 'grade' took work .*\(node n1: cannot connect\)"):
            handle.result(0)
    queue.beat("n1", {"templates": ["py"], "up": True})
    with Producer("redis://fake", run="run") as producer:
        handle = producer.submit(template="py", candidates=["b"], spec={"type": "x"})
        with pytest.raises(TimeoutError, match=r"within 0 s$"):
            handle.result(0)


def test_a_node_that_lists_no_templates_may_have_the_one_that_others_lack(fake: fakeredis.FakeServer) -> None:
    queue = BatchQueue(fakeredis.FakeRedis(server=fake))
    queue.beat("broken", {"templates": [], "up": False, "failed_templates": {"py": "no such folder"}})
    queue.beat("gateway", {"up": False})
    with Producer("redis://fake", run="run") as producer:
        with pytest.raises(RunMisconfigured, match="no such folder"):
            producer.submit(template="py", candidates=["a"], spec={"type": "x"})
        queue.beat("gateway", {"up": True})
        producer.submit(template="py", candidates=["a"], spec={"type": "x"})
