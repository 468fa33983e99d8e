"""Byte-exact file IO with a sandbox, over exec alone.

The wire's `files` are text, so bytes travel as base64 through a POSIX shell (busybox's will do) with `base64`
and `sha256sum`. An upload goes into a temporary file beside its target and is moved into place only when its size
and digest are right. A download puts the payload on one line between two random sentinel lines, so that nothing
else that prints into the exec's pipe can pass for it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
import shlex
from collections.abc import Callable
from typing import Final

from collimate_rl.errors import CollimateError, GuestFileError, TransferError

CHUNK_BASE64: Final = 96 * 1024
CHUNK_BYTES: Final = CHUNK_BASE64 // 4 * 3
MAX_DOWNLOAD_BYTES: Final = 11 * 1024 * 1024

Shell = Callable[[str], tuple[int, str]]
"""Runs one shell command in the sandbox: its exit code and its output. Raises `CollimateError` for infra."""

_IS_DIRECTORY, _WRONG_SIZE, _WRONG_DIGEST, _LOST_TEMPORARY = range(91, 95)
_NO_FILE, _NOT_REGULAR, _NOT_READABLE, _TOO_LARGE = range(95, 99)
_FAULTS = {
    -1: "the exec ran out of time",
    127: "the sandbox lacks a tool: a POSIX shell, base64 and sha256sum are needed",
    _IS_DIRECTORY: "the target is a directory",
    _WRONG_SIZE: "the size is wrong on arrival",
    _WRONG_DIGEST: "the sha256 is wrong on arrival",
    _LOST_TEMPORARY: "the temporary file disappeared between two chunks",
    _NO_FILE: "there is no such file",
    _NOT_REGULAR: "it is no regular file",
    _NOT_READABLE: "the file may not be read",
    _TOO_LARGE: f"the file is larger than {MAX_DOWNLOAD_BYTES} bytes",
}
_NOT_THE_GUESTS: Final = frozenset({-1, 127, _WRONG_SIZE, _WRONG_DIGEST, _LOST_TEMPORARY})
_KILLED: Final = 128
"""From here on a shell's exit code is the signal that ended a command."""


def upload(shell: Shell, path: str, data: bytes) -> None:
    """Write `data` to `path`, whose folder must exist. On any failure the target is as it was, and nothing is left.

    Raises `TransferError` when the sandbox could not take the file (`GuestFileError` where it says why), and lets the
    shell's infra errors through.
    """
    target = _operand(path)
    temporary = f"{target}.{secrets.token_hex(8)}.part"
    try:
        for script in _upload_scripts(target, temporary, data):
            exit_code, output = shell(script)
            if exit_code != 0:
                raise _fault(f"upload of {path!r}", exit_code, output)
    except BaseException:
        try:
            shell(f"rm -f {shlex.quote(temporary)}")
        except CollimateError:
            # The first error tells more; in a sandbox that takes no exec, the file goes when the sandbox goes.
            pass
        raise


def download(shell: Shell, path: str) -> bytes:
    """The bytes of a regular file of at most 11 MiB. Raises `TransferError` for anything less than all of it.

    `GuestFileError` where there is no such file, or it cannot be had.
    """
    begin, end = f"--{secrets.token_hex(16)}--", f"--{secrets.token_hex(16)}--"
    exit_code, output = shell(
        "\n".join(
            (
                f"p={shlex.quote(_operand(path))}",
                f'[ -e "$p" ] || exit {_NO_FILE}',
                f'[ -f "$p" ] || exit {_NOT_REGULAR}',
                f'[ -r "$p" ] || exit {_NOT_READABLE}',
                'n=$(wc -c <"$p") || exit',
                f'[ "$n" -le {MAX_DOWNLOAD_BYTES} ] || exit {_TOO_LARGE}',
                's=$(sha256sum <"$p") || exit',
                f"printf '\\n%s %s\\n' {begin} \"${{s%% *}}\"",
                "base64 <\"$p\" | tr -d '\\n' || exit",
                f"printf '\\n%s\\n' {end}",
            )
        )
    )
    if exit_code != 0:
        raise _fault(f"download of {path!r}", exit_code, output)
    frames = re.findall(rf"^{begin} ([0-9a-f]{{64}})\n([^\n]*)\n{end}$", output, re.MULTILINE)
    if len(frames) != 1 or output.count(begin) != 1:
        raise TransferError(f"download of {path!r} failed: the frame did not arrive whole")
    digest, payload = frames[0]
    try:
        data = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise TransferError(f"download of {path!r} failed: something else is in the frame") from exc
    if hashlib.sha256(data).hexdigest() != digest:
        raise TransferError(f"download of {path!r} failed: the sha256 is wrong on arrival")
    return data


def _upload_scripts(target: str, temporary: str, data: bytes) -> list[str]:
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)] or [b""]
    names = [f"t={shlex.quote(target)}", f"p={shlex.quote(temporary)}"]
    not_a_directory = f'[ ! -d "$t" ] || exit {_IS_DIRECTORY}'
    scripts = []
    for number, chunk in enumerate(chunks):
        payload = base64.b64encode(chunk).decode("ascii")
        if number == 0:
            steps = [not_a_directory, f"printf %s '{payload}' | base64 -d >\"$p\" || exit"]
        else:
            # Only into a file that is there: a chunk that is late must not bring back what was cleaned up.
            steps = [f'[ -f "$p" ] || exit {_LOST_TEMPORARY}', f"printf %s '{payload}' | base64 -d >>\"$p\" || exit"]
        if number == len(chunks) - 1:
            steps += [
                f'[ $(wc -c <"$p") -eq {len(data)} ] || exit {_WRONG_SIZE}',
                's=$(sha256sum <"$p") || exit',
                f'[ "${{s%% *}}" = {hashlib.sha256(data).hexdigest()} ] || exit {_WRONG_DIGEST}',
                not_a_directory,
                'mv -f "$p" "$t" || exit',
            ]
        scripts.append("\n".join(names + steps))
    return scripts


def _operand(path: str) -> str:
    """`path` as a command takes it: never an option, never a folder."""
    if not path or path.endswith("/") or "\0" in path:
        raise ValueError(f"not the path of a file: {path!r}")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise ValueError(f"a path that is no UTF-8: {path!r}") from exc
    return path if path.startswith("/") else f"./{path}"


def _fault(what: str, exit_code: int, output: str) -> TransferError:
    known = _FAULTS.get(exit_code, f"exit code {exit_code}")
    said = output.strip()[-500:]
    message = f"{what} failed: {known}: {said}" if said else f"{what} failed: {known}"
    if exit_code in _NOT_THE_GUESTS or exit_code >= _KILLED:
        return TransferError(message)
    return GuestFileError(message, exit_code, output)
