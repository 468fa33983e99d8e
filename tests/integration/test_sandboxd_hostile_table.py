"""The table of attacks against the real daemon, one by one: in a one-shot exec and in a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.hostile_attacks import Attack
from tests.fixtures.hostile_bombs import BOMBS
from tests.fixtures.hostile_refused import REFUSED
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.sandboxd_wire import at_rest, call, code, eventually, footprint, run, session_exec

TABLE = [pytest.param(attack, id=attack.name) for attack in (*REFUSED, *BOMBS)]


@pytest.fixture(scope="module", autouse=True)
def nothing_stays(sandbox_daemon: RunningDaemon) -> Iterator[None]:
    """What the daemon holds after all attacks is what it held before."""
    before = at_rest(sandbox_daemon.pid, sandbox_daemon.socket_path)
    yield

    def no_more() -> bool:
        return all(count <= before[name] for name, count in footprint(sandbox_daemon.pid).items())

    eventually(no_more, f"{footprint(sandbox_daemon.pid)} back to {before}")
    assert call(sandbox_daemon.socket_path, "GET", "/v1/health")[1]["unclean_forks"] == 0


@pytest.mark.parametrize("attack", TABLE)
def test_one_shot(daemon_socket: str, attack: Attack) -> None:
    answer = run(daemon_socket, **attack.body())
    assert attack.came_to_nothing(answer), answer
    assert code(daemon_socket, "print('served')")["stdout"] == "served\n"


@pytest.mark.parametrize("attack", TABLE)
def test_in_a_session(daemon_socket: str, sandbox_session: str, attack: Attack) -> None:
    answer = session_exec(daemon_socket, sandbox_session, **attack.body())
    assert attack.came_to_nothing(answer), answer

    def serves() -> bool:
        after = session_exec(daemon_socket, sandbox_session, code="print('served')")
        return bool(after["stdout"] == "served\n" or (attack.fills_session and after["exit_code"] == 137))

    # What an exec leaves behind in its session dies out by itself, and fills the session's limits until then.
    eventually(serves, "the session to serve again")
