"""One session surface: what a client's code may count on, over a node's daemon and over a gateway, by every wire.

Each test runs with a `CollimateClient` on the real daemon and with a `GatewayClient` on the real local gateway, over a
unix socket and TLS, through the standard library's transport, and over TLS through that of `requests`; on the daemon
over TCP through both, too.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest

from collimate_rl import (
    CollimateClient,
    CollimateError,
    ExecResult,
    GatewayClient,
    PropertyReward,
    Sandbox,
    SessionClient,
    TransferError,
    UnitTestReward,
    grade,
    grade_batch,
    rollout_once,
)
from collimate_rl.local_gateway import LocalGateway, make_key
from collimate_rl.sandboxd.backend import IsolationUnavailable
from tests.fixtures.authority import Authority
from tests.fixtures.fronts import Front
from tests.fixtures.transports import build

WIRES = {
    "daemon": ("std-unix", "std-tcp", "std-tls", "requests-tcp", "requests-tls"),
    "gateway": ("std-unix", "std-tls", "requests-tls"),
}
SEED = "ab" * 32
SPEC = PropertyReward(reference="    return x * 2", generator="random.randint(0, 10**9)", k=4)
RIGHT, WRONG = "def solve(x):\n    return x + x\n", "def solve(x):\n    return x\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGateway]:
    path = os.path.relpath(tmp_path_factory.mktemp("gateway") / "s")
    try:
        with LocalGateway(unix_socket=path, host=None, keys=(make_key("pro"),)) as running:
            yield running
    except IsolationUnavailable as error:
        pytest.skip(f"no isolated sandboxes on this machine: {error}")


@pytest.fixture(params=[f"{what}-{wire}" for what, wires in WIRES.items() for wire in wires])
def client(
    request: pytest.FixtureRequest, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SessionClient]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    what, _, wire = str(request.param).partition("-")
    if what == "daemon":
        path, key = request.getfixturevalue("daemon_socket"), None
    else:
        running: LocalGateway = request.getfixturevalue("gateway")
        path, key = running.base_url.removeprefix("unix:"), running.keys[0].text
    with ExitStack() as stack:
        url, options = f"unix:{path}", {}
        if wire != "std-unix":
            context = authority.server_context() if wire.endswith("tls") else None
            url = stack.enter_context(closing(Front(path, context))).url
            options = {} if context is None else {"ca_file": authority.ca_file}
        transport = stack.enter_context(closing(build(wire, url, **options)))
        yield (
            CollimateClient(transport=transport) if key is None else GatewayClient(key, "http://x", transport=transport)
        )


def refused(call: Callable[[], object]) -> tuple[int | None, str | None]:
    with pytest.raises(CollimateError) as caught:
        call()
    assert caught.value.is_infra
    return caught.value.status, caught.value.error_code


def test_it_is_a_session_client(client: SessionClient) -> None:
    assert isinstance(client, SessionClient)
    assert client.health()["status"] == "ok"


def test_a_session_from_create_to_delete(client: SessionClient) -> None:
    made = client.create_session("py")
    session_id = made["session_id"]
    assert made["template_id"] == "py"
    assert made["fork_time_ms"] >= 0
    assert made["create_time_ms"] >= 0
    client.session_exec(session_id, command="true")
    for info in (
        client.get_session(session_id),
        next(info for info in client.list_sessions() if info["session_id"] == session_id),
    ):
        assert info["template_id"] == "py"
        assert info["exec_count"] == 1
        assert info["age_secs"] >= info["idle_secs"] >= 0
    assert client.delete_session(session_id)["deleted"] is True
    again = client.delete_session(session_id)
    assert (again["deleted"], again["session_id"]) == (False, session_id)
    assert session_id not in {info["session_id"] for info in client.list_sessions()}


def test_an_execs_answer(client: SessionClient) -> None:
    answer = client.exec_once("py", command="echo out; echo err >&2; exit 3", seed=SEED)
    assert sorted(answer["stdout"].split()) == ["err", "out"]
    assert (answer["stderr"], answer["exit_code"], answer["seed"]) == ("", 3, SEED)
    assert answer["seed_ack"] in ("verified", "off", "no-ack")
    assert answer["id"]
    assert min(answer["fork_time_ms"], answer["exec_time_ms"], answer["total_time_ms"]) >= 0
    drawn = [client.exec_once("py", code="import random; print(random.random())") for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{64}", one["seed"]) for one in drawn)
    replayed = client.exec_once("py", code="import random; print(random.random())", seed=drawn[0]["seed"])
    assert replayed["stdout"] == drawn[0]["stdout"] != drawn[1]["stdout"]


def test_what_an_exec_runs(client: SessionClient) -> None:
    with Sandbox("py", client=client) as sandbox:
        both = sandbox.exec("echo command", commands=[["echo", "commands"]], code="print('code')")
        assert both.stdout == "command\n"
        assert sandbox.exec(commands=[["echo", "a b"], ["false"], ["echo", "never"]], code="1").stdout == "a b\n"
        assert sandbox.exec(commands=[["sh", "-c", "exit 7"], ["true"]]).exit_code == 7
        files = [{"path": "in.txt", "content": "no newline"}, {"path": "/tmp/ü 'q'", "content": "two\nlines\n"}]
        told = sandbox.exec(code="print(repr(open('in.txt').read()), __name__)", files=files)
        assert told.stdout == "'no newline\\n' __main__\n"
        assert sandbox.exec("""cat "/tmp/ü 'q'" """).stdout == "two\nlines\n"
        assert sandbox.exec(code="print('\\u00fc \\U0001f600', end='')").stdout == "ü \U0001f600"
        late = sandbox.exec("echo begun; sleep 60", timeout_seconds=1)
        assert (late.exit_code, late.ok) == (-1, False)
        assert "begun" in late.stdout
        assert sandbox.exec("cat in.txt").stdout == "no newline\n"


def test_refusals_have_the_daemons_codes(client: SessionClient) -> None:
    made = client.create_session("py")["session_id"]
    assert refused(lambda: client.create_session("none")) == (404, "no_template")
    assert refused(lambda: client.exec_once("none", command="true")) == (404, "no_template")
    for odd in ("none", "..", "a/b?c", "\u00fc", "\ud800", "x" * 5000):
        assert refused(partial(client.get_session, odd)) == (404, "no_such_session")
        assert refused(partial(client.session_exec, odd, command="true")) == (404, "no_such_session")
        assert client.delete_session(odd)["deleted"] is False
    assert refused(lambda: client.session_exec(made, command="true", seed="zz")) == (400, "invalid_seed")
    assert refused(lambda: client.session_exec(made)) == (400, "bad_request")
    assert refused(lambda: client.session_exec(made, command="true", timeout_seconds=0)) == (400, "bad_request")
    assert refused(lambda: client.session_exec(made, command="true", timeout_seconds=3601)) == (400, "bad_request")
    assert refused(lambda: client.session_exec(made, code="#" * 200_000)) == (413, "command_too_large")
    with pytest.raises(CollimateError, match="template is vsock-only") as caught:
        client.create_session("py", egress={"mode": "none"})
    assert caught.value.status == 400
    assert client.session_exec(made, command="echo still")["stdout"] == "still\n"
    client.delete_session(made)
    with pytest.raises(ValueError, match="at least one character"):
        client.get_session("")


def test_one_shot_execs_leave_nothing(client: SessionClient) -> None:
    before = {info["session_id"] for info in client.list_sessions()}
    assert rollout_once("py", "echo $((6 * 7))", client=client).stdout == "42\n"
    assert refused(lambda: client.exec_once("py", code="#" * 200_000)) == (413, "command_too_large")
    assert {info["session_id"] for info in client.list_sessions()} == before


def test_a_sandbox_as_an_object(client: SessionClient) -> None:
    with Sandbox("py", client=client, default_seed=SEED) as sandbox:
        first = sandbox.session_id
        assert first is not None
        result = sandbox.exec("echo kept > here")
        assert (result.seed, result.ok) == (SEED, True)
        assert isinstance(result, ExecResult)
        for other in (Sandbox.attach(client, first), Sandbox.adopt(client, first)):
            assert other.exec("cat here").stdout == "kept\n"
        sandbox.reset()
        assert sandbox.session_id != first
        assert sandbox.exec("test -e here").exit_code == 1
        assert refused(lambda: Sandbox.attach(client, first)) == (404, "no_such_session")


def test_files_byte_for_byte(client: SessionClient) -> None:
    names = ["plain", "a 'b' \"c\"", "-n", "two\nlines", "$(touch x)", "\u00fc"]
    with Sandbox("py", client=client) as sandbox:
        for name in names:
            for data in (b"", b"\0\r\n\xff" * 100):
                sandbox.upload_bytes(name, data)
                assert sandbox.download(name) == data
        assert sandbox.exec("printf '%s\\0' * | tr -dc '\\0' | wc -c").stdout.strip() == str(len(names))
        data = os.urandom(300_000)
        sandbox.upload_bytes("/tmp/random", data)
        assert sandbox.download("/tmp/random") == data
        for path in ("nothing/here", "/tmp"):
            with pytest.raises(TransferError):
                sandbox.upload_bytes(path, b"x")
            with pytest.raises(TransferError):
                sandbox.download(path)


def test_grades_are_the_same(client: SessionClient) -> None:
    result = grade(client, "py", RIGHT, SPEC, seed=SEED)
    assert (result.reward, result.seed, result.outcome) == (1.0, SEED, "passed")
    results = grade_batch(client, "py", [RIGHT, WRONG, "1/0", RIGHT + "#" * 200_000], SPEC, seeds=[SEED] * 4)
    assert [one.reward for one in results] == [1.0, 0.0, 0.0, 1.0]
    with Sandbox("py", client=client) as sandbox:
        tests = UnitTestReward([{"input": 2, "expected": 4}, {"input": 3, "expected": 5}])
        assert grade(client, "py", RIGHT, tests, session_id=sandbox.session_id).reward == 0.5
        assert sandbox.exec("true").ok


def test_threads_share_a_client(client: SessionClient) -> None:
    said: list[str] = []

    def run(number: int) -> None:
        said.append(rollout_once("py", f"echo {number}", client=client).stdout.strip())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == [str(number) for number in range(8)]


def test_a_delete_ends_what_runs(client: SessionClient) -> None:
    made = client.create_session("py")["session_id"]
    seen: list[tuple[int | None, str | None]] = []
    thread = threading.Thread(
        target=lambda: seen.append(refused(lambda: client.session_exec(made, command="sleep 60", timeout_seconds=90)))
    )
    thread.start()
    while client.get_session(made)["exec_count"] == 0 and thread.is_alive():
        time.sleep(0.01)
    assert client.delete_session(made)["deleted"] is True
    thread.join(60)
    assert seen == [(410, "session_gone")]
