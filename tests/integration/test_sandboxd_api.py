"""The daemon API on the wire: every endpoint, every error code, what an exec may say and what comes back."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.sandboxd_wire import UnixConnection, at_rest, call, code, descendants, run

SEED = "ab" * 32


def test_health(daemon_socket: str) -> None:
    for target in ("/v1/health", "/health"):
        status, health = call(daemon_socket, "GET", target)
        assert status == 200
        assert health["status"] == "ok"
        assert health["templates"] == ["py", "python", "dkr-python311"]
        assert health["isolation"] == "namespaces"
        assert health["cgroups"] in ("v1", "v2", "none")
        assert {"sessions", "running", "max_inflight", "queued", "version", "capabilities"} <= set(health)
        assert "label" in health["capabilities"]


def test_one_shot_exec(daemon_socket: str) -> None:
    for target in ("/v1/exec", "/exec"):
        status, answer = call(daemon_socket, "POST", target, {"template_id": "py", "code": "print(6 * 7)"})
        assert status == 200
        assert set(answer) >= {
            "id", "stdout", "stderr", "exit_code", "fork_time_ms", "exec_time_ms", "total_time_ms", "seed", "seed_ack",
        }  # fmt: skip
        assert (answer["stdout"], answer["stderr"], answer["exit_code"], answer["seed_ack"]) == ("42\n", "", 0, "off")
        assert len(answer["seed"]) == 64
        assert answer["truncated"] is False


@pytest.mark.parametrize("template", ["py", "python", "dkr-python311"])
def test_every_template_of_the_catalog(daemon_socket: str, template: str) -> None:
    assert run(daemon_socket, template_id=template, code="print(1)")["stdout"] == "1\n"


def test_both_streams_share_one_pipe_in_order(daemon_socket: str) -> None:
    answer = run(daemon_socket, command="echo a; echo b >&2; echo c")
    assert (answer["stdout"], answer["stderr"]) == ("a\nb\nc\n", "")


def test_seed_pins_random_and_is_echoed(daemon_socket: str) -> None:
    answer = code(daemon_socket, "import random\nprint(random.random())", seed=SEED)
    assert answer["seed"] == SEED
    assert float(answer["stdout"]) == random.Random(int(SEED, 16)).random()
    assert code(daemon_socket, "import random\nprint(random.random())", seed=SEED)["stdout"] == answer["stdout"]
    fresh = [code(daemon_socket, "pass")["seed"] for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_hash_seed_is_the_same_in_every_fork(daemon_socket: str) -> None:
    text = """
import subprocess, sys
print(hash("x"), subprocess.check_output([sys.executable, "-c", "print(hash('x'))"]))
"""
    assert len({code(daemon_socket, text)["stdout"] for _ in range(4)}) == 1


@pytest.mark.parametrize(
    ("fields", "exit_code", "stdout"),
    [
        ({"command": "exit 7"}, 7, ""),
        ({"command": "kill -9 $$"}, 137, ""),
        ({"command": "kill -15 $$"}, 143, ""),
        ({"command": "no-such-program 2>/dev/null"}, 127, ""),
        ({"code": "import sys; sys.exit(3)"}, 3, ""),
        ({"code": "import sys; sys.exit('said')"}, 1, "said\n"),
        ({"code": "import sys; sys.exit()"}, 0, ""),
        ({"code": "import os; os.abort()"}, 134, ""),
        ({"code": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"}, 143, ""),
        ({"code": "raise KeyboardInterrupt"}, 130, None),
        ({"code": "import atexit; atexit.register(print, 'bye'); print('hi')"}, 0, "hi\nbye\n"),
        ({"code": "import threading; threading.Thread(target=print, args=('t',)).start()"}, 0, "t\n"),
        ({"code": "if __name__ == '__main__': print('main')"}, 0, "main\n"),
        ({"code": "import os, sys; print(os.getcwd(), sys.argv, sys.stdin.read() == '')"}, 0, "/box ['-c'] True\n"),
        ({"commands": [["sh", "-c", "echo a"], ["echo", "b c"]]}, 0, "a\nb c\n"),
        ({"commands": [["echo", "a"], ["sh", "-c", "exit 5"], ["echo", "never"]]}, 5, "a\n"),
        ({"commands": [["sh", "-c", "kill -9 $$"]]}, 137, ""),
        ({"command": "echo command", "commands": [["echo", "commands"]], "code": "print('code')"}, 0, "command\n"),
        ({"commands": [["echo", "commands"]], "code": "print('code')"}, 0, "commands\n"),
        ({"command": "", "code": "print('code')"}, 0, ""),
        ({"command": "python3 -c 'print(1)'"}, 0, "1\n"),
    ],
)
def test_exit_codes_and_precedence(daemon_socket: str, fields: dict[str, Any], exit_code: int, stdout: str) -> None:
    answer = run(daemon_socket, **fields)
    assert answer["exit_code"] == exit_code
    assert stdout is None or answer["stdout"] == stdout


def test_a_traceback_is_the_candidates_own(daemon_socket: str) -> None:
    answer = code(daemon_socket, "def f():\n    return 1 / 0\nf()")
    assert answer["exit_code"] == 1
    assert answer["stdout"].startswith('Traceback (most recent call last):\n  File "<string>", line 3, in <module>')
    assert answer["stdout"].endswith("ZeroDivisionError: division by zero\n")
    syntax = code(daemon_socket, "def f(:")
    assert syntax["exit_code"] == 1
    assert "SyntaxError" in syntax["stdout"]
    assert "inside" not in syntax["stdout"]


def test_honest_means_work(daemon_socket: str) -> None:
    text = """
