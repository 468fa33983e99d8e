"""Request bodies of the daemon API, checked once at the door; what is off is a CollimateError with the wire's code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from collimate_rl.errors import CollimateError

WORKDIR = "/box"
WRITABLE = ("/box", "/tmp", "/dev/shm")
"""Where a fork can write; `files` with absolute paths go below these."""
FILE_OVERHEAD_BYTES = 256
"""What each file adds to the composed command, beside its content."""
MAX_BODY_BYTES = 2 << 20
"""A body above this holds more than 128 KiB of text however it is escaped."""
_HEX = frozenset("0123456789abcdefABCDEF")


def bad_request(message: str) -> CollimateError:
    """400: the caller's fault."""
    return CollimateError(message, 400, "bad_request")


def too_large(message: str) -> CollimateError:
    """413: more than the composed command of the real daemon takes."""
    return CollimateError(message, 413, "command_too_large")


def vsock_only() -> CollimateError:
    """400: local templates have no network card, so no egress policy can apply."""
    return CollimateError("template is vsock-only: drop `egress`, a local sandbox has no way out", 400, "bad_request")


@dataclass(frozen=True, kw_only=True)
class Exec:
    """One exec as it was asked for. Exactly one of command, commands, code is set, by the contract's precedence.

    `files` are (path below the working directory or absolute, bytes); `timeout_s` is wall time; `seed` 64 hex digits.
    """

    command: str | None = None
    commands: tuple[tuple[str, ...], ...] | None = None
    code: str | None = None
    files: tuple[tuple[str, bytes], ...] = ()
    timeout_s: int = 30
    seed: str


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise bad_request(f"the body is not JSON: {exc}") from None
    if not isinstance(parsed, dict):
        raise bad_request("the body must be a JSON object")
    return parsed


class BodyParser:
    """Parses bodies as `parse_object` does, and those that begin with one of `codes` without decoding it.

    Such a code is most of its request: a program that goes with every exec of a group. It is known by its bytes, as our
    client writes them, before all other fields.
    """

    def __init__(self, codes: Iterable[str]) -> None:
        self._openings = tuple((f'{{"code":{json.dumps(code)},"'.encode(), code) for code in codes)

    def parse(self, body: bytes) -> dict[str, Any]:
        """The body as a JSON object."""
        for opening, code in self._openings:
            if body.startswith(opening):
                parsed = parse_object(b'{"' + body[len(opening) :])
                # A second `code` wins, as ever.
                parsed.setdefault("code", code)
                return parsed
        return parse_object(body)


def parse_template(body: dict[str, Any]) -> str:
    """The template's id."""
    template = body.get("template_id")
    if template is None or template == "":
        raise CollimateError("template_id is required", 400, "template_id_required")
    if not isinstance(template, str):
        raise bad_request("template_id must be a string")
    return template


def parse_label(body: dict[str, Any]) -> str | None:
    """The label of a session (an extension): up to 256 characters, echoed in SessionInfo."""
    label = body.get("label")
    if label is None:
        return None
    if not isinstance(label, str) or len(label) > 256:
        raise bad_request("label must be a string of at most 256 characters")
    _check_utf8(label, "label")
    return label


def parse_exec(body: dict[str, Any], *, composed_bytes: int) -> Exec:
    """An exec's fields, its seed filled in when the caller gave none."""
    command, commands, code = _text(body, "command"), _commands(body), _text(body, "code")
    if command is not None:
        commands, code = None, None
    elif commands is not None:
        code = None
    elif code is None:
        raise bad_request("one of command, commands, code is needed")
    files = _files(body)
    size = FILE_OVERHEAD_BYTES * len(files)
    for _, content in files:
        size += len(content)
    for text in (command, code):
        if text is not None:
            size += _utf8_bytes(text)
    for argv in commands or ():
        size += sum(_utf8_bytes(argument) + 1 for argument in argv)
    if size > composed_bytes:
        raise too_large(
            f"the exec comes to {size} bytes with its files and the limit is {composed_bytes}: "
            "upload what is large into a session first"
        )
    return Exec(
        command=command,
        commands=commands,
        code=code,
        files=files,
        timeout_s=_timeout(body),
        seed=_seed(body),
    )


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string")
    _check_utf8(value, name)
    if name == "command" and "\0" in value:
        raise bad_request("command holds a NUL character")
    return value


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_utf8(value: str, name: str) -> None:
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{name} holds a lone surrogate, which is no text in UTF-8") from None


def _commands(body: dict[str, Any]) -> tuple[tuple[str, ...], ...] | None:
    value = body.get("commands")
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise bad_request("commands must be a list of argument lists, not empty")
    for argv in value:
        if not isinstance(argv, list) or not argv or not all(isinstance(argument, str) for argument in argv):
            raise bad_request("each of commands must be a list of strings, not empty")
        for argument in argv:
            _check_utf8(argument, "commands")
            if "\0" in argument:
                raise bad_request("commands hold a NUL character")
    return tuple(tuple(argv) for argv in value)


def _files(body: dict[str, Any]) -> tuple[tuple[str, bytes], ...]:
    value = body.get("files")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise bad_request("files must be a list of {path, content}")
    return tuple(_file(entry) for entry in value)


def _file(entry: Any) -> tuple[str, bytes]:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise bad_request("each of files must be an object with a path and a content")
    content = entry.get("content")
    if not isinstance(content, str):
        raise bad_request("a file's content must be a string")
    _check_utf8(content, "a file's content")
    if not content.endswith("\n"):
        content += "\n"
    return check_path(entry["path"]), content.encode()


def check_path(path: str) -> str:
    """A file's path that stays where a fork can write, whatever lies there: relative, or below WRITABLE."""
    _check_utf8(path, "a file's path")
    parts = path.split("/")
    if not path or path.endswith("/") or parts[-1] == "." or "\0" in path:
        raise bad_request(f"{path!r} is no file path")
    if ".." in parts:
        raise bad_request(f"the file path {path!r} holds `..`")
    if _utf8_bytes(path) > 4000 or max(map(_utf8_bytes, parts)) > 255:
        raise bad_request("a file's path is too long")
    if path.startswith("/"):
        clean = "/" + "/".join(part for part in parts if part not in ("", "."))
        if not any(clean.startswith(root + "/") for root in WRITABLE):
            raise bad_request(f"the file path {path!r} is not below one of {', '.join(WRITABLE)}")
    return path


def _timeout(body: dict[str, Any]) -> int:
    value = body.get("timeout_seconds")
    if value is None:
        return 30
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 3600:
        raise bad_request("timeout_seconds must be an integer from 1 to 3600")
    return value


def _seed(body: dict[str, Any]) -> str:
    value = body.get("seed")
    if value is None:
        return os.urandom(32).hex()
    if not isinstance(value, str) or len(value) != 64 or not _HEX.issuperset(value):
        raise CollimateError("seed must be 64 hex characters", 400, "invalid_seed")
    return value
