"""Sandbox and the client against the real daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError, TransferError
from collimate_rl.sandbox import Sandbox, rollout_once

SEED = "ab" * 32


@pytest.fixture
def client(daemon_socket: str) -> Iterator[CollimateClient]:
    with CollimateClient.for_node_socket(daemon_socket) as made:
        yield made


@pytest.fixture
def sandbox(client: CollimateClient) -> Iterator[Sandbox]:
    with Sandbox("py", client=client) as made:
        yield made


def live(client: CollimateClient) -> set[str]:
    return {session["session_id"] for session in client.list_sessions()}


def test_what_the_daemon_knows(client: CollimateClient) -> None:
    assert client.health()["status"] == "ok"
    assert {"py", "python", "dkr-python311"} <= set(client.templates())


def test_an_exec_of_each_kind(sandbox: Sandbox) -> None:
    shell = sandbox.exec("echo out; echo err >&2; exit 3")
    assert (shell.stdout, shell.stderr, shell.exit_code, shell.ok) == ("out\nerr\n", "", 3, False)
    argv = sandbox.exec(commands=[["echo", "a b"], ["sh", "-c", "exit 4"], ["echo", "never"]])
    assert (argv.stdout, argv.exit_code) == ("a b\n", 4)
    code = sandbox.exec(code="print(open('note').read(), end='')", files=[{"path": "note", "content": "hi\n"}])
    assert (code.stdout, code.ok) == ("hi\n", True)
    assert code.seed is not None
    assert len(code.seed) == 64


def test_a_seed_fixes_the_draw(client: CollimateClient) -> None:
    draws = {
        rollout_once("py", code="import random; print(random.random())", seed=SEED, client=client).stdout
        for _ in range(3)
    }
    assert len(draws) == 1
    with Sandbox("py", client=client, default_seed=SEED) as seeded:
        result = seeded.exec(code="import random; print(random.random())")
        assert (result.stdout, result.seed) == (draws.pop(), SEED)


def test_the_time_limit_is_an_exit_code(client: CollimateClient, sandbox: Sandbox) -> None:
    assert sandbox.exec("sleep 60", timeout_seconds=1).exit_code == -1
    assert rollout_once("py", code="while True: pass", timeout_seconds=1, client=client).exit_code == -1
    assert sandbox.exec("echo still here").ok


def test_files_stay_between_execs_and_go_with_a_reset(sandbox: Sandbox) -> None:
    first = sandbox.session_id
    sandbox.upload_bytes("/tmp/kept", b"x")
    assert sandbox.exec("cat /tmp/kept").stdout == "x"
    sandbox.reset()
    assert sandbox.session_id != first
    assert not sandbox.exec("cat /tmp/kept").ok


@pytest.mark.parametrize("path", ["plain", "/tmp/quo'te\" $HOME `x`", "/tmp/new\nline", "-rf"])
def test_bytes_there_and_back(sandbox: Sandbox, path: str) -> None:
    for data in (b"", bytes(range(256)), os.urandom(300_000)):
        sandbox.upload_bytes(path, data)
        assert sandbox.download(path) == data
    assert ".part" not in sandbox.exec("ls -a . /tmp").stdout


def test_a_transfer_that_cannot_be_leaves_nothing(sandbox: Sandbox) -> None:
    for path in ("/tmp", "none/f", "/proc/f"):
        with pytest.raises(TransferError):
            sandbox.upload_bytes(path, os.urandom(100_000))
    # The disk of a sandbox has an end: the temporary file goes when it is reached.
    sandbox.exec("dd if=/dev/zero of=/tmp/most bs=1M count=63")
    with pytest.raises(TransferError):
        sandbox.upload_bytes("/tmp/rest", bytes(2 * 1024 * 1024))
    assert ".part" not in sandbox.exec("ls -a . /tmp").stdout
    with pytest.raises(TransferError, match="no such"):
        sandbox.download("/tmp/none")


def test_a_closed_sandbox_leaves_no_session(client: CollimateClient) -> None:
    before = live(client)
    sandbox = Sandbox("py", client=client).start()
    assert sandbox.session_id in live(client)
    sandbox.close()
    sandbox.close()
    assert live(client) == before
    with pytest.raises(CollimateError, match="no session"):
        sandbox.exec("true")


def test_keep_on_error(client: CollimateClient) -> None:
    def fail_inside(sandbox: Sandbox) -> None:
        with sandbox:
            raise RuntimeError("the caller's own")

    for keep in (False, True):
        sandbox = Sandbox("py", client=client, keep_on_error=keep).start()
        session_id = sandbox.session_id
        with pytest.raises(RuntimeError, match="the caller's own"):
            fail_inside(sandbox)
        assert (session_id in live(client)) is keep
    sandbox.close()


def test_attach_and_adopt(client: CollimateClient, sandbox: Sandbox) -> None:
    assert sandbox.session_id is not None
    sandbox.upload_bytes("/tmp/f", b"here")
    attached = Sandbox.attach(client, sandbox.session_id)
    assert (attached.template, attached.session_id, attached.warm_hit) == ("py", sandbox.session_id, False)
    assert attached.download("/tmp/f") == b"here"
    adopted = Sandbox.adopt(client, sandbox.session_id)
    assert adopted.exec("cat /tmp/f").stdout == "here"
    with pytest.raises(ValueError, match="template"):
        adopted.reset()
    adopted.close()
    with pytest.raises(CollimateError) as gone:
        Sandbox.attach(client, sandbox.session_id)
    assert gone.value.error_code == "no_such_session"
    late = Sandbox.adopt(client, sandbox.session_id)
    with pytest.raises(CollimateError) as gone:
        late.exec("true")
    assert gone.value.error_code in ("no_such_session", "session_gone")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda client: client.create_session("none"), "no_template"),
        (lambda client: client.exec_once("none", code="1"), "no_template"),
        (lambda client: client.exec_once("py", code="1", seed="xyz"), "invalid_seed"),
        (lambda client: client.exec_once("py"), "bad_request"),
        (lambda client: client.exec_once("py", code="1", timeout_seconds=0), "bad_request"),
        (lambda client: client.exec_once("py", code="#" * 200_000), "command_too_large"),
        (lambda client: client.exec_once("py", code="#" * 20_000_000), "command_too_large"),
        (lambda client: client.exec_once("", code="1"), "template_id_required"),
        (lambda client: client.get_session("none/../x"), "no_such_session"),
    ],
)
def test_what_the_daemon_refuses_carries_its_code(client: CollimateClient, call: object, code: str) -> None:
    with pytest.raises(CollimateError) as refused:
        call(client)  # type: ignore[operator]
    assert refused.value.error_code == code


def test_output_of_all_kinds_arrives(client: CollimateClient) -> None:
    result = client.exec_once(
        "py", code="import os; os.write(1, bytes(range(256)) + 'é\\udcff'.encode('utf-8', 'surrogatepass'))"
    )
    assert result["exit_code"] == 0
    large = client.exec_once("py", code="print('\\0' * (20 << 20))")
    assert len(large["stdout"].encode()) <= 16 << 20
    assert len(large["stdout"]) > 15 << 20


def test_many_threads_share_one_client(client: CollimateClient) -> None:
    def rollout(number: int) -> str:
        return rollout_once("py", code=f"print({number})", client=client).stdout

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(rollout, range(80))) == [f"{number}\n" for number in range(80)]
