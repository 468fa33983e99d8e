"""Admission in order of asking, and the table of sessions under a clock of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import pytest

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.admission import Admission
from collimate_rl.sandboxd.backend import Outcome, Turn
from collimate_rl.sandboxd.config import Template
from collimate_rl.sandboxd.health import CACHED_S, HealthProbe
from collimate_rl.sandboxd.sessions import Sessions
from collimate_rl.sandboxd.wire import Exec


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_places_are_given_in_the_order_of_asking() -> None:
    admission = Admission(1, wait_s=10)
    order: list[int] = []

    def work(number: int) -> None:
        with admission.place():
            order.append(number)

    threads = []
    with admission.place():
        for number in range(5):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            until(lambda: admission.queued == len(threads))
        assert (admission.running, admission.queued) == (1, 5)
    for thread in threads:
        thread.join(10)
    assert order == list(range(5))
    assert (admission.running, admission.queued) == (0, 0)


def test_waiting_ends_with_at_capacity_and_leaves_the_line() -> None:
    admission = Admission(1, wait_s=0.01)
    with admission.place():
        with pytest.raises(CollimateError) as refused, admission.place():
            raise AssertionError("the place is taken")
        assert refused.value.error_code == "at_capacity"
        assert admission.queued == 0
    with admission.place():
        assert admission.running == 1


def test_who_waited_elsewhere_before_waits_no_longer_in_all() -> None:
    now = [100.0]
    admission = Admission(1, wait_s=20, clock=lambda: now[0])
    until_then = admission.last_moment()
    now[0] = 121.0
    with admission.place(until=until_then):  # there is one: no wait is needed
        with pytest.raises(CollimateError) as refused, admission.place(until=until_then):
            raise AssertionError("the place is taken")
        assert refused.value.error_code == "at_capacity"


def test_a_place_comes_back_after_a_failure() -> None:
    admission = Admission(1, wait_s=0.01)
    with pytest.raises(ZeroDivisionError), admission.place():
        raise ZeroDivisionError
    with admission.place():
        pass


def test_drain_refuses_those_in_line_and_waits_for_those_who_run() -> None:
    admission = Admission(1, wait_s=10)
    codes: list[str | None] = []

    def wait() -> None:
        with pytest.raises(CollimateError) as refused, admission.place():
            raise AssertionError("never given")
        codes.append(refused.value.error_code)

    with admission.place():
        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: admission.queued == 1)
        admission.drain()
        waiter.join(10)
        assert codes == ["draining"]
        assert not admission.wait_idle(0.01)
        with pytest.raises(CollimateError) as refused, admission.place():
            raise AssertionError("draining")
        assert refused.value.error_code == "draining"
    assert admission.wait_idle(0.01)


class FakeBox:
    fork_ms = 1.0
    endpoints: Mapping[int, str] = {}
    served_at = 0.0

    def __init__(self) -> None:
        self.dead = False

    def run(self, request: Exec) -> Outcome:
        raise AssertionError("not asked to")

    def alive(self) -> bool:
        return not self.dead

    def destroy(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(max_sessions=2, idle_limit_s=10, age_limit_s=100, clock=clock)


def code_of(action: Callable[[], object]) -> tuple[int | None, str | None]:
    with pytest.raises(CollimateError) as refused:
        action()
    return refused.value.status, refused.value.error_code


def test_session_info(sessions: Sessions, clock: Clock) -> None:
    session = sessions.add("py", "mine", FakeBox)
    clock.now = 5
    assert sessions.info(session.session_id) == {
        "session_id": session.session_id,
        "template_id": "py",
        "age_secs": 5,
        "idle_secs": 5,
        "exec_count": 0,
        "label": "mine",
    }
    with sessions.in_use(session.session_id):
        clock.now = 8
        assert sessions.info(session.session_id)["idle_secs"] == 0
    clock.now = 9
    info = sessions.info(session.session_id)
    assert (info["idle_secs"], info["exec_count"]) == (1, 1)


def test_the_table_is_full_before_anything_is_made(sessions: Sessions) -> None:
    made: list[FakeBox] = []

    def make() -> FakeBox:
        made.append(FakeBox())
        return made[-1]

    for _ in range(2):
        sessions.add("py", None, make)
    assert code_of(lambda: sessions.add("py", None, make)) == (503, "at_capacity")
    assert len(made) == 2


def test_a_failed_bringup_gives_its_place_back(sessions: Sessions) -> None:
    def fail() -> FakeBox:
        raise CollimateError("no", 503, "session_bringup_failed")

    for _ in range(3):
        assert code_of(lambda: sessions.add("py", None, fail)) == (503, "session_bringup_failed")
    sessions.add("py", None, FakeBox)
    assert len(sessions) == 1


def test_overdue(sessions: Sessions, clock: Clock) -> None:
    idle, busy = sessions.add("py", None, FakeBox), sessions.add("py", None, FakeBox)
    with sessions.in_use(busy.session_id):
        clock.now = 11
        assert sessions.overdue() == [idle]
        clock.now = 101
        assert sessions.overdue() == [busy]
    assert code_of(lambda: sessions.info(idle.session_id)) == (404, "no_such_session")
    assert code_of(lambda: sessions.info(busy.session_id)) == (410, "session_gone")


def test_the_dead_are_found_unless_an_exec_is_there_to_report_it(sessions: Sessions) -> None:
    boxes = [FakeBox(), FakeBox()]
    first, second = (sessions.add("py", None, lambda box=box: box) for box in boxes)  # type: ignore[misc]
    assert sessions.dead() == []
    for box in boxes:
        box.dead = True
    with sessions.in_use(second.session_id):
        assert sessions.dead() == [first]
    assert sessions.dead() == [first, second]
    sessions.lost(first)
    assert code_of(lambda: sessions.info(first.session_id)) == (410, "session_gone")


def test_connections_to_its_ports_count_as_use(sessions: Sessions, clock: Clock) -> None:
    box = FakeBox()
    session = sessions.add("py", None, lambda: box)
    clock.now = 11
    box.served_at = 5
    assert sessions.overdue() == []
    assert session.info(clock.now)["idle_secs"] == 6
    clock.now = 16
    assert sessions.overdue() == [session]


def test_only_so_many_of_the_gone_are_remembered(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    from collimate_rl.sandboxd import sessions as module

    monkeypatch.setattr(module, "_REMEMBERED", 2)
    table = Sessions(max_sessions=9, idle_limit_s=1, age_limit_s=1, clock=clock)
    gone = [table.add("py", None, FakeBox) for _ in range(3)]
    for session in gone:
        table.lost(session)
    codes = [code_of(lambda session=session: table.info(session.session_id))[1] for session in gone]  # type: ignore[misc]
    assert codes == ["no_such_session", "session_gone", "session_gone"]


class FakeBackend:
    name = "fake"

    def __init__(self) -> None:
        self.answers: list[Outcome | CollimateError] = []
        self.asked = 0

    def start(self) -> None: ...

    def run_once(self, template: Template, request: Exec, turn: Turn = nullcontext) -> Outcome:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, CollimateError):
            raise answer
        return answer

    def create(self, template: Template) -> FakeBox:
        return FakeBox()

    def failure(self, template: Template) -> str | None:
        return "no such module" if template.preload else None

    def facts(self) -> dict[str, object]:
        return {}

    def close(self) -> None: ...


def outcome(exit_code: int = 0, output: bytes = b"42\n") -> Outcome:
    return Outcome(exit_code=exit_code, output=output, truncated=False, fork_ms=0, exec_ms=0)


def test_health_without_any_template_that_is_up(clock: Clock) -> None:
    probe = HealthProbe(FakeBackend(), [Template(preload=("down",))], clock=clock)
    assert probe.problem() == "no template could be brought up: no such module"


def test_health_runs_something_and_remembers_it_for_a_while(clock: Clock) -> None:
    backend = FakeBackend()
    probe = HealthProbe(backend, [Template(preload=("down",)), Template()], clock=clock)
    backend.answers = [
        outcome(),
        outcome(exit_code=1),
        CollimateError("no fork", 503, "session_bringup_failed"),
        outcome(),
    ]
    assert probe.problem() is None
    clock.now = CACHED_S - 0.1
    assert probe.problem() is None
    assert backend.asked == 1
    for _ in range(2):
        clock.now += CACHED_S + 1
        assert probe.problem() is not None
    clock.now += CACHED_S + 1
    assert probe.problem() is None


def test_who_hung_up_while_waiting_is_passed_over() -> None:
    admission = Admission(1, wait_s=10)
    ran: list[str] = []

    def work(name: str, *, gone: bool) -> None:
        try:
            with admission.place(hung_up=lambda: gone):
                ran.append(name)
        except CollimateError as exc:
            ran.append(exc.error_code or "")

    threads = []
    with admission.place(hung_up=lambda: True):
        for number, (name, gone) in enumerate((("first", False), ("gone", True), ("last", False))):
            threads.append(threading.Thread(target=work, args=(name,), kwargs={"gone": gone}))
            threads[-1].start()
            until(lambda: admission.queued == len(threads))
            assert number == len(threads) - 1
    for thread in threads:
        thread.join(10)
    assert ran == ["first", "at_capacity", "last"]
    assert (admission.running, admission.queued) == (0, 0)
