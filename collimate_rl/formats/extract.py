"""Finding the code in a completion.

Models wrap code in thoughts, prose, fences of several kinds and example outputs. What is returned is source text with
`\\n` line ends, blank lines at its start and white space at its end removed. Leading indentation is never removed from
a body: a completion that continues a function's signature stays a completion (`AssertReward` puts the prompt in front).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from collimate_rl.syntax import parse

WANTED_TAGS: Final = frozenset({"py", "python", "python3"})

_MARK = re.compile(r"(?<![`~])(`{3,}|~{3,})(?![`~])")
_TAG = re.compile(r"[{.]*([a-z0-9+#_-]*)")
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_LARGEST_PARSED = 64 * 1024  # characters; text nested deeply enough above that ends a Python 3.10 by its C stack
_MOST_CUTS = 20


@dataclass(frozen=True, kw_only=True)
class Fence:
    """One fenced block; `tag` is the first word after the opening mark, in lower case."""

    tag: str
    text: str

    @property
    def is_wanted(self) -> bool:
        return self.tag in WANTED_TAGS


def extract_code(completion: str, entry: str = "solve") -> str:
    """The candidate in a completion; "" where there is none.

    1. Everything up to the last `</think>` goes; a thought that never ends means no code.
    2. The last fence tagged py, python or python3 (any case). One that only uses `entry`, where an earlier one defines
       it, is an example of how to call it and passes over to that one.
    3. The only fence there is, whatever its tag; else the last untagged fence that parses as code: an example output
       is none.
    4. The slice from the `def` of `entry`, with the imports and helpers in front of it and without the prose after it.
    5. The text.

    An unclosed fence at the end counts as one. `entry` is a function's name, or `Class.method`.
    """
    text = completion.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = text.rpartition(_THINK_CLOSE)[2]
    if parses_as_code(text):
        # Python as a whole, so that a fence or a tag in it can only be inside a string.
        return _trimmed(text)
    fences = list(_fences(text))
    if _has_open_thought(text, fences):
        return ""
    name = entry.rpartition(".")[2]
    filled = [fence for fence in fences if fence.text.strip()]
    if fences and not filled:
        return ""
    chosen = _chosen(filled, entry.partition(".")[0], name)
    return _trimmed(chosen.text if chosen is not None else _slice_from_definition(text, name) or text)


def parses_as_code(text: str) -> bool:
    """True for Python, or the indented body of a function, that does more than state a value.

    `5`, `[1, 2]`, `YES` and `result: 7` are what programs print, not programs.
    """
    tree = _parsed(text)
    return tree is not None and any(not _is_mere_value(node) for node in tree.body)


def _chosen(fences: Sequence[Fence], outer: str, name: str) -> Fence | None:
    wanted = [fence for fence in fences if fence.is_wanted]
    if wanted:
        last = wanted[-1]
        if _only_uses(last.text, outer, name):
            return _last_defining(wanted, name) or last
        return last
    if len(fences) == 1:
        return fences[0]
    plain = [fence for fence in fences if not fence.tag and parses_as_code(fence.text)]
    return _last_defining(plain, name) or (plain[-1] if plain else _last_defining(fences, name))


def _last_defining(fences: Sequence[Fence], name: str) -> Fence | None:
    return next((fence for fence in reversed(fences) if _defines(fence.text, name)), None)


def _fences(text: str) -> Iterable[Fence]:
    """Fenced blocks in order, by CommonMark's rules with what models do to them.

    A tagged opening may follow prose on its line; a tagged opening inside a block, at a block's indentation, ends that
    block (its closing mark was forgotten); a block indented in a list loses that indentation.
    """
    mark, tag, indent = "", "", 0
    lines: list[str] = []

    def block() -> Fence:
        return Fence(tag=tag, text=_without_closing_mark("\n".join(lines)))

    for line in text.split("\n"):
        opening = _opening(line)
        if mark:
            stripped = line.strip()
            is_near = _indentation(line) <= indent + 3
            if is_near and len(stripped) >= len(mark) and set(stripped) == {mark[0]}:
                yield block()
                mark = ""
                continue
            if not (is_near and opening is not None and opening[1] and opening[0][0] == mark[0] and not opening[3]):
                lines.append(_unindented(line, indent))
                continue
            yield block()
        if opening is not None:
            mark, tag, indent, _ = opening
            lines = []
    if mark:
        yield block()


def _opening(line: str) -> tuple[str, str, int, bool] | None:
    """(mark, tag, indentation, whether prose stands before it) of a line that opens a fence."""
    # After an opening's mark comes no further backtick.
    last = line.rfind("`")
    found = next((found for found in _MARK.finditer(line) if found.end() > last), None)
    if found is None:
        return None
    before, mark, info = line[: found.start()], found[1], line[found.end() :].strip()
    tag = _TAG.match(info.lower())
    name = tag[1] if tag else ""
    if before.strip():
        # Mid-line, only a known tag and nothing after it is an opening: ``` alone closes inline code as often.
        return (mark, name, 0, True) if name in WANTED_TAGS and info.lower() == name else None
    return mark, name, _indentation(line), False


def _has_open_thought(text: str, fences: Sequence[Fence]) -> bool:
    """Whether a thought begins outside the fences. (`</think>` was cut off before, so it never ends.)"""
    return text.count(_THINK_OPEN) > sum(fence.text.count(_THINK_OPEN) for fence in fences) or (
        text.lstrip().startswith(_THINK_OPEN)
    )


def _slice_from_definition(text: str, name: str) -> str | None:
    definition = re.compile(rf"^(?:async[ \t]+def|def|class)[ \t]+(?:{re.escape(name)}|Solution)\b", re.MULTILINE)
    starts = [found.start() for found in definition.finditer(text)]
    if not starts:
        return None
    # The last definition is the answer; drafts stand before it.
    body = _without_prose_after(text[starts[-1] :])
    above = text[: starts[-1]].split("\n")
    first = len(above) - 1
    while first > 0 and _may_be_code(above[first - 1]):
        first -= 1
    for start in [number for number in range(first, len(above)) if _starts_statement(above[number])][:_MOST_CUTS]:
        piece = "\n".join(above[start:]) + body
        if _parsed(piece) is not None:
            return piece
    return body


def _starts_statement(line: str) -> bool:
    return re.match(r"import\b|from\b|def\b|async\b|class\b|@|#|[A-Za-z_]\w*[ \t]*[=:]", line) is not None


def _may_be_code(line: str) -> bool:
    return not line.strip() or line[0] in " \t)]}" or _starts_statement(line)


def _without_prose_after(text: str) -> str:
    """`text` up to the unindented line from which on it is no Python; the text itself where that leaves none."""
    piece = _without_closing_mark(text)
    for _ in range(_MOST_CUTS):
        try:
            tree = parse(_harmless(piece)) if len(piece) <= _LARGEST_PARSED else None
        except SyntaxError as exc:
            lines = piece.split("\n")
            at = (exc.lineno or 0) - 1
            if not 0 < at < len(lines) or lines[at][:1] in (" ", "\t", ""):
                return text  # the fault is in the code, which is for the interpreter to say
            piece = "\n".join(lines[:at])
            continue
        except (ValueError, RecursionError, MemoryError):
            return text
        if tree is None or not tree.body:
            return text
        # A heading such as `Explanation` parses as a name, and would fail where it runs.
        kept = tree.body
        while len(kept) > 1 and _is_mere_value(kept[-1]):
            kept = kept[:-1]
        return piece if kept is tree.body else "\n".join(piece.split("\n")[: kept[-1].end_lineno])
    return text


def _without_closing_mark(text: str) -> str:
    """`text` up to a fence's mark that closes at the end of a code line, where that is what makes it Python."""
    if "```" in text and _parsed(text) is None:
        head = text.partition("```")[0]
        if head.strip() and _parsed(head) is not None:
            return head
    return text


