"""Whether the files that tests come from are as they were, when what they test has run beside them."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import Dict, List, Set, Tuple

TESTS = ("conftest.py", "test_*.py", "*_test.py")
CONFIGS = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
)

Seen = Tuple[Dict[str, Tuple[int, int]], Set[str]]


def watched(root: str, own: Set[str]) -> Seen:
    """Test and configuration files below a tree and the spec's own modules there, each by its inode and the time of
    its last change, which nobody can set back; and the folders that there are."""
    files: Dict[str, Tuple[int, int]] = {}
    folders: Set[str] = set()
    for folder, _, names in os.walk(root):
        below = os.path.relpath(folder, root)
        folders.add(below)
        for name in names:
            path = os.path.normpath(os.path.join(below, name))
            tests = name in CONFIGS or any(fnmatchcase(name, pattern) for pattern in TESTS)
            if tests or (path in own and name[-3:] == ".py"):
                try:
                    found = os.lstat(os.path.join(folder, name))
                except OSError:
                    continue
                files[path] = found.st_ino, found.st_ctime_ns
    return files, folders


def changed(before: Seen, after: Seen) -> List[str]:
    """What is no longer the same file, and what configures tests in a folder where nothing did."""
    files, folders = before
    found = [path for path in files if after[0].get(path) != files[path]]
    for path in after[0]:
        folder, name = os.path.split(path)
        if path not in files and name in CONFIGS and (folder or ".") in folders:
            found.append(path)
    return sorted(found)
