"""Makes one self-contained program of guest modules: what a sandbox gets is a single small text.

Host-side only. What only people read goes (comments, docstrings, annotations, names that nobody outside uses), since
the text travels with every exec. The result depends on the sources alone: client and daemon arrive at the same text.
"""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import re
import string
import tokenize
from collections import Counter
from functools import lru_cache
from importlib.resources import files
from typing import Dict, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Set, Tuple, Union

from collimate_rl.syntax import parse

_PACKAGE = "collimate_rl.guest"
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.INDENT, tokenize.DEDENT)
_WORDS = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_STARTS = ("main", "hold", "alone", "rehearse")
_COMPOUND = frozenset("async class def elif else except finally for if try while with".split())

Place = Tuple[int, int]
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]


class Source:
    """A module's text, its tree and its tokens, each made once."""

    def __init__(self, text: str) -> None:
        self.rows = text.splitlines()
        self.tree = parse(text)
        self.nodes = list(ast.walk(self.tree))
        self.tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        self.words = Counter(token.string for token in self.tokens if token.type == tokenize.NAME)
        self.imports = [s for s in self.tree.body if isinstance(s, ast.Import) and not any(a.asname for a in s.names)]


class Renames(NamedTuple):
    """`kept` are names that some call passes by keyword; `members` short names for the classes' private ones, `shared`
    for what the modules of one program define."""

    kept: FrozenSet[str] = frozenset()
    members: Dict[str, str] = {}
    shared: Dict[str, str] = {}


def assemble(modules: Sequence[str]) -> str:
    """The text of the named guest modules in order, each seeing the names of those before it."""
    sources = [_module(name) for name in modules]
    nodes = [node for source in sources for node in source.nodes]
    kept = frozenset(node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg)
    words = sum((source.words for source in sources), Counter[str]())
    renames = Renames(
        kept=kept,
        members=_shortened((name for source in sources for name in _private_members(source)), words),
        shared=_shortened((name for source in sources for name in _own_globals(source.tree) - kept), words),
    )
    # The only annotations that are left are those of tuple classes.
    future = "from __future__ import annotations\n" if any(map(_is_tuple_class, nodes)) else ""
    head = future + _imports(sources)
    return head + "".join(_minified(source, renames) for source in sources)


@lru_cache(maxsize=None)
def _module(name: str) -> Source:
    return Source(files(_PACKAGE).joinpath(name + ".py").read_text(encoding="utf-8"))


def minified(text: str, kept: Iterable[str] = ()) -> str:
    """One module in fewer characters, its own names for others to use left alone."""
    source = Source(text)
    return _imports([source]) + _minified(source, Renames(kept=frozenset(kept)))


def _imports(sources: Sequence[Source]) -> str:
    """One statement for what the modules import by its own name at their top level."""
    names = {alias.name for source in sources for statement in source.imports for alias in statement.names}
    return "import " + ",".join(sorted(names)) + "\n" if names else ""


def _minified(source: Source, renames: Renames) -> str:
    gone = _statements_to_drop(source)
    cuts = _annotations(source)
    methods = _method_names(source)
    locals_at = _local_names(source, renames)
    lines: List[Tuple[int, str]] = []
    line, depth, previous, before, opening = "", 0, 0, "", True
    skip_to: Place = (0, 0)
    function_end: Place = (0, 0)
    names: Dict[str, str] = {}
    for token in source.tokens:
        kind, word, start = token.type, token.string, token.start
        depth += (kind == tokenize.INDENT) - (kind == tokenize.DEDENT)
        if kind == tokenize.NEWLINE:
            if line:
                lines.append((depth, re.sub(r"\breturn None$", "return", line)))
            line, previous, opening = "", 0, True
            continue
        if kind in _LAYOUT:
            continue
        if opening and start in gone:
            skip_to, line = gone[start]
        opening = False
        if start in cuts:
            skip_to = cuts[start]
        if start in locals_at:
            function_end, names = locals_at[start]
        elif start >= function_end:
            names = {}
        if start < skip_to:
            continue
        if kind == tokenize.NAME:
            if before == "." or start in methods:
                word = renames.members.get(word, word)
            else:
                word = renames.shared.get(word) or names.get(word, word)
        if kind == tokenize.NUMBER:
            word = word.replace("_", "")
        if _run_together(previous, before, kind, word):
            line += " "
        line += word
        previous, before = kind, token.string
    return _laid_out(lines)


def _run_together(previous: int, before: str, kind: int, word: str) -> bool:
    """Whether two tokens side by side would be read as one: a keyword and a string without a prefix would not."""
    if previous not in _WORDS or kind not in _WORDS:
        return False
    if previous == tokenize.STRING:
        return kind == tokenize.NUMBER or word[-1] in "'\""
    return not (keyword.iskeyword(before) and word[0] in "'\"")