def _defines(text: str, name: str) -> bool:
    tree = _parsed(text)
    return tree is not None and any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
        for node in ast.walk(tree)
    )


def _only_uses(text: str, outer: str, name: str) -> bool:
    """Whether the text calls on `name` (or on `Solution`) and defines neither; a function's body may well recurse."""
    tree = None if text.lstrip("\n")[:1] in (" ", "\t") else _parsed(text)
    if tree is None or _defines(text, name):
        return False
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return name in names | attributes or outer in names


def _parsed(text: str) -> ast.Module | None:
    """The tree of a module or, where the text is indented, of a function's body; None when it is neither."""
    if not text.strip() or len(text) > _LARGEST_PARSED:
        return None
    source = _harmless(text).strip("\n")
    if source[:1] in (" ", "\t"):
        source = f"def _():\n{source}\n"
        tree = _tree(source)
        if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
            return tree
        return ast.Module(body=tree.body[0].body, type_ignores=[])
    return _tree(source)


def _harmless(text: str) -> str:
    """`text` without escapes: a warning about a bad one would be shown to the trainer, or raised there."""
    return re.sub(r"\\[^\n]", "__", text)


def _tree(source: str) -> ast.Module | None:
    try:
        return parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply for the parser
        return None


def _is_mere_value(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    if not isinstance(node, ast.Expr):
        return False
    return not any(isinstance(part, ast.Call | ast.Await | ast.Yield | ast.YieldFrom) for part in ast.walk(node))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _unindented(line: str, width: int) -> str:
    return line[min(width, _indentation(line)) :]


def _trimmed(text: str) -> str:
    lines = text.rstrip().split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    return "\n".join(lines[first:])
