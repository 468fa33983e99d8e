"""File IO of a sandbox on the real daemon: every byte, and every way in which it cannot be; with busybox' tools too."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from collimate_rl._transfer import MAX_DOWNLOAD_BYTES
from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateTaskError, TransferError
from collimate_rl.grading.execute import MAX_COMPOSED
from collimate_rl.rewards import UnitTestReward, grade, grade_batch
from collimate_rl.sandbox import Sandbox

BUSYBOX = "/tmp/applets"
MIB = 1 << 20


class WrappingClient:
    """A client whose execs of a shell command run inside `wrap`, which has a {} for the command."""

    def __init__(self, client: CollimateClient, wrap: str) -> None:
        self._client = client
        self.wrap = wrap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def session_exec(self, session_id: str, *, command: str | None = None, **rest: Any) -> dict[str, Any]:
        if command is not None:
            command = self.wrap.replace("{}", shlex.quote(command))
        return self._client.session_exec(session_id, command=command, **rest)


@pytest.fixture
def client(daemon_socket: str) -> Iterator[CollimateClient]:
    with CollimateClient.for_node_socket(daemon_socket) as made:
        yield made


@pytest.fixture(params=["sh", "busybox"])
def sandbox(request: pytest.FixtureRequest, client: CollimateClient) -> Iterator[Sandbox]:
    with Sandbox("py", client=client) as made:
        if request.param == "busybox":
            if shutil.which("busybox") is None:
                pytest.skip("no busybox on this machine")
            assert made.exec(f"mkdir {BUSYBOX} && busybox --install -s {BUSYBOX}").ok
            made._client = WrappingClient(client, f"PATH={BUSYBOX} exec busybox sh -c {{}}")
            # A static busybox names its applets without a path.
            assert made.exec("command -v base64").stdout in ("base64\n", f"{BUSYBOX}/base64\n")
        yield made


def leftovers(sandbox: Sandbox) -> str:
    return "".join(line for line in sandbox.exec("ls -a . /tmp").stdout.splitlines(True) if ".part" in line)


@pytest.mark.parametrize(
    "path", ["plain", "/tmp/a b", "/tmp/quo'te\" $HOME `x` \\", "/tmp/new\nline\n", "-rf", "/tmp/ünï", "/tmp/*?[a]"]
)
def test_names_and_sizes(sandbox: Sandbox, path: str) -> None:
    for data in (b"", b"\n", bytes(range(256)), os.urandom(300_001)):
        sandbox.upload_bytes(path, data)
        assert sandbox.download(path) == data
    assert leftovers(sandbox) == ""


def test_ten_mebibytes_of_random_bytes(sandbox: Sandbox) -> None:
    data = os.urandom(10 * MIB)
    sandbox.upload_bytes("/tmp/large", data)
    assert sandbox.exec("sha256sum </tmp/large").stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert sandbox.download("/tmp/large") == data


def test_a_download_has_eleven_mebibytes_at_most(sandbox: Sandbox) -> None:
    assert sandbox.exec(f"head -c {MAX_DOWNLOAD_BYTES} /dev/urandom >/tmp/most").ok
    data = sandbox.download("/tmp/most")
    assert len(data) == 11 * MIB
    assert sandbox.exec("sha256sum </tmp/most").stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert sandbox.exec("echo >>/tmp/most").ok
    with pytest.raises(TransferError, match="larger than 11534336"):
        sandbox.download("/tmp/most")


def test_what_cannot_be_downloaded(sandbox: Sandbox) -> None:
    assert sandbox.exec("mkdir d; mkfifo p; echo secret >u; chmod 0 u; ln -s none dangling").ok
    for path, words in (
        ("none", "no such file"),
        ("none/f", "no such file"),
        ("dangling", "no such file"),
        ("d", "no regular file"),
        ("p", "no regular file"),
        ("/dev/zero", "no regular file"),
        ("u", "may not be read"),
    ):
        with pytest.raises(TransferError, match=words) as caught:
            sandbox.download(path)
        assert repr(path) in str(caught.value)
        assert isinstance(caught.value, CollimateTaskError)
        assert not caught.value.is_infra


def test_what_cannot_be_uploaded(sandbox: Sandbox) -> None:
    assert sandbox.exec("mkdir d; mkdir ro; echo kept >ro/f; chmod 555 ro; echo kept >file").ok
    for path, words in (
        ("d", "is a directory"),
        ("/tmp", "is a directory"),
        ("none/f", None),
        ("file/f", None),
        ("ro/f", None),
        ("ro/g", None),
        ("/proc/f", None),
        ("/usr/f", None),
    ):
        with pytest.raises(TransferError, match=words):
            sandbox.upload_bytes(path, os.urandom(100_000))
    assert sandbox.exec("cat ro/f file; ls d ro").stdout == "kept\nkept\nd:\n\nro:\nf\n"
    assert leftovers(sandbox) == ""


def test_a_full_disk_takes_nothing_and_keeps_what_was_there(sandbox: Sandbox) -> None:
    sandbox.upload_bytes("/tmp/kept", b"as it was")
    sandbox.exec("cat /dev/zero >/tmp/fill")
    sandbox.exec("truncate -s -200000 /tmp/fill")
    with pytest.raises(TransferError):
        sandbox.upload_bytes("/tmp/kept", bytes(2 * MIB))
    assert sandbox.download("/tmp/kept") == b"as it was"
    assert leftovers(sandbox) == ""
    assert sandbox.exec("rm /tmp/fill").ok
    sandbox.upload_bytes("/tmp/kept", bytes(2 * MIB))
    assert len(sandbox.download("/tmp/kept")) == 2 * MIB


@pytest.mark.parametrize(
    "wrap",
    [
        "echo before; sh -c {}; s=$?; echo after; exit $s",
        "printf 'no end of line'; sh -c {}; s=$?; printf 'none here'; exit $s",
        "printf '\\377\\000--'; sh -c {}; s=$?; printf '\\303'; exit $s",
    ],
)
def test_noise_around_the_frame(client: CollimateClient, wrap: str) -> None:
    data = os.urandom(200_000)
    with Sandbox("py", client=client) as sandbox:
        sandbox._client = WrappingClient(client, wrap)  # type: ignore[assignment]
        sandbox.upload_bytes("f", data)
        assert sandbox.download("f") == data


@pytest.mark.parametrize("noise", ["echo noise", "printf A", "printf 'AAAA\\n'", "printf '\\377'"], ids=repr)
def test_noise_inside_the_frame_raises(client: CollimateClient, noise: str) -> None:
    # The tool that prints the payload says something of its own first.
    loud = f'base64() {{ {noise}; command base64 "$@"; }}\n'
    with Sandbox("py", client=client) as sandbox:
        sandbox.upload_bytes("f", os.urandom(200_000))
        sandbox._client = WrappingClient(client, "eval " + shlex.quote(loud) + "; eval {}")  # type: ignore[assignment]
        with pytest.raises(TransferError, match=r"frame|sha256"):
            sandbox.download("f")


def test_a_background_process_that_prints_all_the_time(client: CollimateClient) -> None:
    data = os.urandom(500_000)
    wrap = "(while :; do echo noise; done) & n=$!; sh -c {}; s=$?; kill $n; wait; exit $s"
    with Sandbox("py", client=client) as sandbox:
        sandbox.upload_bytes("f", data)
        sandbox._client = WrappingClient(client, wrap)  # type: ignore[assignment]
        for _ in range(3):
            try:
                got = sandbox.download("f")
            except TransferError:
                continue
            assert got == data


def test_a_guest_without_the_tools(client: CollimateClient) -> None:
    with Sandbox("py", client=client) as sandbox:
        sandbox.upload_bytes("f", b"x")
        sandbox._client = WrappingClient(client, "PATH=/nowhere eval {}")  # type: ignore[assignment]
        for attempt in (lambda: sandbox.download("f"), lambda: sandbox.upload_bytes("g", b"x")):
            with pytest.raises(TransferError, match="lacks a tool"):
                attempt()


class Recording(WrappingClient):
    """Writes down the calls that it passes on."""

    def __init__(self, client: CollimateClient) -> None:
        super().__init__(client, "sh -c {}")
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return super().__getattr__(name)

    def session_exec(self, session_id: str, **rest: Any) -> dict[str, Any]:  # type: ignore[override]
        self.calls.append("upload" if rest.get("command") else "session_exec")
        return super().session_exec(session_id, **rest)


@pytest.mark.parametrize("filler", ["x", "é", "\U0001f600"])
def test_a_candidate_too_large_for_one_exec_is_graded_all_the_same(client: CollimateClient, filler: str) -> None:
    recorded = Recording(client)
    text = filler * (MAX_COMPOSED * 3 // len(filler.encode()))
    solution = f"PADDING = '''{text}'''\ndef solve(x):\n    return x + len(PADDING) - {len(text)}\n"
    spec = UnitTestReward(tests=[{"input": [1], "expected": 1}, {"input": [2], "expected": 3}])
    before = {session["session_id"] for session in client.list_sessions()}
    result = grade(recorded, "py", solution, spec)  # type: ignore[arg-type]
    assert result.reward == 0.5
    assert {"create_session", "upload", "session_exec", "delete_session"} <= set(recorded.calls)
    assert {session["session_id"] for session in client.list_sessions()} <= before
    small = Recording(client)
    rewards = grade_batch(small, "py", ["def solve(x):\n    return 1\n", solution], spec)  # type: ignore[arg-type]
    assert [one.reward for one in rewards] == [0.5, 0.5]
    assert {"exec_once", "create_session"} <= set(small.calls)
