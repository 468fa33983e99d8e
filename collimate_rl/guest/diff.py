"""Unified diffs, read strictly and applied exactly: a hunk's old lines have to be there, all of them, unchanged."""

from __future__ import annotations

import codecs
import re
from typing import List, Optional, Tuple

HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
MODES = (b"100644", b"100755", b"100664")
NO_NEWLINE = b"\\"
STRIPPED = 100  # blank lines that may be missing at a patch's very end


class BadPatch(ValueError):
    """The patch can't be read, or does not apply."""


class Hunk:
    """`old` and `new` are lines with their ends; `at` is the old ones' place, counted from 0."""

    def __init__(self, at: int, old: List[bytes], new: List[bytes]) -> None:
        self.at, self.old, self.new = at, old, new


class FilePatch:
    """What becomes of one file. `old` is None for one that is made, `new` for one that goes; `mode` as git has it."""

    def __init__(self, old: Optional[str], new: Optional[str]) -> None:
        self.old, self.new = old, new
        self.mode: Optional[bytes] = None
        self.copied = False
        self.hunks: List[Hunk] = []

    def apply(self, before: Optional[bytes]) -> Optional[bytes]:
        """The file's content afterwards, None when it goes. `before` is None where there is no such file."""
        name = self.new or self.old
        if (self.old is None) != (before is None):
            raise BadPatch("%s: %s" % (name, "there is no such file" if before is None else "it is there already"))
        lines = split(before or b"")
        done: List[bytes] = []
        at = 0
        for number, hunk in enumerate(self.hunks, 1):
            place = find(lines, hunk, at)
            if place is None:
                raise BadPatch("%s: hunk %d does not apply" % (name, number))
            done += lines[at:place] + hunk.new
            at = place + len(hunk.old)
        done += lines[at:]
        if self.new is None:
            if done:
                raise BadPatch("%s: it is deleted, but not all of its lines are" % name)
            return None
        return b"".join(done)


def split(data: bytes) -> List[bytes]:
    """Lines with their ends, of which there is one kind."""
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return parts if parts[-1] else parts[:-1]


def find(lines: List[bytes], hunk: Hunk, start: int) -> Optional[int]:
    """Where the hunk's old lines are: at the place that it names, else at the nearest one from `start` on."""
    size = len(hunk.old)
    if not size:
        return hunk.at if start <= hunk.at <= len(lines) else None
    places = sorted(range(start, len(lines) - size + 1), key=lambda at: abs(at - hunk.at))
    return next((at for at in places if lines[at] == hunk.old[0] and lines[at : at + size] == hunk.old), None)


def read_patch(data: bytes) -> List[FilePatch]:
    """The files of a unified diff, git's or diff's. What stands before the first is not looked at."""
    rows = split(data)
    if all(row.endswith(b"\r\n") for row in rows[:-1]):
        rows = [row[:-2] + b"\n" if row.endswith(b"\r\n") else row for row in rows]
    found: List[FilePatch] = []
    current: Optional[FilePatch] = None
    at = 0
    while at < len(rows):
        row = rows[at].rstrip(b"\r\n")
        at += 1
        if row.startswith(b"diff --git "):
            current = FilePatch(*both(row[11:]))
            found.append(current)
        elif row.startswith(b"--- ") and at < len(rows) and rows[at].startswith(b"+++ "):
            names = path_of(row[4:], b"a/"), path_of(rows[at].rstrip(b"\r\n")[4:], b"b/")
            at += 1
            if current is None or current.hunks:
                current = FilePatch(None, None)
                found.append(current)
            current.old, current.new = names
        elif row.startswith(b"@@ ") and current is not None:
            hunk, at = read_hunk(rows, at - 1)
            current.hunks.append(hunk)
        elif current is not None and not current.hunks:
            header(current, row)
        elif row[:1] in (b" ", b"+", b"-") and row[:3] != b"-- ":
            raise BadPatch("a hunk with more lines than its header says: %s" % text(row[:80]))
    for each in found:
        if each.old is None and each.new is None:
            raise BadPatch("a file without a name")
    if not found:
        raise BadPatch("there is no diff in it")
    return found


def header(current: FilePatch, row: bytes) -> None:
    """A line between a file's name and its first hunk."""
    for word in (b"new file mode ", b"new mode ", b"old mode ", b"deleted file mode "):
        if row.startswith(word):
            if row[len(word) :] not in MODES:
                raise BadPatch("%s: neither links nor modules can be patched" % (current.new or current.old))
            if word.startswith(b"new"):
                current.mode = row[len(word) :]
            if word.startswith(b"new file"):
                current.old = None
            elif word.startswith(b"deleted"):
                current.new = None
    if row.startswith((b"rename from ", b"copy from ")):
        current.old, current.copied = text(row.split(b" from ", 1)[1]), row.startswith(b"copy")
    elif row.startswith((b"rename to ", b"copy to ")):
        current.new = text(row.split(b" to ", 1)[1])
    elif row.startswith((b"GIT binary patch", b"Binary files ")):
        raise BadPatch("%s: a binary file can't be patched" % (current.new or current.old))


def read_hunk(rows: List[bytes], at: int) -> Tuple[Hunk, int]:
    """The hunk whose header is row `at`, and the row after it."""
    found = HUNK.match(rows[at])
    if found is None:
        raise BadPatch("no header of a hunk: %s" % text(rows[at][:80]))
    first, olds, _, news = [int(n) if n is not None else 1 for n in found.groups()]
    old: List[bytes] = []
    new: List[bytes] = []
    at += 1
    if max(olds, news) > len(rows) - at + STRIPPED:
        raise BadPatch("a hunk with fewer lines than its header says: %s" % text(rows[at - 1][:80]))
    while len(old) < olds or len(new) < news:
        # Blank lines at a patch's very end are what editors, and whoever takes fences apart, strip.
        row = rows[at] if at < len(rows) else b" \n"
        kind, line = (row[:1], row[1:]) if row.strip(b"\r\n") else (b" ", row)
        if kind not in (b" ", b"-", b"+"):
            raise BadPatch("a hunk with fewer lines than its header says: %s" % text(row[:80]))
        at += 1
        line = line.rstrip(b"\n") + b"\n"
        if at < len(rows) and rows[at][:1] == NO_NEWLINE:
            line = line[:-1]
            at += 1
        if kind != b"+":
            old.append(line)
        if kind != b"-":
            new.append(line)
    if (len(old), len(new)) != (olds, news):
        raise BadPatch("a hunk with more lines than its header says")
    return Hunk(first - (olds > 0), old, new), at


def both(names: bytes) -> Tuple[Optional[str], Optional[str]]:
    """The two names of git's first line, where they are one: what else they may be, further lines say."""
    if names[:1] == b'"':
        half = names[: len(names) // 2]
        return path_of(half, b"a/"), path_of(names[len(half) + 1 :], b"b/")
    middle = len(names) // 2
    old, new = names[:middle], names[middle + 1 :]
    if old[:2] == b"a/" and new[:2] == b"b/" and old[2:] == new[2:]:
        return text(old[2:]), text(new[2:])
    return None, None


def path_of(name: bytes, prefix: bytes) -> Optional[str]:
    """A file's name as a diff gives it, without git's prefix and the time that diff adds."""
    if name[:1] == b'"':
        end = name.rindex(b'"')
        if end == 0:
            raise BadPatch("a name without an end: %s" % text(name))
        name = codecs.escape_decode(name[1:end])[0]
    else:
        name = name.split(b"\t")[0].rstrip()
    if name == b"/dev/null":
        return None
    return text(name[len(prefix) :] if name.startswith(prefix) else name)


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
