"""Byte-exact file IO through real shells on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from collimate_rl._transfer import CHUNK_BYTES, MAX_DOWNLOAD_BYTES, download, upload
from collimate_rl.errors import AmbiguousError, CollimateTaskError, GuestFileError, TransferError

SHELLS = [argv for argv in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(argv[0])]


class LocalShell:
    """Runs scripts in `folder`; `break_at` changes or breaks one of them. Busybox finds nothing but its own applets."""

    def __init__(self, argv: list[str], folder: Path, applets: Path) -> None:
        self.argv = argv
        self.folder = folder
        self.env = dict(os.environ)
        if argv[0] == "busybox":
            applets.mkdir()
            subprocess.run(["busybox", "--install", "-s", str(applets)], check=True)
            self.env["PATH"] = str(applets)
        self.scripts: list[str] = []
        self.break_at: dict[int, object] = {}

    def __call__(self, script: str) -> tuple[int, str]:
        number = len(self.scripts)
        self.scripts.append(script)
        trouble = self.break_at.get(number)
        if isinstance(trouble, BaseException):
            raise trouble
        if isinstance(trouble, tuple):
            return trouble  # an exec that did not do its work
        if callable(trouble):
            script = trouble(script)
        done = subprocess.run(
            [shutil.which(self.argv[0]) or "", *self.argv[1:], "-c", script],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.returncode, done.stdout.decode("utf-8", "replace")


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> LocalShell:
    folder = tmp_path / "folder"
    folder.mkdir()
    return LocalShell(request.param, folder, tmp_path / "applets")


NAMES = ["plain", "with blank", "-rf", "quo'te\"$HOME`x`", "new\nline", "star*\t", "ü", "\\back", "trailing\n"]
PAYLOADS = [b"", b"x", b"\0\xff\n\r\n", bytes(range(256)) * 2000]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", PAYLOADS, ids=len)
def test_there_and_back(shell: LocalShell, name: str, data: bytes) -> None:
    upload(shell, name, data)
    assert (shell.folder / name).read_bytes() == data
    assert download(shell, name) == data
    assert os.listdir(shell.folder) == [name]


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_chunks(shell: LocalShell, size: int) -> None:
    data = os.urandom(size)
    upload(shell, "f", data)
    assert (shell.folder / "f").read_bytes() == data
    assert len(shell.scripts) == -(-size // CHUNK_BYTES)
    assert max(len(script) for script in shell.scripts) < 100 * 1024


def test_an_upload_replaces_what_was_there(shell: LocalShell) -> None:
    (shell.folder / "f").write_bytes(b"old and longer")
    upload(shell, "f", b"new")
    assert (shell.folder / "f").read_bytes() == b"new"


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "trouble",
    [
        AmbiguousError("lost"),
        KeyboardInterrupt(),
        (-1, "timeout"),
        (127, "base64: not found"),
        lambda script: script.replace("printf %s '", "printf %s 'AAAA", 1),
        lambda script: script.replace("printf %s '", "printf %s '!!!!", 1).replace("AAAA", "", 1),
    ],
    ids=["ambiguous", "interrupt", "timeout", "no-tool", "longer", "garbled"],
)
def test_a_failed_upload_leaves_nothing_and_changes_nothing(shell: LocalShell, number: int, trouble: object) -> None:
    (shell.folder / "f").write_bytes(b"as it was")
    shell.break_at = {number: trouble}
    with pytest.raises((TransferError, AmbiguousError, KeyboardInterrupt)):
        upload(shell, "f", bytes(CHUNK_BYTES * 2 + 10))
    assert (shell.folder / "f").read_bytes() == b"as it was"
    assert os.listdir(shell.folder) == ["f"]


def test_a_chunk_that_never_arrived_is_noticed(shell: LocalShell) -> None:
    for number in (0, 1):
        shell.scripts.clear()
        shell.break_at = {number: lambda script: ":"}
        with pytest.raises(TransferError):
            upload(shell, "f", bytes(CHUNK_BYTES * 2 + 10))
        assert os.listdir(shell.folder) == []


def test_bytes_that_change_on_the_way_are_noticed(shell: LocalShell) -> None:
    shell.break_at = {0: lambda script: script.replace("'eHh4'", "'eHh5'")}
    with pytest.raises(TransferError, match="sha256"):
        upload(shell, "f", b"xxx")
    assert os.listdir(shell.folder) == []


def test_the_first_error_survives_a_clean_up_that_fails(shell: LocalShell) -> None:
    shell.break_at = {0: AmbiguousError("the first"), 1: AmbiguousError("the second")}
    with pytest.raises(AmbiguousError, match="the first"):
        upload(shell, "f", b"x")


def test_targets_that_cannot_be(shell: LocalShell) -> None:
    (shell.folder / "folder").mkdir()
    with pytest.raises(TransferError, match="directory"):
        upload(shell, "folder", b"x")
    with pytest.raises(GuestFileError) as caught:
        upload(shell, "none/f", b"x")
    assert isinstance(caught.value, CollimateTaskError)
    assert not caught.value.is_infra
    assert caught.value.exit_code in (1, 2)
    for path in ("", "folder/", "nul\0", "\udcff"):
        with pytest.raises(ValueError):
            upload(shell, path, b"x")
    assert os.listdir(shell.folder) == ["folder"]
    assert os.listdir(shell.folder / "folder") == []


def test_downloads_that_cannot_be(shell: LocalShell) -> None:
    (shell.folder / "folder").mkdir()
    with open(shell.folder / "large", "wb") as large:
        large.truncate(MAX_DOWNLOAD_BYTES + 1)
    for path, words in (("none", "no such"), ("folder", "no regular file"), ("large", "larger")):
        with pytest.raises(GuestFileError, match=words):
            download(shell, path)


@pytest.mark.parametrize(("exit_code", "is_infra"), [(-1, True), (127, True), (92, True), (137, True), (95, False)])
def test_what_is_not_the_guests_state_is_infra(exit_code: int, is_infra: bool) -> None:
    for transfer in (lambda shell: download(shell, "f"), lambda shell: upload(shell, "f", b"x")):
        with pytest.raises(TransferError) as caught:
            transfer(lambda _: (exit_code, ""))
        assert caught.value.is_infra is is_infra


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("aGVsbG8=", "aGVsbG4="),
        lambda text: text.replace("aGVsbG8=", "aGVs bG8="),
        lambda text: text.replace("aGVsbG8=", "noise\naGVsbG8="),
        lambda text: text + text,
        lambda text: "",
    ],
)
def test_a_frame_that_is_not_whole_raises(shell: LocalShell, edit: object) -> None:
    (shell.folder / "f").write_bytes(b"hello")

    def noisy(script: str) -> tuple[int, str]:
        exit_code, output = shell(script)
        return exit_code, edit(output)  # type: ignore[operator]

    with pytest.raises(TransferError):
        download(noisy, "f")


def test_noise_around_the_frame_is_ignored(shell: LocalShell) -> None:
    (shell.folder / "f").write_bytes(b"hello")

    def noisy(script: str) -> tuple[int, str]:
        exit_code, output = shell(script)
        return exit_code, f"a warning without an end{output}and one more"

    assert download(noisy, "f") == b"hello"
