"""Retries on one node: which errors, how often, how long between, and never past the deadline or a stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collimate_rl.errors import (
    BACKPRESSURE,
    AmbiguousError,
    CollimateDrainingError,
    CollimateError,
    CollimateTaskError,
    UnreachableError,
)
from collimate_rl.grading.execute import ExecRequest, Role
from collimate_rl.sandbox import ExecResult
from worker.executor import LONGEST_PAUSE_S, NodeExecutor, RetryPolicy
from worker.slots import Slots

RESULT = ExecResult.from_wire(
    {
        "stdout": "",
        "stderr": "",
        "exit_code": 0,
        "fork_time_ms": 0.0,
        "exec_time_ms": 0.0,
        "total_time_ms": 0.0,
        "seed": "00" * 32,
        "seed_ack": "off",
    }
)
REQUEST = ExecRequest(code="pass")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Inner:
    """Raises what it is given, in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return RESULT


class Stop(threading.Event):
    """A stop event whose waits pass at once, on the test's clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.waits: list[float] = []
        self.set_at_wait: int | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        self.clock.now += timeout or 0.0
        if self.set_at_wait == len(self.waits):
            self.set()
        return self.is_set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., NodeExecutor]]:
    opened: list[Slots] = []

    def build(inner: Inner, stop: Stop, until: float = 1000.0, **options: object) -> NodeExecutor:
        slots = Slots(tmp_path, 1, clock=clock)
        opened.append(slots)
        policy = options.pop("policy", RetryPolicy(retries=3, backoff_s=1.0))
        given: dict[str, object] = {"on_retry": lambda *_: None, "uniform": lambda _low, high: high, **options}
        return NodeExecutor(inner, slots, policy, until=until, stop=stop, clock=clock, **given)  # type: ignore[arg-type]

    yield build
    for slots in opened:
        slots.close()


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("refused"),
        AmbiguousError("reset"),
        CollimateError("full", 503, "at_capacity"),
        CollimateError("lost", 410, "session_gone"),
        CollimateError("odd", 500),
    ],
)
def test_infrastructure_errors_are_tried_again(
    make: Callable[..., NodeExecutor], clock: Clock, error: Exception
) -> None:
    stop, inner = Stop(clock), Inner(error, error)
    heard: list[tuple[int | None, float]] = []
    execute = make(inner, stop, on_retry=lambda index, _error, pause: heard.append((index, pause)))
    assert execute.run(REQUEST, role="runner", index=7) is RESULT
    assert inner.calls == 3
    assert heard == [(7, 1.0), (7, 2.0)]
    assert stop.waits == [1.0, 2.0]


def test_no_room_is_waited_out_until_the_deadline_and_never_counted(
    make: Callable[..., NodeExecutor], clock: Clock
) -> None:
    told = CollimateError("come again", 429, "rate_limited")
    told.retry_after_s = 5.0
    limit = CollimateError("eight at once", 429, "demo_tier_limit")
    stop, inner = Stop(clock), Inner(*[told] * 2, *[limit] * 10, UnreachableError("refused"))
    execute = make(inner, stop, policy=RetryPolicy(retries=1, backoff_s=1.0, waits_out=BACKPRESSURE))
    assert execute.run(REQUEST, role="runner", index=0) is RESULT
    assert stop.waits[:4] == [6.0, 7.0, 4.0, 8.0]
    assert max(stop.waits) == LONGEST_PAUSE_S
    inner = Inner(*[limit] * 1000)
    with pytest.raises(CollimateError) as caught:
        make(inner, stop, policy=RetryPolicy(waits_out=BACKPRESSURE)).run(REQUEST, role="runner", index=0)
    assert caught.value is limit
    assert 1000.0 - LONGEST_PAUSE_S <= clock.now < 1000.0


def test_after_three_tries_more_the_error_comes_out(make: Callable[..., NodeExecutor], clock: Clock) -> None:
    last = UnreachableError("the last")
    inner = Inner(*[UnreachableError("refused")] * 3, last)
    with pytest.raises(UnreachableError) as caught:
        make(inner, Stop(clock)).run(REQUEST, role="judge", index=None)
    assert caught.value is last
    assert inner.calls == 4


@pytest.mark.parametrize(
    "error",
    [
        CollimateError("no such template", 404, "no_template"),
        CollimateError("off", 400, "bad_request"),
        CollimateError("not hex", 400, "invalid_seed"),
        CollimateDrainingError("going away"),
        CollimateTaskError(1, b"".decode()),
    ],
)
def test_what_trying_again_here_cannot_heal_comes_out_at_once(
    make: Callable[..., NodeExecutor], clock: Clock, error: Exception
) -> None:
    inner = Inner(error)
    with pytest.raises(type(error)):
        make(inner, Stop(clock)).run(REQUEST, role="runner", index=0)
    assert inner.calls == 1


@pytest.mark.parametrize("drains", [True, False])
def test_a_daemon_that_is_gone_after_a_drain_is_taken_for_draining(
    make: Callable[..., NodeExecutor], clock: Clock, drains: bool
) -> None:
    heard: list[CollimateError] = []
    inner, stop = Inner(UnreachableError("refused")), Stop(clock)
    execute = make(inner, stop, on_draining=heard.append, drains=lambda: drains)
    if drains:
        with pytest.raises(UnreachableError):
            execute.run(REQUEST, role="runner", index=0)
    else:
        assert execute.run(REQUEST, role="runner", index=0) is RESULT
    assert (len(heard), inner.calls) == ((1, 1) if drains else (0, 2))


def test_no_try_is_made_that_would_start_past_the_deadline(make: Callable[..., NodeExecutor], clock: Clock) -> None:
    stop, inner = Stop(clock), Inner(*[UnreachableError("refused")] * 9)
    with pytest.raises(UnreachableError):
        make(inner, stop, until=2.5).run(REQUEST, role="runner", index=0)
    assert (inner.calls, stop.waits) == (2, [1.0])


def test_past_the_deadline_nothing_starts(make: Callable[..., NodeExecutor], clock: Clock) -> None:
    inner = Inner()
    clock.now = 5.0
    with pytest.raises(CollimateError) as caught:
        make(inner, Stop(clock), until=5.0).run(REQUEST, role="runner", index=0)
    assert (caught.value.error_code, inner.calls) == ("expired", 0)


def test_a_stop_ends_the_pause_and_lets_nothing_start(make: Callable[..., NodeExecutor], clock: Clock) -> None:
    stop, inner = Stop(clock), Inner(UnreachableError("refused"))
    stop.set_at_wait = 1
    execute = make(inner, stop)
    with pytest.raises(UnreachableError):
        execute.run(REQUEST, role="runner", index=0)
    with pytest.raises(CollimateError) as caught:
        execute.run(REQUEST, role="runner", index=1)
    assert (caught.value.error_code, inner.calls) == ("stopped", 1)


def test_starts_of_candidates_are_announced_before_each_exec(make: Callable[..., NodeExecutor], clock: Clock) -> None:
    inner = Inner(UnreachableError("refused"))
    started: list[int] = []
    execute = make(inner, Stop(clock), on_start=started.append)
    execute.run(REQUEST, role="runner", index=3)
    execute.run(REQUEST, role="judge", index=None)
    assert started == [3, 3]


def test_waiting_for_a_slot_is_told_per_candidate(make: Callable[..., NodeExecutor], clock: Clock) -> None:
    execute = make(Inner(), Stop(clock))
    execute.run(REQUEST, role="runner", index=0)
    assert execute.queue_ms(0) == 0.0
    assert execute.queue_ms(1) == 0.0


def test_the_pause_is_jittered_and_bounded() -> None:
    policy = RetryPolicy(retries=20, backoff_s=0.5)
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return low

    assert [policy.pause(attempt, uniform) for attempt in (0, 1, 2, 10)] == [0.0] * 4
    assert asked == [(0.0, 0.5), (0.0, 1.0), (0.0, 2.0), (0.0, LONGEST_PAUSE_S)]
