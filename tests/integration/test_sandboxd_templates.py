"""Templates from a file: other interpreters, data folders, environment, and each one's trouble its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collimate_rl import guest
from collimate_rl.client import CollimateClient
from collimate_rl.rewards import UnitTestReward, grade
from tests.fixtures.sandbox_daemon import NoIsolation, RunningDaemon, one_core, start_daemon
from tests.fixtures.sandboxd_wire import call, children, eventually, footprint, run, session_exec

CONFIG = """
[templates.env]
memory_mb = 128
pids = 20
tmpfs_mb = 8
preload = ["colorsys"]
data = {{ "/data" = "{data}", "/more/files" = "{data}/below" }}
env = {{ PYTHONPATH = "/data", MODE = "fast" }}

[templates.sh]
interpreter = "/bin/sh"
env = {{ MODE = "slow" }}

[templates.flags]
interpreter = ["/bin/sh", "-e", "-u", "-c"]

[templates.no_module]
preload = ["no_such_module"]

[templates.no_entry]
entry = "json:no_such_function"
expose_ports = [8000]

[templates.threads]
preload = ["starts_threads"]
data = {{ "/data" = "{data}" }}
env = {{ PYTHONPATH = "/data" }}

[templates.no_python]
interpreter = "/usr/bin/no-such-python"

[templates.no_program]
interpreter = "/usr/local/no-such-place/node"

[templates.no_data]
data = {{ "/data" = "{data}/absent" }}

[templates.late]
data = {{ "/data" = "{data}/late" }}
"""


def pyenv(minor: int) -> str | None:
    """A Python 3.`minor` of this machine's pyenv, or of its system."""
    found = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python3.{minor}"))
    return str(found[0]) if found else shutil.which(f"python3.{minor}")