import asyncio, multiprocessing, socket, subprocess, sys, tempfile, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

def square(x):
    return x * x

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(square, range(4)))
    with ThreadPoolExecutor(4) as pool:
        print(list(pool.map(square, range(4))))
    print(subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, text=True).stdout.strip())
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    server.accept()[0].sendall(b"hello")
    print(client.recv(5))
    a, b = socket.socketpair()
    a.sendall(b"x")
    print(b.recv(1))
    print(asyncio.run(asyncio.sleep(0, "slept")))
    with tempfile.NamedTemporaryFile() as f:
        print(f.name.startswith("/tmp/"))
    import getpass, os
    print(getpass.getuser(), os.getuid(), os.path.expanduser("~"))
"""
    assert code(daemon_socket, text)["stdout"].splitlines() == [
        "[0, 1, 4, 9]", "[0, 1, 4, 9]", "7", "b'hello'", "b'x'", "slept", "True", "sandbox 1000 /box",
    ]  # fmt: skip


def test_what_a_runner_needs(daemon_socket: str) -> None:
    text = """
import ctypes, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    open("/proc/self/oom_score_adj", "w").write("1000")
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    os.write(w, b"up")
    signal.pause()
assert os.read(r, 2) == b"up"
os.kill(pid, signal.SIGKILL)
_, status, usage = os.wait4(pid, 0)
print(os.WTERMSIG(status), usage.ru_maxrss > 0)
print(libc.prctl(4, 0), len(open("/proc/self/stat").read()) > 10)
"""
    assert code(daemon_socket, text)["stdout"] == "9 True\n0 True\n"


def test_files(daemon_socket: str) -> None:
    files = [
        {"path": "a.txt", "content": "no newline"},
        {"path": "sub/b.py", "content": "VALUE = 'ä'\n"},
        {"path": "/tmp/c", "content": "c\n"},
        {"path": "/box/./d", "content": "d\r\n"},
    ]
    text = "import sub.b\nprint([open(p, newline='').read() for p in ('a.txt', '/tmp/c', '/box/d')], sub.b.VALUE)"
    assert code(daemon_socket, text, files=files)["stdout"] == "['no newline\\n', 'c\\n', 'd\\r\\n'] ä\n"


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/x", "/box/../etc/x", "/proc/1/mem", "", "/", "x/", "a\0b", "/box"]
)
def test_file_paths_that_lead_away(daemon_socket: str, path: str) -> None:
    body = {"template_id": "py", "code": "pass", "files": [{"path": path, "content": ""}]}
    status, answer = call(daemon_socket, "POST", "/v1/exec", body)
    assert (status, answer["error_code"]) == (400, "bad_request")


TOO_LARGE = (413, "command_too_large")


def exec_error(path: str, body: Any) -> tuple[int, str]:
    status, answer = call(path, "POST", "/v1/exec", body)
    assert isinstance(answer["error"], str)
    return status, answer["error_code"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"not json", (400, "bad_request")),
        (b"[]", (400, "bad_request")),
        (b"[" * 100_000, (400, "bad_request")),
        (b"", (400, "bad_request")),
        ({}, (400, "template_id_required")),
        ({"template_id": "", "code": "1"}, (400, "template_id_required")),
        ({"template_id": 3, "code": "1"}, (400, "bad_request")),
        ({"template_id": "nope", "code": "1"}, (404, "no_template")),
        ({"template_id": "py"}, (400, "bad_request")),
        ({"template_id": "py", "code": 3}, (400, "bad_request")),
        ({"template_id": "py", "code": "\ud800"}, (400, "bad_request")),
        ({"template_id": "py", "command": "a\0b"}, (400, "bad_request")),
        ({"template_id": "py", "commands": []}, (400, "bad_request")),
        ({"template_id": "py", "commands": [[]]}, (400, "bad_request")),
        ({"template_id": "py", "commands": ["ls"]}, (400, "bad_request")),
        ({"template_id": "py", "code": "1", "seed": "xyz"}, (400, "invalid_seed")),
        ({"template_id": "py", "code": "1", "seed": "z" * 64}, (400, "invalid_seed")),
        ({"template_id": "py", "code": "1", "seed": 5}, (400, "invalid_seed")),
        ({"template_id": "py", "code": "1", "timeout_seconds": 0}, (400, "bad_request")),
        ({"template_id": "py", "code": "1", "timeout_seconds": 3601}, (400, "bad_request")),
        ({"template_id": "py", "code": "1", "timeout_seconds": 1.5}, (400, "bad_request")),
        ({"template_id": "py", "code": "1", "timeout_seconds": True}, (400, "bad_request")),
        ({"template_id": "py", "code": "1", "files": {}}, (400, "bad_request")),
        ({"template_id": "py", "code": "1", "files": [{"path": "a"}]}, (400, "bad_request")),
        ({"template_id": "py", "code": "1", "egress": {"mode": "open"}}, (400, "bad_request")),
        ({"template_id": "py", "code": "1", "egress": {}}, (400, "bad_request")),
        ({"template_id": "py", "code": "#" * (128 * 1024 + 1)}, TOO_LARGE),
        ({"template_id": "py", "code": "pass", "files": [{"path": "a", "content": "\n" * 130_900}]}, TOO_LARGE),
        ({"template_id": "py", "code": "é" * 65_537}, TOO_LARGE),
        ({"template_id": "py", "code": "1", "files": [{"path": str(n), "content": ""} for n in range(512)]}, TOO_LARGE),
        (b" " * (3 << 20), TOO_LARGE),
    ],
)  # fmt: skip
def test_errors_of_an_exec(daemon_socket: str, body: Any, error: tuple[int, str]) -> None:
    assert exec_error(daemon_socket, body) == error


def test_egress_is_vsock_only(daemon_socket: str) -> None:
    for target in ("/v1/exec", "/v1/sessions"):
        body = {"template_id": "py", "code": "1", "egress": {"mode": "none"}}
        status, answer = call(daemon_socket, "POST", target, body)
        assert (status, answer["error_code"]) == (400, "bad_request")
        assert "vsock-only" in answer["error"]


def test_the_largest_exec_runs(daemon_socket: str) -> None:
    text = "print(len(open('a').read()))\n"
    content = "x" * (128 * 1024 - 256 - len(text) - 1)
    assert code(daemon_socket, text, files=[{"path": "a", "content": content}])["stdout"] == f"{len(content) + 1}\n"
    padded = "print(1)#" + "x" * (128 * 1024 - 9)
    assert code(daemon_socket, padded)["stdout"] == "1\n"
    assert run(daemon_socket, command="true #" + "x" * (128 * 1024 - 6 - 1))["exit_code"] in (0, 126)


@pytest.mark.parametrize(
    ("method", "target", "error"),
    [
        ("GET", "/", (404, "not_found")),
        ("GET", "/v2/health", (404, "not_found")),
        ("GET", "/v1/exec", (405, "method_not_allowed")),
        ("GET", "/v1/sessions/nope", (404, "no_such_session")),
        ("POST", "/v1/sessions/nope/exec", (404, "no_such_session")),
        ("DELETE", "/v1/sessions/nope", (404, "no_such_session")),
    ],
)
def test_errors_of_routes(daemon_socket: str, method: str, target: str, error: tuple[int, str]) -> None:
    status, answer = call(daemon_socket, method, target, {"code": "1"} if method == "POST" else None)
    assert (status, answer["error_code"]) == error
    if method == "DELETE":
        assert answer["deleted"] is False


def test_keep_alive_and_pipelining(sandbox_daemon: RunningDaemon) -> None:
    connection = UnixConnection(sandbox_daemon.socket_path)
    for _ in range(3):
        connection.request("GET", "/v1/sessions")
        assert connection.getresponse().read() == b"[]"
    sock = connection.sock
    assert sock is not None
    sock.sendall(b"GET /v1/sessions HTTP/1.1\r\n\r\n" * 2)
    received = b""
    while received.count(b"HTTP/1.1 200 OK") < 2 or not received.endswith(b"[]"):
        received += sock.recv(4096)
    connection.close()


@pytest.mark.parametrize(
    ("raw", "start"),
    [
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"HTTP/1.1 400 "),
        (b"POST /v1/exec HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"HTTP/1.1 400 "),
        (b"POST /v1/exec HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 411 "),
        (b"POST /v1/exec HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"HTTP/1.1 413 "),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, b"HTTP/1.1 431 "),
        (b"POST /v1/exec HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"HTTP/1.1 100 Continue"),
        (b"GET /v1/sessions HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 "),
    ],
)
def test_requests_off_the_beaten_track(daemon_socket: str, raw: bytes, start: bytes) -> None:
    connection = UnixConnection(daemon_socket)
    connection.connect()
    assert connection.sock is not None
    connection.sock.sendall(raw)
    assert connection.sock.recv(4096).startswith(start)
    connection.close()


def test_execs_are_spread_over_the_zygotes(sandbox_daemon: RunningDaemon) -> None:
    """As seen from the host: forks of a session hang below different zygotes."""
    path = sandbox_daemon.socket_path
    at_rest(sandbox_daemon.pid, path)
    before = descendants(sandbox_daemon.pid)
    ids = [call(path, "POST", "/v1/sessions", {"template_id": "py"})[1]["session_id"] for _ in range(4)]
    parents = set()
    for pid in descendants(sandbox_daemon.pid) - before:
        with open(f"/proc/{pid}/stat") as stream:
            parents.add(stream.read().rpartition(")")[2].split()[1])
    for session_id in ids:
        call(path, "DELETE", f"/v1/sessions/{session_id}")
    health = call(path, "GET", "/v1/health")[1]
    assert len(parents) == health["zygotes"]
