"""Sessions: what stays from exec to exec, what ends with which, and what a candidate can do to its own."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.fixtures.sandboxd_wire import UnixConnection, call, code, eventually, session_exec


def test_files_do_not_follow_what_a_candidate_laid_there(daemon_socket: str, sandbox_session: str) -> None:
    lay = """
import os
os.symlink("/proc/self", "/box/folder")
os.symlink("/tmp/target", "/box/link")
os.mkfifo("/box/pipe")
os.symlink("/proc/1/fd/3", "/box/deep")
"""
    assert session_exec(daemon_socket, sandbox_session, code=lay)["exit_code"] == 0
    through = session_exec(
        daemon_socket, sandbox_session, code="print(1)", files=[{"path": "folder/x", "content": "x"}]
    )
    assert through["exit_code"] == 1
    assert "files were not written" in through["stdout"]
    files = [{"path": name, "content": name} for name in ("link", "pipe", "deep")]
    look = """
import os
print([open(n).read() for n in ("link", "pipe", "deep")], os.path.exists("/tmp/target"), sorted(os.listdir()))
"""
    answer = session_exec(daemon_socket, sandbox_session, code=look, files=files)
    assert answer["stdout"] == "['link\\n', 'pipe\\n', 'deep\\n'] False ['deep', 'folder', 'link', 'pipe']\n"


def test_files_and_a_symlink_race(daemon_socket: str, sandbox_session: str) -> None:
    """A process that keeps swapping a folder for a link never gets a file written elsewhere."""
    swap = "while :; do mkdir d 2>/dev/null; rm -rf d; ln -s /tmp d; rm -f d; done"
    racer = threading.Thread(
        target=lambda: session_exec(daemon_socket, sandbox_session, command=swap, timeout_seconds=3)
    )
    # An interpreter that lies below /tmp is bound there, so the folder need not be empty.
    before = session_exec(daemon_socket, sandbox_session, command="ls /tmp")["stdout"]
    racer.start()
    for _ in range(60):
        session_exec(daemon_socket, sandbox_session, command="true", files=[{"path": "d/escaped", "content": "x"}])
    racer.join(30)
    assert session_exec(daemon_socket, sandbox_session, command="ls /tmp")["stdout"] == before
    assert "escaped" not in before


def test_the_candidate_finds_no_file_contents_in_its_memory(daemon_socket: str, sandbox_session: str) -> None:
    text = """
import os
os.unlink("job")
wanted = "".join(["ne", "edle-", "1f0c"]).encode()
hits = 0
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps"):
        if line.split()[1].startswith("r") and "[v" not in line:
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            memory.seek(start)
            try: hits += memory.read(end - start).count(wanted * 3)
            except OSError: pass
