"""What a row's prompt defines: helpers with a full body, and stubs that the candidate is to write.

Read on the host (to put imports and helpers in front of a candidate) and in the judge (where helpers run from the
prompt's own text). A prompt is the data set's text, not the candidate's, so it may be parsed anywhere.
"""

from __future__ import annotations

import ast
import re
from typing import Any, List, Optional, Set

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Prompt:
    """`source` parses, or is empty where the prompt is no Python (a chat text); `preamble` is it without the entry.
    `stubs` are the names that the candidate is to define, `defined` the prompt's own; they are disjoint."""

    def __init__(self, source: str, preamble: str, stubs: Set[str], defined: Set[str]) -> None:
        self.source = source
        self.preamble = preamble
        self.stubs = stubs
        self.defined = defined


def read_prompt(text: str, entry: Optional[str]) -> Prompt:
    """Splits a prompt by what it defines at its top level. The entry is a stub whatever its body: it is the candidate's
    to write."""
    source = _parsing(text)
    if source is None:
        preamble = _before_entry(text, entry)
        source, tree = preamble, ast.parse(preamble)
    else:
        tree = ast.parse(source)
    stubs: Set[str] = set()
    defined: Set[str] = set()
    lines = source.split("\n")
    for node in tree.body:
        if isinstance(node, _DEFINITIONS) and (node.name == entry or _is_stub(node)):
            stubs.add(node.name)
            if node.name == entry:
                _blank(lines, node)
        else:
            defined |= _bound_names(node)
    return Prompt(source, "\n".join(lines), stubs, defined - stubs)


def _parsing(text: str) -> Optional[str]:
    """The text as Python: as it is, or with a body where it ends in a bare signature; None when it is neither."""
    for source in (text, text.rstrip() + "\n    pass\n"):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if any(not _is_inert(node) for node in tree.body):
            return source
    return None


def _is_inert(node: ast.stmt) -> bool:
    """A bare name or constant at the top level: words, or a docstring, and no program."""
    return isinstance(node, ast.Expr) and isinstance(node.value, (ast.Name, ast.Constant, ast.Tuple, ast.Attribute))


def _before_entry(text: str, entry: Optional[str]) -> str:
    """What stands above the entry's last signature, where that parses by itself, else nothing."""
    if not entry:
        return ""
    found = list(re.finditer(r"^(?:async[ \t]+)?(?:def|class)[ \t]+%s\b" % re.escape(entry), text, re.MULTILINE))
    return (_parsing(text[: found[-1].start()]) or "") if found else ""


def _is_stub(node: Any) -> bool:
    """No body but imports, a docstring, `pass`, `...`, or raising NotImplementedError; for a class, methods so."""
    if isinstance(node, ast.ClassDef):
        methods = [item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return bool(methods) and any(_is_stub(method) for method in methods)
    return all(_is_filler(statement) for statement in node.body)


def _is_filler(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Pass, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Raise):
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return False


def _blank(lines: List[str], node: Any) -> None:
    """Empties the node's lines, so that the rest keeps its line numbers."""
    first = min([node.lineno] + [decorator.lineno for decorator in node.decorator_list])
    for number in range(first - 1, node.end_lineno or node.lineno):
        lines[number] = ""


def _bound_names(node: ast.stmt) -> Set[str]:
    """The names that a top-level statement binds in the module."""
    if isinstance(node, _DEFINITIONS):
        return {node.name}
    names: Set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.add(inner.id)
        elif isinstance(inner, ast.alias):
            names.add((inner.asname or inner.name).split(".")[0])
        elif isinstance(inner, _DEFINITIONS):
            names.add(inner.name)
    return names