def started(config: Path, *arguments: str) -> RunningDaemon:
    """On one core: a warm interpreter per template is enough here, and there are many."""
    try:
        with one_core():
            return start_daemon("--config", str(config), "--max-inflight", "4", *arguments)
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("templates")
    data = folder / "data"
    (data / "below").mkdir(parents=True)
    (data / "table.csv").write_text("a,b\n")
    (data / "helper.py").write_text("WORD = 'imported'\n")
    (data / "starts_threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (data / "below" / "deep.txt").write_text("deep\n")
    (data / "out").symlink_to("/etc/shadow")
    (folder / "secret").write_text("not shown\n")
    for path in (data, data / "below"):
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[RunningDaemon]:
    text = CONFIG.format(data=folder / "data")
    if os.path.exists("/usr/bin/node"):
        text += '[templates.node]\ninterpreter = "/usr/bin/node"\n'
    for minor in range(8, 14):
        if (python := pyenv(minor)) is not None:
            text += f'[templates.py3{minor}]\ninterpreter = "{python}"\n'
    config = folder / "collimate.toml"
    config.write_text(text)
    own = started(config)
    yield own
    words = own.log.read_text(errors="replace")
    assert own.stop() == 0, words
    assert "Traceback" not in words, words
    shutil.rmtree(own.folder, ignore_errors=True)


def refusal(path: str, template: str) -> dict[str, Any]:
    answers = []
    for target, body in (("/v1/sessions", {}), ("/v1/exec", {"code": "1"})):
        status, answer = call(path, "POST", target, {"template_id": template, **body})
        assert (status, answer["error_code"]) == (503, "template_failed"), answer
        answers.append(answer)
    assert answers[0] == answers[1]
    return dict(answers[0])


def test_limits_data_and_environment(daemon: RunningDaemon) -> None:
    path = daemon.socket_path
    text = """
import errno, os, sys, helper
print(helper.WORD, os.environ["MODE"], "colorsys" in sys.modules)
print(open("/data/table.csv").read().strip(), open("/more/files/deep.txt").read().strip())
for place in ("/data/new", "/data/table.csv", "/more/files/x"):
    try: open(place, "w")
    except OSError as exc: print(errno.errorcode[exc.errno])
try: print(open("/data/out").read())
except OSError as exc: print(errno.errorcode[exc.errno])
print(os.path.exists("/data/../secret"), os.statvfs("/box").f_blocks * os.statvfs("/box").f_frsize >> 20)
"""
    answer = run(path, template_id="env", code=text)
    assert answer["stdout"].splitlines() == [
        "imported fast True", "a,b deep", "EROFS", "EROFS", "EROFS", "ENOENT", "False 8",
    ]  # fmt: skip
    assert run(path, template_id="env", code="x = bytearray(200 << 20)")["exit_code"] in (1, 137)
    bomb = (
        "import os, time\nn = 0\ntry:\n    while os.fork(): n += 1\n    time.sleep(30)\nexcept OSError: print(n < 20)"
    )
    if call(path, "GET", "/v1/health")[1]["cgroups"] != "none":
        assert run(path, template_id="env", code=bomb)["stdout"] == "True\n"
    assert "MODE" not in run(path, template_id="py", command="env")["stdout"]
    assert run(path, template_id="py", command="ls /data")["exit_code"] == 2, "no other template shows it"


@pytest.mark.parametrize("minor", range(8, 14))
def test_other_pythons(daemon: RunningDaemon, minor: int) -> None:
    if pyenv(minor) is None:
        pytest.skip(f"no python3.{minor} on this machine")
    path, template = daemon.socket_path, f"py3{minor}"
    text = "import sys, json, random; print(sys.version_info[:2], random.random())"
    first = run(path, template_id=template, code=text, seed="ab" * 32)["stdout"]
    assert first.startswith(f"(3, {minor}) ")
    status, created = call(path, "POST", "/v1/sessions", {"template_id": template})
    assert status == 201
    assert session_exec(path, created["session_id"], code=text, seed="ab" * 32)["stdout"] == first
    assert session_exec(path, created["session_id"], command="python3 -c 'print(1)'")["stdout"] == "1\n"
    assert session_exec(path, created["session_id"], command="sleep 60", timeout_seconds=1)["exit_code"] == -1
    assert session_exec(path, created["session_id"], code="print('served')")["stdout"] == "served\n"
    assert call(path, "DELETE", f"/v1/sessions/{created['session_id']}")[0] == 200
    client = CollimateClient(unix_socket=path)
    spec = UnitTestReward(tests=[{"input": [2, 3], "expected": 5}, {"input": [2, -2], "expected": 1}])
    assert grade(client, template, "def solve(a, b):\n    return a + b\n", spec).reward == 0.5


@pytest.mark.parametrize("minor", range(8, 14))
def test_other_pythons_threads_and_forks(daemon: RunningDaemon, minor: int) -> None:
    if pyenv(minor) is None:
        pytest.skip(f"no python3.{minor} on this machine")
    text = "import random, sys, threading\nprint(threading.main_thread().is_alive(), flush=True)\n1/0"
    answer = run(daemon.socket_path, template_id=f"py3{minor}", code=text)
    assert answer["stdout"].splitlines()[0] == "True"
    assert answer["stdout"].endswith("ZeroDivisionError: division by zero\n")
    forks = """
import multiprocessing, os, random, threading
random.seed(1)
if os.fork() == 0:
    print(threading.main_thread() is threading.current_thread(), flush=True)
    os._exit(0)
os.wait()
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""
    assert run(daemon.socket_path, template_id=f"py3{minor}", code=forks)["stdout"] == "True\nthread\n[1, 2]\n"


LANGUAGES = {
    "sh": ("echo $((6 * 7)) $MODE; pwd; exit 3", "42 slow\n/box\n", "while :; do :; done"),
    "flags": ("echo a; echo $unset; echo b", "a\n", "sleep 60"),
    "node": ("console.log(6 * 7); process.exitCode = 3", "42\n", "for (;;) {}"),
}


@pytest.mark.parametrize("template", LANGUAGES)
def test_what_is_no_python(daemon: RunningDaemon, template: str) -> None:
    if template == "node" and not os.path.exists("/usr/bin/node"):
        pytest.skip("no node on this machine")
    path = daemon.socket_path
    text, said, endless = LANGUAGES[template]
    jail = "id -u; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; ls /proc | grep -c '^[0-9]'; ls /root /work"
    jailed = run(path, template_id="py", command=jail)["stdout"]
    status, created = call(path, "POST", "/v1/sessions", {"template_id": template})
    assert status == 201

    def in_session(**fields: Any) -> dict[str, Any]:
        return session_exec(path, created["session_id"], **fields)

    def once(**fields: Any) -> dict[str, Any]:
        return run(path, template_id=template, **fields)

    for do in (once, in_session):
        answer = do(code=text)
        assert answer["stdout"].startswith(said)
        assert answer["exit_code"] == (3 if template != "flags" else answer["exit_code"])
        assert answer["exit_code"] != 0
        assert do(command="cat; echo $0")["stdout"].endswith("/bin/sh\n"), "stdin is empty"
        assert do(commands=[["cat", "note"], ["false"]], files=[{"path": "note", "content": "x"}])["stdout"] == "x\n"
        assert do(code=endless, timeout_seconds=1)["exit_code"] == -1
        answer = do(code=guest.programs()["runner"])
        failed = answer["exit_code"] != 0 or "not found" in answer["stdout"]
        assert failed, "Python's guest programs are no code of this language"
    assert once(command=jail)["stdout"] == jailed
    assert call(path, "DELETE", f"/v1/sessions/{created['session_id']}")[0] == 200


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("no_module", "No module named 'no_such_module'"),
        ("no_entry", "json has no such name"),
        ("threads", "must be single-threaded"),
        ("no_python", "/usr/bin/no-such-python does not run"),
        ("no_program", "no program /usr/local/no-such-place/node: install it"),
        ("no_data", "absent: make it, or correct"),
    ],
)
def test_a_template_that_does_not_come_up_says_why(daemon: RunningDaemon, template: str, said: str) -> None:
    path = daemon.socket_path
    answer = refusal(path, template)
    assert f"template '{template}'" in answer["error"]
    assert said in answer["error"]
    status, health = call(path, "GET", "/v1/health")
    assert (status, health["status"]) == (200, "ok")
    assert said in health["failed_templates"][template]
    assert template not in health["templates"]
    assert {"py", "env", "sh"} <= set(health["templates"])
    assert run(path, template_id="py", code="print(1)")["stdout"] == "1\n"


def test_one_that_can_come_up_later_does(daemon: RunningDaemon, folder: Path) -> None:
    path = daemon.socket_path
    assert "late: make it" in refusal(path, "late")["error"]
    (folder / "data" / "late").mkdir(mode=0o755)
    eventually(lambda: "late" in call(path, "GET", "/v1/health")[1]["templates"], "it is tried again", timeout_s=90)
    assert run(path, template_id="late", command="ls -d /data")["stdout"] == "/data\n"


def test_an_egress_policy_is_refused_everywhere(daemon: RunningDaemon) -> None:
    path = daemon.socket_path
    _, created = call(path, "POST", "/v1/sessions", {"template_id": "env"})
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/sessions", {"template_id": "env"}),
        ("/v1/exec", {"template_id": "env", "code": "1"}),
        (f"/v1/sessions/{created['session_id']}/exec", {"code": "1"}),
    ]
    for policy in ({"mode": "none"}, {"mode": "open"}, {"allow": ["pypi.org"]}, {"preset": "rl-leakage"}, {}, "open"):
        for target, body in asked:
            status, answer = call(path, "POST", target, {**body, "egress": policy})
            assert (status, answer["error_code"]) == (400, "bad_request")
            assert "template is vsock-only" in answer["error"]
    assert len(call(path, "GET", "/v1/sessions")[1]) == 1
    assert call(path, "DELETE", f"/v1/sessions/{created['session_id']}")[0] == 200


def interpreters(daemon: RunningDaemon, python: str) -> list[int]:
    """The zygotes that run on this Python."""
    found = []
    for outer in children(daemon.pid):
        for pid in children(outer):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].decode() == python:
                found.append(pid)
    return sorted(found)


def test_a_zygote_that_dies_is_replaced_and_no_other_template_notices(daemon: RunningDaemon) -> None:
    python = pyenv(8) or pyenv(12)
    if python is None:
        pytest.skip("no python3.8 on this machine")
    path, template = daemon.socket_path, f"py3{python.rpartition('.')[2]}"
    _, other = call(path, "POST", "/v1/sessions", {"template_id": "sh"})
    _, mine = call(path, "POST", "/v1/sessions", {"template_id": template})
    before = footprint(daemon.pid)
    killed = interpreters(daemon, python)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert run(path, template_id="py", code="print('here')")["stdout"] == "here\n"
    assert run(path, template_id=template, code="print('again')")["stdout"] == "again\n"
    status, answer = call(path, "POST", f"/v1/sessions/{mine['session_id']}/exec", {"command": "true"})
    assert (status, answer["error_code"]) == (410, "session_gone")
    assert session_exec(path, other["session_id"], code="echo kept")["stdout"] == "kept\n"
    eventually(lambda: len(interpreters(daemon, python)) == len(killed), "as many as before")
    assert not set(interpreters(daemon, python)) & set(killed)
    call(path, "DELETE", f"/v1/sessions/{other['session_id']}")
    eventually(lambda: footprint(daemon.pid)["fds"] <= before["fds"], "no descriptor left of the dead")
    assert call(path, "GET", "/v1/health")[1]["status"] == "ok"


def test_one_that_dies_and_can_not_be_replaced(tmp_path: Path) -> None:
    """Its folder is gone by then: creates say so at once and don't wait for it; the others go on."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    config = tmp_path / "c.toml"
    python = pyenv(12) or pyenv(13) or pyenv(10) or pyenv(8)
    if python is None or python == sys.executable:
        pytest.skip("no python3.12 on this machine")
    config.write_text(f'[templates.mine]\ninterpreter = "{python}"\ndata = {{ "/data" = "{data}" }}\n')
    own = started(config)
    try:
        path = own.socket_path
        assert run(path, template_id="mine", code="print(1)")["stdout"] == "1\n"
        data.rmdir()
        for pid in interpreters(own, python):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: "mine" in call(path, "GET", "/v1/health")[1]["failed_templates"], "it is down")
        assert "there is no directory" in refusal(path, "mine")["error"]
        assert run(path, template_id="py", code="print(1)")["stdout"] == "1\n"
        data.mkdir(mode=0o755)
        eventually(lambda: "mine" in call(path, "GET", "/v1/health")[1]["templates"], "up again", timeout_s=90)
        assert run(path, template_id="mine", code="print(2)")["stdout"] == "2\n"
    finally:
        assert own.stop() == 0
        shutil.rmtree(own.folder, ignore_errors=True)


