"""A tree of files that is written to by names that others chose: nothing outside it is ever reached."""

from __future__ import annotations

import os
import shutil
import stat
from fnmatch import fnmatchcase
from typing import Dict, List, Optional

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LARGEST = 64 << 20


class Escape(ValueError):
    """A path that leads out of the tree."""


class Blocked(Escape):
    """A path that is in the tree, and a link, a folder or the like is in its way."""


def parts_of(path: str) -> List[str]:
    """A path's parts; Escape for what is absolute, empty, too long, or goes up."""
    parts = path.split("/")
    if not path or len(path) > 2000 or any(p in ("", ".", "..") or "\0" in p or len(p) > 200 for p in parts):
        raise Escape("no path of a file below the tree: %.200r" % path)
    return parts


def matches(path: str, patterns: List[str]) -> bool:
    """Whether the path, or its last part, is named by one of the patterns."""
    name = path.rsplit("/", 1)[-1]
    return any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in patterns)


class Tree:
    """Files below `root`, a directory that is there. Links are never followed, and folders are made as needed."""

    def __init__(self, root: str) -> None:
        self.root = root

    def _folder(self, parts: List[str], make: bool, force: bool) -> int:
        """A descriptor of the folder that holds the path's last part. `force`: what is in the way goes."""
        at = os.open(self.root, FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in parts[:-1]:
                try:
                    below = os.open(part, FOLDER, dir_fd=at)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(part, 0o755, dir_fd=at)
                    below = os.open(part, FOLDER, dir_fd=at)
                except OSError as fault:
                    if not force:
                        raise Blocked("%s: %r is no folder, or a link to one" % ("/".join(parts), part)) from fault
                    os.unlink(part, dir_fd=at)
                    os.mkdir(part, 0o755, dir_fd=at)
                    below = os.open(part, FOLDER, dir_fd=at)
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        return at

    def get(self, path: str) -> Optional[bytes]:
        """A regular file's bytes; None where there is no such file. Blocked for a link, and what else is none."""
        parts = parts_of(path)
        try:
            folder = self._folder(parts, False, False)
        except FileNotFoundError:
            return None
        try:
            fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise Blocked("%s is a link, or can't be read" % path) from fault
        finally:
            os.close(folder)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Blocked("%s is no regular file" % path)
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise Blocked("%s is too large" % path)
        return data

    def has(self, path: str) -> bool:
        """Whether anything is there, a link included."""
        parts = parts_of(path)
        try:
            folder = self._folder(parts, False, False)
        except (FileNotFoundError, Blocked):
            return False
        try:
            os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            return True
        except OSError:
            return False
        finally:
            os.close(folder)

    def put(self, path: str, data: bytes, mode: Optional[int] = None, force: bool = False) -> None:
        """Write a file as a fresh one. `mode` None keeps what the old one had; `force`: what is in the way goes."""
        parts = parts_of(path)
        folder = self._folder(parts, True, force)
        try:
            kept = self._clear(parts[-1], folder, path, force)
            fd = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode or kept or (0o755 if data[:2] == b"#!" else 0o644))
        finally:
            os.close(folder)

    def _clear(self, name: str, folder: int, path: str, force: bool) -> Optional[int]:
        """Make room for a file; the mode of the regular one that was there."""
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(found):
            if not force:
                raise Blocked("%s is a folder" % path)
            shutil.rmtree(os.path.join(self.root, path))
            return None
        if not stat.S_ISREG(found) and not force:
            raise Blocked("%s is a link, or no regular file" % path)
        os.unlink(name, dir_fd=folder)
        return stat.S_IMODE(found) if stat.S_ISREG(found) else None

    def drop(self, path: str) -> None:
        """Delete a file or link, if it is there."""
        parts = parts_of(path)
        try:
            folder = self._folder(parts, False, False)
        except FileNotFoundError:
            return
        try:
            os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            pass
        finally:
            os.close(folder)


class Rules:
    """Which of a candidate's files are kept out: `allow` outdoes `deny` and `shadows`; nothing outdoes `own`.

    `deny` are patterns of names and paths, `parts` names of folders, `shadows` names of modules that a file at the
    tree's top (or in its src) would stand in for, unless the tree had such a one before.
    """

    def __init__(self, tree: Tree, job: Dict[str, List[str]], own: List[str]) -> None:
        self.tree = tree
        self.own = frozenset(own)
        self.allow, self.deny = job["allow"], job["deny"]
        self.parts, self.shadows = frozenset(job["parts"]), frozenset(job["shadows"])
        self.tops: Dict[str, bool] = {}

    def keeps_out(self, path: str) -> bool:
        if path in self.own:
            return True
        parts = parts_of(path)
        if matches(path, self.allow):
            return False
        if matches(path, self.deny):
            return True
        if any(part in self.parts or part.endswith((".dist-info", ".egg-info")) for part in parts):
            return True
        below = 1 if parts[0] in ("src", "lib") and len(parts) > 1 else 0
        top = "/".join(parts[: below + 1])
        if parts[below].split(".")[0] not in self.shadows:
            return False
        if top not in self.tops:
            self.tops[top] = self.tree.has(top)
        return not self.tops[top]
