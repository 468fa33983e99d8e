"""Unified diffs are read strictly and applied exactly, and what they name never leads out of the tree."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collimate_rl.guest.command import patched
from collimate_rl.guest.diff import BadPatch, read_patch
from collimate_rl.guest.tree import Blocked, Escape, Rules, Tree
from collimate_rl.specs.command import DENIED, DENIED_FOLDERS, SHADOWED

OLD = b"one\ntwo\nthree\nfour\n"
HEAD = "--- a/x\n+++ b/x\n"


def applied(patch: str, files: dict[str, bytes], place: Path) -> dict[str, bytes | None]:
    tree = Tree(str(place))
    for path, data in files.items():
        tree.put(path, data)
    return {path: content for path, (content, _) in patched(tree, read_patch(patch.encode())).items()}


LINES = st.lists(st.sampled_from(["a", "b", "", "  c", "-d", "+e", "@@ f", "\\ g", "--- h"]), max_size=12)


@settings(max_examples=200, deadline=None)
@given(old=LINES, new=LINES, context=st.integers(0, 3), old_end=st.booleans(), new_end=st.booleans())
def test_what_difflib_writes_is_applied(
    old: list[str], new: list[str], context: int, old_end: bool, new_end: bool
) -> None:
    before, after = text_of(old, old_end), text_of(new, new_end)
    if before == after:
        return
    rows = difflib.unified_diff(lines(before), lines(after), "a/x", "b/x", n=context)
    patch = "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)
    [found] = read_patch(patch.encode())
    assert found.apply(before.encode()) == after.encode()


def text_of(rows: list[str], end: bool) -> str:
    return "\n".join(rows) + ("\n" if end and rows else "")


def lines(text: str) -> list[str]:
    return [row + "\n" for row in text.split("\n")[:-1]] + ([text.split("\n")[-1]] if not text.endswith("\n") else [])[
        : bool(text)
    ]


def git(place: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.quotePath=true", *arguments]
    return subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")
def test_what_git_writes_is_applied(tmp_path: Path) -> None:
    place = tmp_path / "repo"
    place.mkdir()
    git(place, "init", "-q")
    before = {
        "a.py": OLD * 5,
        "gone": OLD,
        "moved": OLD * 9,
        "no end": b"x",
        "tsch\u00fcss.py": OLD,
        "s.sh": b"#!/bin/sh\n",
    }
    for name, data in before.items():
        (place / name).write_bytes(data)
    git(place, "add", "-A")
    git(place, "commit", "-qm", "base")
    after: dict[str, bytes] = {
        "a.py": OLD * 4 + b"three\n",
        "sub/moved": OLD * 9 + b"five\n",
        "no end": b"x\ny",
        "tsch\u00fcss.py": b"one\n",
        "new file": b"a\n\nb\n",
        "s.sh": b"#!/bin/sh\n",
    }
    for name in before:
        (place / name).unlink()
    (place / "sub").mkdir()
    for name, data in after.items():
        (place / name).write_bytes(data)
    (place / "s.sh").chmod(0o755)
    git(place, "add", "-A")
    patch = git(place, "diff", "--cached", "-M")
    assert "rename from" in patch
    (tmp_path / "tree").mkdir()
    changes = applied(patch, before, tmp_path / "tree")
    assert changes == {**after, "gone": None, "moved": None}


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("", "no diff"),
        ("just words\n", "no diff"),
        (HEAD + "@@ -2,1 +2,1 @@\n-TWO\n+2\n", "hunk 1 does not apply"),
        (HEAD + "@@ -2,1 +2,1 @@\n-two\n", "fewer lines|more lines"),
        (HEAD + "@@ -2,1 +2,1 @@\n-two\n+2\n+2.5\n", "more lines"),
        (HEAD + "@@ -2,2 +2,1 @@\n-two\n+2\n*three\n", "fewer lines"),
        (HEAD + "@@ -2,999999999999 +2,999999999999 @@\n two\n", "fewer lines"),
        (HEAD + "@@ nonsense @@\n", "no header of a hunk"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+new\n", "it is there already"),
        ("--- a/y\n+++ b/y\n@@ -1 +1 @@\n-one\n+1\n", "there is no such file"),
        ("--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n", "not all of its lines"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 120000\n", "links"),
        ("diff --git a/x b/x\nnew file mode 160000\n", "links"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 1\n", "binary"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "binary"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "it is there already"),
    ],
)
def test_what_does_not_apply_is_refused(tmp_path: Path, patch: str, words: str) -> None:
    with pytest.raises(BadPatch, match=words):
        applied(patch, {"x": OLD, **({"y": OLD} if "rename" in patch else {})}, tmp_path)


def test_a_hunk_is_found_where_it_moved_to(tmp_path: Path) -> None:
    patch = HEAD + "@@ -1,2 +1,2 @@\n three\n-four\n+4\n"
    assert applied(patch, {"x": OLD}, tmp_path) == {"x": b"one\ntwo\nthree\n4\n"}


def test_blank_context_at_the_end_may_have_been_stripped(tmp_path: Path) -> None:
    patch = HEAD + "@@ -1,3 +1,3 @@\n-one\n+1\n two"
    assert applied(patch, {"x": b"one\ntwo\n\nthree\n"}, tmp_path) == {"x": b"1\ntwo\n\nthree\n"}


def test_line_ends_of_the_file_are_kept(tmp_path: Path) -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n"
    assert applied(patch, {"x": b"one\r\ntwo\r\n"}, tmp_path) == {"x": b"one\r\n2\r\n"}


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//x", "./x", "", "a/", "x" * 300, "a\0b"])
def test_no_path_leads_out_of_the_tree(tmp_path: Path, path: str) -> None:
    tree = Tree(str(tmp_path))
    for attempt in (tree.get, tree.drop, lambda p: tree.put(p, b"")):
        with pytest.raises(Escape):
            attempt(path)  # type: ignore[operator]


def test_links_are_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"theirs")
    place = tmp_path / "tree"
    place.mkdir()
    tree = Tree(str(place))
    os.symlink(outside, place / "folder")
    os.symlink(outside / "f", place / "file")
    for path in ("folder/f", "file"):
        for attempt in (tree.get, lambda p: tree.put(p, b"mine")):
            with pytest.raises(Blocked):
                attempt(path)  # type: ignore[operator]
    tree.put("folder/f", b"ours", force=True)
    tree.put("file", b"ours", force=True)
    assert (outside / "f").read_bytes() == b"theirs"
    assert (place / "folder" / "f").read_bytes() == (place / "file").read_bytes() == b"ours"
    assert not (place / "file").is_symlink()


def test_a_forced_file_takes_the_place_of_whatever_is_there(tmp_path: Path) -> None:
    tree = Tree(str(tmp_path))
    tree.put("tests/test_a.py/x.py", b"")
    tree.put("tests/test_a.py", b"ours", force=True)
    tree.put("b", b"a file")
    tree.put("b/c", b"ours", force=True)
    os.mkfifo(tmp_path / "pipe")
    tree.put("pipe", b"ours", force=True)
    assert [tree.get(path) for path in ("tests/test_a.py", "b/c", "pipe")] == [b"ours"] * 3
    with pytest.raises(Blocked):
        tree.put("b", b"")


def test_modes_are_kept_and_scripts_can_be_run(tmp_path: Path) -> None:
    tree = Tree(str(tmp_path))
    tree.put("s", b"#!/bin/sh\n")
    tree.put("t", b"text")
    tree.put("s", b"no script any more")
    assert [os.stat(tmp_path / name).st_mode & 0o777 for name in "st"] == [0o755, 0o644]


@pytest.mark.parametrize(
    ("path", "allow", "out"),
    [
        ("src/a.py", [], False),
        ("conftest.py", [], True),
        ("a/b/conftest.py", [], True),
        ("a/b/conftest.py", ["a/b/*"], False),
        ("pkg/test_x.py", [], True),
        ("pkg/test_x.py", ["test_x.py"], False),
        ("tests/test_own.py", ["*"], True),
        ("pyproject.toml", [], True),
        ("pyproject.toml", ["pyproject.toml"], False),
        ("x.dist-info/entry_points.txt", [], True),
        ("a/__pycache__/b.cpython-311.pyc", [], True),
        (".git/hooks/pre-commit", [], True),
        ("json.py", [], True),
        ("json/tool.py", [], True),
        ("src/json.py", [], True),
        ("pkg/json.py", [], False),
        ("queue.py", [], False),
        ("types.py", [], False),
        ("random/__init__.py", [], False),
    ],
)
def test_what_is_kept_out(tmp_path: Path, path: str, allow: list[str], out: bool) -> None:
    tree = Tree(str(tmp_path))
    tree.put("types.py", b"the repository's own")
    tree.put("random/core.py", b"the repository's own")
    lists = {"deny": list(DENIED), "parts": list(DENIED_FOLDERS), "shadows": list(SHADOWED), "allow": allow}
    assert Rules(tree, lists, ["tests/test_own.py"]).keeps_out(path) is out