print("hits", hits)
"""
    files = [{"path": "job", "content": "needle-1f0c" * 50}]
    assert code(daemon_socket, text, files=files)["stdout"] == "hits 0\n"
    assert session_exec(daemon_socket, sandbox_session, code=text, files=files)["stdout"] == "hits 0\n"
    assert session_exec(daemon_socket, sandbox_session, code=text, files=files)["stdout"] == "hits 0\n"


def test_session_life(daemon_socket: str) -> None:
    status, created = call(daemon_socket, "POST", "/v1/sessions", {"template_id": "py", "label": "group-7"})
    assert status == 201
    assert {"session_id", "template_id", "fork_time_ms", "create_time_ms"} <= set(created)
    session_id = created["session_id"]
    assert session_exec(daemon_socket, session_id, command="echo kept > file")["exit_code"] == 0
    assert session_exec(daemon_socket, session_id, code="x = 1\nprint(open('file').read())")["stdout"] == "kept\n\n"
    assert session_exec(daemon_socket, session_id, code="print('x' in globals())")["stdout"] == "False\n"
    status, info = call(daemon_socket, "GET", f"/v1/sessions/{session_id}")
    assert status == 200
    assert set(info) == {"session_id", "template_id", "age_secs", "idle_secs", "exec_count", "label"}
    assert (info["exec_count"], info["label"], info["template_id"]) == (3, "group-7", "py")
    assert session_id in [entry["session_id"] for entry in call(daemon_socket, "GET", "/v1/sessions")[1]]
    assert call(daemon_socket, "DELETE", f"/v1/sessions/{session_id}") == (
        200,
        {"deleted": True, "session_id": session_id},
    )
    assert call(daemon_socket, "DELETE", f"/v1/sessions/{session_id}")[0] == 404
    assert call(daemon_socket, "GET", f"/v1/sessions/{session_id}")[1]["error_code"] == "no_such_session"


def test_sessions_do_not_see_each_other(daemon_socket: str, sandbox_session: str) -> None:
    look = "ls /tmp /box; ps -e -o comm= | grep -c sleep"
    untouched = session_exec(daemon_socket, sandbox_session, command=look)["stdout"]
    session_exec(daemon_socket, sandbox_session, command="echo secret > /tmp/s; sleep 60 & echo up")
    _, other = call(daemon_socket, "POST", "/v1/sessions", {"template_id": "py"})
    assert session_exec(daemon_socket, other["session_id"], command=look)["stdout"] == untouched
    assert untouched.startswith("/box:\n\n/tmp:\n")
    assert untouched.endswith("\n0\n")
    assert "\ns\n" not in untouched
    call(daemon_socket, "DELETE", f"/v1/sessions/{other['session_id']}")


def test_execs_of_one_session_run_side_by_side(daemon_socket: str, sandbox_session: str) -> None:
    answers: list[dict[str, Any]] = []
    waiter = threading.Thread(
        target=lambda: answers.append(
            session_exec(daemon_socket, sandbox_session, command="until [ -e go ]; do sleep 0.02; done; echo went")
        )
    )
    waiter.start()
    assert session_exec(daemon_socket, sandbox_session, command="touch go; echo sent")["stdout"] == "sent\n"
    waiter.join(30)
    assert answers[0]["stdout"] == "went\n"


def test_background_processes_live_as_long_as_the_session(daemon_socket: str, sandbox_session: str) -> None:
    started = session_exec(daemon_socket, sandbox_session, command="sleep 300 & echo $!")
    assert started["exit_code"] == 0
    pid = started["stdout"].strip()
    assert session_exec(daemon_socket, sandbox_session, command=f"kill -0 {pid} && echo alive")["stdout"] == "alive\n"


@pytest.mark.parametrize(
    "attack",
    [
        "sleep 300 & (setsid sleep 300 &) ; sleep 300",
        "b() { b | b & }; b; sleep 300",
        "trap '' TERM INT HUP; while :; do :; done",
    ],
)
def test_a_timeout_in_a_session_ends_its_own_tree_only(daemon_socket: str, sandbox_session: str, attack: str) -> None:
    kept = session_exec(daemon_socket, sandbox_session, command="sleep 300 & echo $!")["stdout"].strip()
    answer = session_exec(daemon_socket, sandbox_session, command=f"echo begun; {attack}", timeout_seconds=1)
    assert answer["exit_code"] in (-1, 2)
    assert answer["stdout"].startswith("begun\n")
    left = session_exec(daemon_socket, sandbox_session, command="ps -e -o pid=,comm=")["stdout"].split()
    if answer["exit_code"] == -1:
        assert left[2:4] == [kept, "sleep"]
        assert sorted(left[5::2]) == ["ps", "sh"]
    assert session_exec(daemon_socket, sandbox_session, code="print('served')")["stdout"] == "served\n"


def test_a_session_killed_from_inside(daemon_socket: str, sandbox_session: str) -> None:
    """A candidate that brings its own init down: its exec died, later ones find the session gone."""
    text = """
import os, resource, subprocess, time
resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))
for _ in range(2000):
    subprocess.run(["sh", "-c", "(true &)"])
time.sleep(20)
"""
    body = {"code": text, "timeout_seconds": 10}
    status, answer = call(daemon_socket, "POST", f"/v1/sessions/{sandbox_session}/exec", body)
    assert (status, answer["exit_code"]) == (200, 137)
    status, answer = call(daemon_socket, "POST", f"/v1/sessions/{sandbox_session}/exec", {"command": "true"})
    assert (status, answer["error_code"]) == (410, "session_gone")


def test_delete_while_an_exec_runs(daemon_socket: str, sandbox_session: str) -> None:
    answers: list[tuple[int, Any]] = []
    target = f"/v1/sessions/{sandbox_session}/exec"
    body = {"command": "echo up > /tmp/up; sleep 60"}
    running = threading.Thread(target=lambda: answers.append(call(daemon_socket, "POST", target, body)))
    running.start()
    eventually(
        lambda: session_exec(daemon_socket, sandbox_session, command="cat /tmp/up 2>/dev/null")["stdout"] == "up\n",
        "the exec up",
    )
    assert call(daemon_socket, "DELETE", f"/v1/sessions/{sandbox_session}")[0] == 200
    running.join(30)
    status, answer = answers[0]
    assert (status, answer["error_code"]) == (410, "session_gone")
    status, answer = call(daemon_socket, "POST", target, body)
    assert (status, answer["error_code"]) == (410, "session_gone")


def test_an_exec_goes_on_when_its_client_is_gone(daemon_socket: str, sandbox_session: str) -> None:
    connection = UnixConnection(daemon_socket)
    connection.request("POST", f"/v1/sessions/{sandbox_session}/exec", body=b'{"command": "sleep 1; touch done"}')
    connection.close()
    eventually(
        lambda: session_exec(daemon_socket, sandbox_session, command="ls")["stdout"] == "done\n", "the exec's end"
    )
