"""An exec of a session whose time is over: nothing of it is left, however it hid, and the session goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.hostile_attacks import TOP
from tests.fixtures.hostile_daemon import daemon_of_its_own
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.sandboxd_wire import call, session_exec

HIDING: dict[str, str] = {
    "behind a first thread that has ended": """
import threading
for _ in range(3):
    if os.fork() == 0: break
threading.Thread(target=time.sleep, args=(300,)).start()
libc.pthread_exit(None)
""",
    "by hopping from pid to pid": """
libc.prctl(36, 1, 0, 0, 0)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(4):
    if os.fork() == 0:
        while True:
            if os.fork(): os._exit(0)
time.sleep(300)
""",
    "in sessions of their own": """
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        time.sleep(300)
time.sleep(300)
""",
    "stopped": """
for _ in range(20):
    if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(300)
""",
    "as a program that can't be read": """
subprocess.Popen(["/data/secret", "300"], start_new_session=True)
os.execv("/data/secret", ["secret", "300"])
""",
    "as a program of its own that can't be read": """
import shutil
shutil.copy("/usr/bin/sleep", "/box/secret")
os.chmod("/box/secret", 0o111)
subprocess.Popen(["/box/secret", "300"], start_new_session=True)
os.execv("/box/secret", ["secret", "300"])
""",
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One with a template that shows a program which may be run and not read."""
    folder = tmp_path_factory.mktemp("data")
    program = folder / "secret"
    shutil.copy("/usr/bin/sleep", program)
    program.chmod(0o711)
    for above in (folder, *folder.parents[:3]):
        if above != Path("/tmp"):
            above.chmod(0o755)
    config = folder / "collimate.toml"
    config.write_text(f'[templates.shown]\ndata = {{ "/data" = "{folder}" }}\n')
    with daemon_of_its_own("--config", str(config)) as started:
        yield started


@pytest.mark.parametrize("how", HIDING)
def test_nothing_of_an_exec_outlives_its_time_limit(daemon: RunningDaemon, how: str) -> None:
    if "/data/" in HIDING[how] and os.geteuid() != 0:
        pytest.skip("needs root: only another user's program can be run and not read")
    path = daemon.socket_path
    status, created = call(path, "POST", "/v1/sessions", {"template_id": "shown"})
    assert status == 201, created
    session = created["session_id"]
    try:
        kept = session_exec(path, session, command="sleep 300 & echo $!")["stdout"].strip()
        answer = session_exec(path, session, code=TOP + HIDING[how], timeout_seconds=1)
        assert (answer["exit_code"], "Traceback" in answer["stdout"]) == (-1, False), answer
        look = """
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
print(pids[1:] == [%s, os.getpid()] or (pids, [open(f"/proc/{pid}/stat").read()[:40] for pid in pids]))
born = open("/proc/loadavg").read().split()[-1]
time.sleep(0.2)
print(open("/proc/loadavg").read().split()[-1] == born)
"""
        assert session_exec(path, session, code=TOP + look % kept)["stdout"] == "True\nTrue\n"
    finally:
        call(path, "DELETE", f"/v1/sessions/{session}")
