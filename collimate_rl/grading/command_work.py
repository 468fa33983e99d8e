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
_FENCE: Final = re.compile(r"^(`{3,}|~{3,})[ \t]*([^\n`]*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_OPEN_FENCE: Final = re.compile(r"^(`{3,}|~{3,})[ \t]*(diff|patch)[ \t]*\n", re.MULTILINE | re.IGNORECASE)
_DIFF: Final = re.compile(r"^(?:diff --git |--- [^\n]+\n\+\+\+ )", re.MULTILINE)
_ATTRIBUTE: Final = re.compile(r"\b(?:path|file|title)=(\"[^\"]+\"|'[^']+'|\S+)")
_NAMED: Final = re.compile(r"(?:\w+[: ])?(\S*[./]\S*)")


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
    fences = [(found[2].strip(), found[3]) for found in _FENCE.finditer(text)]
    tagged = [body for tag, body in fences if tag.split(" ")[0].lower() in ("diff", "patch")]
    if tagged:
        return Work(patch=tagged[-1]) if _DIFF.search(tagged[-1]) else None
    if not fences:
        opened = _OPEN_FENCE.search(text)
        if opened is not None:
            text = text[opened.end() :]
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
    found = _ATTRIBUTE.search(tag) or _NAMED.fullmatch(tag.strip())
    return found[1].strip("\"'") or None if found is not None else None