def _laid_out(lines: Sequence[Tuple[int, str]]) -> str:
    """Lines, with their depths, as text: simple statements of a block on one line, on its header's if they are all."""
    joined: List[Tuple[int, str, bool]] = []
    for depth, line in lines:
        simple = line[0] != "@" and re.split(r"\W", line)[0] not in _COMPOUND
        if simple and joined and joined[-1][2] and joined[-1][0] == depth:
            joined[-1] = (depth, joined[-1][1] + ";" + line, True)
        else:
            joined.append((depth, line, simple))
    depths = [depth for depth, _, _ in joined] + [0]
    text = ""
    for n, (depth, line, simple) in enumerate(joined):
        is_whole_block = simple and n > 0 and depths[n - 1] < depth > depths[n + 1]
        text += line if is_whole_block else ("\n" if n else "") + " " * depth + line
    return text + "\n"


def _end(node: Union[ast.expr, ast.stmt]) -> Place:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _is_tuple_class(node: ast.AST) -> bool:
    """Whether a class lives by its annotations."""
    return isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "NamedTuple" for b in node.bases)


def _annotations(source: Source) -> Dict[Place, Place]:
    """Where annotations begin, at the colon or arrow in front of each, and where they end."""
    fields = {item for node in source.nodes if _is_tuple_class(node) for item in getattr(node, "body", [])}
    found = {}
    for node in source.nodes:
        annotation, mark = None, ":"
        if isinstance(node, ast.arg):
            annotation = node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            annotation, mark = node.returns, "->"
        elif isinstance(node, ast.AnnAssign) and node not in fields:
            annotation = node.annotation
        if annotation is not None:
            row = annotation.lineno
            found[(row, source.rows[row - 1].rindex(mark, 0, annotation.col_offset))] = _end(annotation)
    return found


def _statements_to_drop(source: Source) -> Dict[Place, Tuple[Place, str]]:
    """Where statements begin that only people and type checkers read: their ends, and what stands in for them."""
    typing_names = {
        alias.name
        for node in source.tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
        for alias in node.names
    }
    found: Dict[Place, Tuple[Place, str]] = {}
    for node in source.nodes:
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if not isinstance(body, list) or not body or not isinstance(body[0], ast.stmt):
                continue
            going = [s for s in body if _goes(s, typing_names) and not (_is_tuple_class(node) and _is_field(s))]
            going += source.imports if node is source.tree else []
            for statement in going:
                needed = len(going) == len(body) and statement is body[0] and not isinstance(node, ast.Module)
                stand_in = _stand_in(statement) or ("pass" if needed else "")
                found[(statement.lineno, statement.col_offset)] = (_end(statement), stand_in)
    return found


def _is_field(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AnnAssign)


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


def _method_names(source: Source) -> Set[Place]:
    """Where the names of methods stand, which are attributes and no variables."""
    return {
        (node.lineno, node.col_offset + len("def "))
        for owner in source.nodes
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef)
    }


def _private_members(source: Source) -> Set[str]:
    """Names of methods and of attributes set on `self` that begin with one underscore."""
    found: Set[str] = set()
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            found |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return {name for name in found if name[0] == "_" and name[:2] != "__"}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _own_globals(tree: ast.Module) -> Set[str]:
    """Names that the module binds at its top level, imports aside, and those by which others start it."""
    found: Set[str] = set()
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif not isinstance(statement, (ast.Import, ast.ImportFrom)):
            arguments = {a for node in ast.walk(statement) if isinstance(node, ast.Lambda) for a in ast.walk(node.args)}
            found |= {name for node in ast.walk(statement) if node not in arguments for name in _bound(node)}
    return {name for name in found if len(name) > 2 and name not in _STARTS}


def _local_names(source: Source, renames: Renames) -> Dict[Place, Tuple[Place, Dict[str, str]]]:
    """Per outermost function, from its beginning to its end, short names for what is bound in it alone."""
    outside = list(_outside_functions(source.tree))
    outer = set(renames.kept) | set(renames.shared)
    for node in outside:
        outer |= _bound(node)
    found = {}
    for function in outside:
        if not isinstance(function, _FUNCTIONS):
            continue
        bound: Set[str] = set()
        free: Set[str] = set()
        for node in ast.walk(function):
            bound |= _bound(node)
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                free |= _bound(node)
            elif isinstance(node, ast.Global):
                free |= set(node.names)
        if not isinstance(function, ast.Lambda):
            free.add(function.name)
        short = (name for name in _short_names() if name not in source.words)
        names = {name: next(short) for name in sorted(bound - free - outer) if len(name) > 1}
        found[(function.lineno, function.col_offset)] = (_end(function), names)
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


def _shortened(names: Iterable[str], words: Mapping[str, int]) -> Dict[str, str]:
    """Short names that are no word yet, the shortest for what is named most often."""
    free = ("_" + name for name in _short_names() if "_" + name not in words)
    return dict(zip(sorted(set(names), key=lambda name: (-words[name], name)), free))


def _short_names() -> Iterator[str]:
    letters = string.ascii_letters
    yield from letters
    for pair in itertools.product(letters, letters):
        if not keyword.iskeyword("".join(pair)):
            yield "".join(pair)
