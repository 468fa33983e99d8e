"""Makes one self-contained program of guest modules: what a sandbox gets is a single small text.

Host-side only. What only people read goes (comments, docstrings, annotations, the names of locals), since the text
travels with every exec. The result depends on the sources alone: client and daemon arrive at the same text.
"""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import string
import tokenize
from importlib.resources import files
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

_PACKAGE = "collimate_rl.guest"
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.INDENT, tokenize.DEDENT)
_WORDS = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

Place = Tuple[int, int]
Span = Tuple[Place, Place]


def assemble(modules: Sequence[str]) -> str:
    """The text of the named guest modules in order, each seeing the names of those before it."""
    sources = [files(_PACKAGE).joinpath(name + ".py").read_text(encoding="utf-8") for name in modules]
    trees = [ast.parse(source) for source in sources]
    kept = {node.arg for tree in trees for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg}
    taken = {word for source in sources for word in _words(source)}
    members = _shortened((name for tree in trees for name in _private_members(tree)), taken)
    shared = _shortened((name for tree in trees for name in _own_globals(tree) - kept), taken)
    parts = [minified(source, kept, members, shared) for source in sources]
    return "from __future__ import annotations\n" + "".join(parts)


def minified(source: str, kept: Set[str], members: Dict[str, str], shared: Dict[str, str]) -> str:
    """The same program in fewer characters.

    `kept` are the names that some call passes by keyword; `members` and `shared` are short names for the private names
    of classes, and for what the modules of one program define.
    """
    tree = ast.parse(source)
    typing_names = _typing_names(tree)
    gone = _statements_to_drop(tree, typing_names)
    cuts = _annotation_spans(tree, source)
    renamed = _local_names(tree, source, kept | set(shared))
    methods = {
        (node.lineno, node.col_offset + len("def "))
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef)
    }
    lines: List[str] = []
    line, depth, previous, opening = "", 0, 0, True
    skip_to: Place = (0, 0)
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, word = token.type, token.string
        depth += (kind == tokenize.INDENT) - (kind == tokenize.DEDENT)
        if kind == tokenize.NEWLINE:
            if line:
                lines.append(" " * depth + line)
            line, previous, opening = "", 0, True
            continue
        if kind in _LAYOUT:
            continue
        if opening and token.start in gone:
            skip_to, line = gone[token.start]
        opening = False
        if token.start < skip_to or any(begin <= token.start < end for begin, end in cuts):
            continue
        if kind == tokenize.NAME and (before == "." or token.start in methods):
            word = members.get(word, word)
        elif kind == tokenize.NAME and word in shared:
            word = shared[word]
        elif kind == tokenize.NAME:
            word = next((names[word] for span, names in renamed if _within(token, span) and word in names), word)
        if kind in _WORDS and previous in _WORDS:
            line += " "
        line += word
        previous, before = kind, word
    return "\n".join(lines) + "\n"


def _private_members(tree: ast.Module) -> Set[str]:
    """Names of methods and of attributes set on `self` that begin with one underscore."""
    found: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return {name for name in found if name[0] == "_" and name[:2] != "__"}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _own_globals(tree: ast.Module) -> Set[str]:
    """Names that the module binds at its top level, imports aside."""
    found: Set[str] = set()
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif not isinstance(statement, (ast.Import, ast.ImportFrom)):
            found |= {name for node in ast.walk(statement) for name in _bound(node)}
    return {name for name in found if len(name) > 2}


def _shortened(names: Iterable[str], taken: Set[str]) -> Dict[str, str]:
    free = ("_" + name for name in _short_names() if "_" + name not in taken)
    return dict(zip(sorted(set(names)), free))


def _words(source: str, span: Optional[Span] = None) -> Set[str]:
    """Every name and keyword in the source, or in a part of it."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.string for t in tokens if t.type == tokenize.NAME and (span is None or _within(t, span))}


def _place(node: Union[ast.expr, ast.stmt]) -> Span:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _within(token: tokenize.TokenInfo, span: Span) -> bool:
    return span[0] <= token.start < span[1]


def _typing_names(tree: ast.Module) -> Set[str]:
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "typing"]
    return {alias.name for node in imports for alias in node.names}


def _annotation_spans(tree: ast.AST, source: str) -> List[Span]:
    """Where annotations stand, with the colon or arrow in front of each."""
    rows = source.splitlines()
    found = []
    for node in ast.walk(tree):
        annotation, mark = None, ":"
        if isinstance(node, ast.arg):
            annotation = node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            annotation, mark = node.returns, "->"
        elif isinstance(node, ast.AnnAssign):
            annotation = node.annotation
        if annotation is not None:
            (row, column), end = _place(annotation)
            found.append(((row, rows[row - 1].rindex(mark, 0, column)), end))
    return found


def _statements_to_drop(tree: ast.Module, typing_names: Set[str]) -> Dict[Place, Tuple[Place, str]]:
    """Where statements begin that only people and type checkers read: their ends, and what stands in for them."""
    found: Dict[Place, Tuple[Place, str]] = {}
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if not isinstance(body, list) or not body or not isinstance(body[0], ast.stmt):
                continue
            going = [statement for statement in body if _goes(statement, typing_names)]
            for statement in going:
                begin, end = _place(statement)
                needed = len(going) == len(body) and statement is body[0] and not isinstance(node, ast.Module)
                found[begin] = (end, _stand_in(statement) or ("pass" if needed else ""))
    return found


def _stand_in(statement: ast.stmt) -> str:
    if isinstance(statement, ast.ImportFrom) and any(alias.name == "NamedTuple" for alias in statement.names):
        return "from typing import NamedTuple"
    return ""


def _goes(statement: ast.stmt, typing_names: Set[str]) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return (statement.module or "").startswith(_PACKAGE) or statement.module in ("__future__", "typing")
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    if isinstance(statement, ast.Assign):  # an alias for annotations
        value = statement.value.value if isinstance(statement.value, ast.Subscript) else statement.value
        return isinstance(value, ast.Name) and value.id in typing_names
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _local_names(tree: ast.Module, source: str, kept: Set[str]) -> List[Tuple[Span, Dict[str, str]]]:
    """Per outermost function, short names for what is bound in it alone."""
    outer = set(kept)
    for node in _outside_functions(tree):
        outer |= _bound(node)
    found = []
    for function in _outermost_functions(tree):
        span = _place(function)
        words = _words(source, span)
        bound: Set[str] = set()
        for node in ast.walk(function):
            bound |= _bound(node)
        if not isinstance(function, ast.Lambda):
            bound.discard(function.name)
        for node in ast.walk(function):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                bound -= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            elif isinstance(node, ast.Global):
                bound -= set(node.names)
        short = (name for name in _short_names() if name not in words)
        found.append((span, {name: next(short) for name in sorted(bound - outer) if len(name) > 1}))
    return found


def _bound(node: ast.AST) -> Set[str]:
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.ExceptHandler) and node.name:
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return set()


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything but what lies inside functions: their own nodes are the last."""
    for child in ast.iter_child_nodes(tree):
        yield child
        if not isinstance(child, _FUNCTIONS):
            yield from _outside_functions(child)


def _outermost_functions(tree: ast.AST) -> List[Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]]:
    return [node for node in _outside_functions(tree) if isinstance(node, _FUNCTIONS)]


def _short_names() -> Iterator[str]:
    letters = string.ascii_letters
    yield from letters
    for pair in itertools.product(letters, letters):
        if not keyword.iskeyword("".join(pair)):
            yield "".join(pair)
