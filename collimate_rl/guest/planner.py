"""Reads test code: which names it wants from the candidate, and how it has to be changed to be planned.

The changed code serves planning and judging alike. Every assert, and every other plain statement on the test's outer
level, is guarded: while the session explores (its calls answered by placeholders) a failure there is swallowed and the
test goes on to its next call; while it judges, the failure propagates as it would have.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from typing import Any, Dict, List, Optional, Set, Tuple

_FUNCTION_KINDS = (ast.FunctionDef, ast.AsyncFunctionDef)
_UNGUARDED = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass, ast.Break, ast.Continue)


class Names:
    """`free`: global names that the code reads and nobody in it binds; `bound`: those that it binds at its top level;
    `exceptions`: names that stand where an exception class is expected; `modules`: those imported, `stars`: by `*`."""

    def __init__(
        self, free: Set[str], bound: Set[str], exceptions: Set[str], modules: Set[str], stars: List[str]
    ) -> None:
        self.free = free
        self.bound = bound
        self.exceptions = exceptions
        self.modules = modules
        self.stars = stars


def read_names(source: str, filename: str) -> Names:
    """The names of a piece of test code; SyntaxError where it is no Python."""
    tree = ast.parse(source, filename)
    read: Set[str] = set()
    bound: Set[str] = set()
    _collect(symtable.symtable(source, filename, "exec"), True, read, bound)
    modules: Set[str] = set()
    stars: List[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            if any(alias.name == "*" for alias in node.names):
                stars.append(node.module)
    return Names(read - bound, bound, _exception_names(tree), modules, stars)


def _collect(table: symtable.SymbolTable, top: bool, read: Set[str], bound: Set[str]) -> None:
    for symbol in table.get_symbols():
        name = symbol.get_name()
        binds = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        if binds and (top or symbol.is_declared_global()):
            bound.add(name)
        if symbol.is_referenced() and (symbol.is_global() or (top and not binds)):
            read.add(name)
    for child in table.get_children():
        _collect(child, False, read, bound)


def _exception_names(tree: ast.AST) -> Set[str]:
    """Names in an `except` clause, raised, or given first to a helper named like assertRaises."""
    found: Set[str] = set()
    for node in ast.walk(tree):
        places: List[Optional[ast.expr]] = []
        if isinstance(node, ast.ExceptHandler):
            places.append(node.type)
        elif isinstance(node, ast.Raise):
            places.append(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        elif isinstance(node, ast.Call) and node.args and "raises" in _called_name(node).lower():
            places.append(node.args[0])
        for place in places:
            if isinstance(place, ast.Name):
                found.add(place.id)
            elif isinstance(place, ast.Tuple):
                found |= {item.id for item in place.elts if isinstance(item, ast.Name)}
    return found


def _called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def is_builtin(name: str) -> bool:
    return hasattr(builtins, name) or name in ("__file__", "__name__", "__doc__", "__builtins__")


def reads_check(tree: ast.Module) -> Tuple[bool, bool]:
    """Whether the judge has to call `check` (it is defined and nobody calls it), and whether it takes an argument."""
    defined: Any = None
    called = False
    for node in tree.body:
        if isinstance(node, _FUNCTION_KINDS) and node.name == "check":
            defined = node
        elif not isinstance(node, (*_FUNCTION_KINDS, ast.ClassDef)):
            called = called or any(
                isinstance(inner, ast.Call) and _called_name(inner) == "check" for inner in ast.walk(node)
            )
    if defined is None or called:
        return False, False
    takes = defined.args
    return True, bool(takes.args or getattr(takes, "posonlyargs", ()) or takes.vararg)


def instrument(tree: ast.Module, per_assert: bool, first_case: int = 0) -> int:
    """Changes a module in place: assert messages dropped (they may call the candidate), statements guarded, and each
    statement on the outer level announced as a step.

    With `per_assert`, each assert on the top level, or on that of `check`, becomes a numbered case that fails alone.
    Returns the number of the next case. The code then needs `_collimate_step`, `_collimate_exploring` and the three
    names of a case in its namespace.
    """
    guard = _Guard(per_assert, first_case)
    tree.body = guard.outer(tree.body, True)
    ast.fix_missing_locations(tree)
    return guard.cases


class _Guard(ast.NodeTransformer):
    """Guards asserts wherever they stand, and on the outer level every statement that can fail."""

    def __init__(self, per_assert: bool, first_case: int) -> None:
        self.per_assert = per_assert
        self.cases = first_case

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        node.msg = None
        return _wrap(_GUARD, {}, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return self._function(node)

    def _function(self, node: Any) -> Any:
        """A test function's own level is outer level; any other function may raise on purpose, for its caller."""
        if node.name == "check" or node.name.startswith("test"):
            node.body = self.outer(node.body, node.name == "check")
        else:
            node.body = [self.visit(statement) for statement in node.body]
        return node

    def outer(self, body: List[ast.stmt], cases: bool) -> List[ast.stmt]:
        """Guards each statement of a block on the outer level; where `cases`, its asserts are cases."""
        return [self._outer_statement(statement, cases) for statement in body]

    def _outer_statement(self, node: ast.stmt, cases: bool) -> ast.stmt:
        if isinstance(node, ast.Assert):
            node.msg = None
            if not (cases and self.per_assert):
                return _wrap(_STEP, {}, node)
            self.cases += 1
            return _wrap(_CASE, {"CASE": self.cases - 1}, node)
        if isinstance(node, _UNGUARDED) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return node
        if isinstance(node, (*_FUNCTION_KINDS, ast.ClassDef)):
            changed: ast.stmt = self.visit(node)
            return changed
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith)):
            node.body = self.outer(node.body, False)
            if not isinstance(node, (ast.With, ast.AsyncWith)):
                node.orelse = self.outer(node.orelse, False)
            return _wrap(_STEP, {}, node)
        return _wrap(_STEP, {}, self.visit(node))