def test_one_that_takes_long_or_dies_all_the_time_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its imports hang, or end the interpreter a moment after it came up."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "hangs.py").write_text("import time\ntime.sleep(300)\n")
    (data / "dies.py").write_text("import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.2)\n")
    config = tmp_path / "c.toml"
    shown = f'data = {{ "/data" = "{data}" }}\nenv = {{ PYTHONPATH = "/data" }}\n'
    config.write_text(f'[templates.slow]\npreload = ["hangs"]\n{shown}[templates.mortal]\npreload = ["dies"]\n{shown}')
    own = started(config)
    try:
        path = own.socket_path
        for _ in range(20):
            assert run(path, template_id="py", code="print(1)")["stdout"] == "1\n"
        status, answer = call(path, "POST", "/v1/exec", {"template_id": "slow", "code": "1"})
        assert (status, answer["error_code"]) == (503, "session_bringup_failed")
        assert call(path, "GET", "/v1/health")[1]["status"] == "ok"
        births = own.log.read_text().count("template mortal: a warm interpreter died")
        time.sleep(5)
        assert own.log.read_text().count("template mortal: a warm interpreter died") - births < 20
    finally:
        assert own.stop() == 0
        shutil.rmtree(own.folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (["--config", "absent.toml"], "", "absent.toml cannot be read"),
        ([], "[templates.a]\nmemory_mb = 1", "collimate.toml: [templates.a]: memory_mb must be between"),
        ([], "[templates.a]\ncolour = 1", "unknown keys: colour"),
        (["--isolation", "none"], "[templates.a]\nexpose_ports = [8000]", "template a: expose_ports need"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, arguments: list[str], text: str, said: str) -> None:
    (tmp_path / "collimate.toml").write_text(text)
    command = [sys.executable, "-m", "collimate_rl.local_backend", "--port", "0", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_plain_processes_have_interpreters_and_environment_too(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[templates.sh]\ninterpreter = "/bin/sh"\nenv = { MODE = "slow" }\n')
    own = start_daemon("--config", str(config), "--isolation", "none")
    try:
        assert run(own.socket_path, template_id="sh", code="echo $MODE; exit 3")["stdout"] == "slow\n"
        answer = call(own.socket_path, "POST", "/v1/exec", {"template_id": "sh", "code": "1", "egress": {}})
        assert answer[0] == 400
    finally:
        own.stop()
        shutil.rmtree(own.folder, ignore_errors=True)


def test_a_template_of_the_file_takes_the_place_of_a_default(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[templates.python]\nmemory_mb = 99\n")
    own = started(config, "--template", "more")
    try:
        text = "import sys; print(sys.version_info.major)"
        for template in ("py", "python", "more"):
            assert run(own.socket_path, template_id=template, code=text)["stdout"] == "3\n"
        assert run(own.socket_path, template_id="python", code="x = bytearray(200 << 20)")["exit_code"] != 0
        assert run(own.socket_path, template_id="py", code="x = bytearray(200 << 20)")["exit_code"] == 0
        assert call(own.socket_path, "POST", "/v1/exec", {"template_id": "none", "code": "1"})[0] == 404
    finally:
        own.stop()
        shutil.rmtree(own.folder, ignore_errors=True)
