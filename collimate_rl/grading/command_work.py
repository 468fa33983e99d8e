"""What a candidate of a `CommandReward` did, out of its text: a patch, or a set of files."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from collimate_rl.specs.command import check_work_path

MAX_WORK_FILES: Final = 2000
# A model chose every character that these read, and they hold the interpreter's lock: each is linear in the text.
_MARK: Final = re.compile(r"`{3,}|~{3,}")
_DIFF: Final = re.compile(r"^(?:diff --git |--- [^\n]+\n\+\+\+ )", re.MULTILINE)
_ATTRIBUTE: Final = re.compile(r"\b(?:path|file|title)=(\"[^\"]+\"|'[^']+'|\S+)")
_WORD_FIRST: Final = re.compile(r"\w+[: ]")
_MAX_TAG: Final = 1000
"""Characters of an info string; a longer one names no file."""


class Escapes(ValueError):
    """A path in the work leads out of the tree."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A unified diff, or files (path to base64) and deleted paths."""

    patch: str | None = None
    files: Mapping[str, str] | None = None
    deleted: tuple[str, ...] = ()

    def as_job(self) -> dict[str, Any]:
        """The fields of a job of the guest program."""
        if self.patch is not None:
            return {"patch": self.patch, "work": None}
        return {"patch": None, "work": {"files": list((self.files or {}).items()), "deleted": list(self.deleted)}}


def work_of(candidate: str) -> Work | None:
    """The work in a candidate's text; None where there is none. Raises ValueError for work that can't be read.

    In this order: a JSON object `{"files": {path: text or {"base64"}}, "deleted": [path]}`; the last fence tagged diff
    or patch; a text, or a fence without such a tag, that is a diff; fences whose info string names a file
    (```python src/a.py, or path=src/a.py), of which the last one with a name counts.
    """
    text = candidate.replace("\r\n", "\n") if "\n@@" not in candidate else candidate
    stripped = text.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        return _from_json(stripped)
    fences, opened = _fences(text)
    tagged = [body for tag, body in fences if _is_diff(tag)]
    if tagged:
        return Work(patch=tagged[-1]) if _DIFF.search(tagged[-1]) else None
    if not fences:
        if opened is not None and _is_diff(opened[0]):
            text = opened[1]
        return Work(patch=text) if _DIFF.search(text) else None
    diffs = [body for _, body in fences if _DIFF.match(body.lstrip("\n"))]
    if diffs:
        return Work(patch=diffs[-1])
    if _DIFF.search(text) and not any(_name_of(tag) for tag, _ in fences):
        return Work(patch=text)
    files = {name: body for tag, body in fences if (name := _name_of(tag)) is not None}
    if not files:
        return None
    return _checked({path: _base64(body.encode("utf-8", "surrogatepass")) for path, body in files.items()}, ())


def _fences(text: str) -> tuple[list[tuple[str, str]], tuple[str, str] | None]:
    """The fenced blocks as (info string, body), and the first that is never closed. Only the same mark, alone on its
    line, closes a block."""
    lines = text.split("\n")
    last = {line.rstrip(): number for number, line in enumerate(lines) if line[:3] in ("```", "~~~")}
    found: list[tuple[str, str]] = []
    unclosed: tuple[str, str] | None = None
    mark, tag, begin = "", "", 0
    for number, line in enumerate(lines):
        if mark:
            if line.rstrip() == mark:
                found.append((tag, "".join(part + "\n" for part in lines[begin:number])))
                mark = ""
            continue
        opening = _MARK.match(line)
        if opening is None or "`" in line[opening.end() :]:
            continue
        info = line[opening.end() :].strip()
        if last.get(opening[0], -1) > number:
            mark, tag, begin = opening[0], info, number + 1
        elif unclosed is None:
            unclosed = info, "\n".join(lines[number + 1 :])
    return found, unclosed


def _is_diff(tag: str) -> bool:
    return tag.split(" ")[0].lower() in ("diff", "patch")


def is_work(candidate: str) -> bool:
    """Whether there is work in the text, readable or not."""
    try:
        return work_of(candidate) is not None
    except ValueError:
        return True


def _from_json(text: str) -> Work | None:
    try:
        wire = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"it looks like JSON and is none: {fault}") from None
    files, deleted = wire.get("files", {}), wire.get("deleted", [])
    if not isinstance(files, dict) or not isinstance(deleted, list):
        raise ValueError("files is an object of paths and contents, deleted a list of paths")
    if not files and not deleted:
        return None
    return _checked({path: _content(path, content) for path, content in files.items()}, deleted)


def _checked(files: Mapping[str, str], deleted: Any) -> Work:
    if len(files) + len(deleted) > MAX_WORK_FILES:
        raise ValueError(f"{len(files) + len(deleted):,} files, above {MAX_WORK_FILES:,}")
    for path in (*files, *deleted):
        try:
            check_work_path(path)
        except ValueError as fault:
            raise Escapes(str(fault)) from None
    return Work(files=files, deleted=tuple(deleted))


def _content(path: str, content: Any) -> str:
    if isinstance(content, str):
        return _base64(content.encode("utf-8", "surrogatepass"))
    try:
        return _base64(base64.b64decode(content["base64"], validate=True))
    except (TypeError, KeyError, binascii.Error, ValueError):
        raise ValueError(f"the content of {path!r:.100} is neither text nor {{'base64'}}") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _name_of(tag: str) -> str | None:
    """The file that an info string names: `path=…`, or alone or behind one word a text with a dot or a slash in it."""
    if len(tag) > _MAX_TAG:
        return None
    found = _ATTRIBUTE.search(tag)
    if found is not None:
        return found[1].strip("\"'") or None
    words = _WORD_FIRST.sub("", tag.strip(), count=1)
    for name in (words, tag.strip()):
        if ("." in name or "/" in name) and not any(c.isspace() for c in name):
            return name.strip("\"'") or None
    return None