_GUARD = """
try:
    BODY
except Exception:
    if not _collimate_exploring():
        raise
"""
_STEP = """
try:
    _collimate_step()
    BODY
except Exception:
    if not _collimate_exploring():
        raise
"""
_CASE = """
try:
    _collimate_case(CASE)
    BODY
    _collimate_passed(CASE)
except BaseException:
    _collimate_failed(CASE)
"""


def _wrap(template: str, constants: Dict[str, int], node: ast.stmt) -> ast.stmt:
    """The template's try statement around `node`, on its line."""
    guard = ast.parse(template).body[0]
    for inner in ast.walk(guard):
        if isinstance(inner, (ast.stmt, ast.expr, ast.excepthandler)):
            ast.copy_location(inner, node)
    return _Fill(constants, node).visit(guard)  # type: ignore[no-any-return]


class _Fill(ast.NodeTransformer):
    """Puts the statement and the constants into a template's places."""

    def __init__(self, constants: Dict[str, int], node: ast.stmt) -> None:
        self.constants = constants
        self.node = node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if isinstance(node.value, ast.Name) and node.value.id == "BODY":
            return self.node
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.constants:
            return ast.copy_location(ast.Constant(value=self.constants[node.id]), node)
        return node


def wanted_names(
    pieces: List[Names], stubs: Set[str], defined: Set[str], entry: Optional[str], reference: Set[str]
) -> Tuple[Set[str], Set[str]]:
    """The names to record, and those that get a stand-in exception class.

    `pieces` are the setup and the test, in that order. A name is the candidate's when the test reads it and neither
    the tests nor the prompt define it; one that hides a builtin only when the reference (or the entry) says so.
    """
    free: Set[str] = set()
    bound: Set[str] = set()
    exceptions: Set[str] = set()
    for piece in pieces:
        free |= piece.free - bound
        bound |= piece.bound
        exceptions |= piece.exceptions
    wanted = {name for name in free if name not in defined and (not is_builtin(name) or name in reference)}
    wanted |= stubs | ({entry} if entry else set())
    stand_ins = {name for name in exceptions & wanted if name != entry}
    return wanted - stand_ins, stand_ins
