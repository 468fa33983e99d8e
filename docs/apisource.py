"""Public names as their sources have them: signatures, fields, docstrings. Nothing is imported."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign
_Node = TypeVar("_Node", bound=ast.AST)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, kw_only=True)
class Member:
    """A method, a property or a field of a class; `signature` is empty for what is no method."""

    name: str
    signature: str
    type: str
    text: str
    given: bool = False
    """Whether it is an argument of its dataclass, and so in the class' signature."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One public name. `home` is where it is defined; `kind` is class, function or value."""

    name: str
    home: tuple[str, str]
    kind: str
    signature: str
    text: str
    bases: tuple[tuple[str, str], ...] = ()
    """Homes of the bases that are ours."""
    members: tuple[Member, ...] = ()
    inherited: dict[tuple[str, str], tuple[Member, ...]] = field(default_factory=dict)
    """By base, nearest first: what it has that nearer ones don't."""


class Source:
    """The packages below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._module = cache(self._parse)
        self._copied = cache(self._copy_with_numbers)

    def _parse(self, module: str) -> ast.Module | None:
        base = self._root.joinpath(*module.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return ast.parse(path.read_text(encoding="utf-8"))
        return None

    def _number(self, module: str, name: str) -> ast.expr | None:
        """What a constant is, where a line says it: a default of `256` tells more than one of `DEFAULT_WINDOW`."""
        found = self.find(module, name)
        if found is None or not isinstance(found[1], (ast.Assign, ast.AnnAssign)):
            return None
        value = found[1].value
        plain = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
        return value if value is not None and all(isinstance(part, plain) for part in ast.walk(value)) else None

    def _with_numbers(self, home: str, node: _Node) -> _Node:
        """A copy of the definition, with what the constants in its defaults are."""
        made: _Node = self._copied(home, node)
        return made

    def _copy_with_numbers(self, home: str, node: ast.AST) -> ast.AST:
        node = copy.deepcopy(node)
        for part in ast.walk(node):
            if isinstance(part, ast.arguments):
                part.defaults = [self._told(home, one) for one in part.defaults]
                part.kw_defaults = [one and self._told(home, one) for one in part.kw_defaults]
            elif isinstance(part, ast.AnnAssign) and part.value is not None:
                part.value = self._told(home, part.value)
        return node

    def _told(self, home: str, value: ast.expr) -> ast.expr:
        number = self._number(home, value.id) if isinstance(value, ast.Name) and value.id.isupper() else None
        return value if number is None else number

    def classes(self, module: str) -> list[str]:
        """The public classes that a module defines, in order."""
        tree = self._module(module)
        assert tree is not None, module
        return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]

    def find(self, module: str, name: str) -> tuple[str, Definition] | None:
        """The module that defines what `module` calls `name`, and its definition; None for what isn't ours."""
        tree = self._module(module)
        if tree is None:
            return None
        # What a module defines goes before what it imports, a function before its overloads' stubs.
        for node in reversed(list(_statements(tree.body))):
            if isinstance(node, (ast.ClassDef, *_FUNCTIONS)) and node.name == name:
                return module, node
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in _targets(node):
                return module, node
        for node in _statements(tree.body):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(node.module, alias.name)
        return None

    def item(self, module: str, name: str) -> Item:
        """What is public as `module.name`. `LookupError` when there is no such thing."""
        found = self.find(module, name)
        if found is None:
            raise LookupError(f"{module} has no {name}")
        home, node = found
        if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
            node = self._with_numbers(home, node)
        if isinstance(node, ast.ClassDef):
            return self._class(home, node)
        if isinstance(node, _FUNCTIONS):
            text = ast.get_docstring(node) or ""
            return Item(name=name, home=(home, node.name), kind="function", signature=signature(node, name), text=text)
        tree = self._module(home)
        assert tree is not None
        return Item(
            name=name, home=(home, name), kind="value", signature=ast.unparse(node), text=_text_below(tree.body, node)
        )

    def _class(self, home: str, node: ast.ClassDef) -> Item:
        lineage = list(self._lineage(home, node))
        seen = {member.name for member in _members(node)}
        inherited = {}
        for base_home, base in lineage[1:]:
            further = tuple(member for member in _members(base) if member.name not in seen)
            seen |= {member.name for member in further}
            inherited[(base_home, base.name)] = further
        texts: dict[str, str] = {}
        for _, base in reversed(lineage):
            texts |= {member.name: member.text for member in _members(base) if member.text}
        members = tuple(
            member if member.text else replace(member, text=texts.get(member.name, "")) for member in _members(node)
        )
        return Item(
            name=node.name,
            home=(home, node.name),
            kind="class",
            signature=_constructor(node, [base for _, base in lineage]),
            text=ast.get_docstring(node) or "",
            bases=tuple((there, base.name) for there, base in self._bases(home, node)),
            members=members,
            inherited=inherited,
        )

    def _bases(self, home: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            found = self.find(home, plain.id) if isinstance(plain, ast.Name) else None
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield found[0], found[1]

    def _lineage(self, home: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        yield home, node
        for there, base in self._bases(home, node):
            yield from self._lineage(there, self._with_numbers(there, base))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements([*node.body, *node.orelse])


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text_below(body: list[ast.stmt], node: ast.stmt) -> str:
    """The docstring of an attribute: the text right below it."""
    at = body.index(node) + 1
    below = body[at] if at < len(body) else None
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
        return " ".join(below.value.value.split())
    return ""


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, bound: bool = False) -> str:
    """`name(arguments) -> result`; one argument per line where that doesn't fit a line."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    words = [_argument(arg, default) for arg, default in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        words.insert(len(given.posonlyargs), "/")
    if bound:
        words = words[1:]
    if given.vararg:
        words.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        words.append("*")
    words += [_argument(arg, default) for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        words.append(f"**{_argument(given.kwarg, None)}")
    lead = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    return _fitted(lead + name, words, result)


def _fitted(name: str, words: list[str], result: str) -> str:
    line = f"{name}({', '.join(words)}){result}"
    if len(line) <= 110:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    word = arg.arg + (f": {ast.unparse(arg.annotation)}" if arg.annotation else "")
    if default is None:
        return word
    return f"{word}{' = ' if arg.annotation else '='}{ast.unparse(default)}"


def _decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(one.func if isinstance(one, ast.Call) else one).split(".")[-1] for one in node.decorator_list}


def _fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one


def _members(node: ast.ClassDef) -> list[Member]:
    found: dict[str, Member] = {}
    fields = "dataclass" in _decorators(node)
    for one in node.body:
        if isinstance(one, _FUNCTIONS):
            marks = _decorators(one)
            if one.name == "__init__":
                found |= {member.name: member for member in _attributes(one)}
            if one.name.startswith("_") or marks & {"overload", "setter"}:
                continue
            text = ast.get_docstring(one) or ""
            shown = "" if marks & {"property", "cached_property"} else _method(one, marks)
            kind = ast.unparse(one.returns) if not shown and one.returns else ""
            found[one.name] = Member(name=one.name, signature=shown, type=kind, text=text)
        elif isinstance(one, ast.AnnAssign):
            for name in _targets(one):
                if not name.startswith("_"):
                    text = _text_below(node.body, one)
                    kind = ast.unparse(one.annotation)
                    given = fields and not kind.startswith("ClassVar") and "init=False" not in ast.unparse(one)
                    found[name] = Member(name=name, signature="", type=kind, text=text, given=given)
        elif isinstance(one, ast.Assign):
            for name in _targets(one):
                if not name.startswith("_"):
                    text = _text_below(node.body, one)
                    found[name] = Member(name=name, signature="", type=f"= {ast.unparse(one.value)}", text=text)
    return list(found.values())


def _attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Member]:
    """What `__init__` sets and says a word about."""
    for one in init.body:
        target = (
            one.targets[0] if isinstance(one, ast.Assign) else one.target if isinstance(one, ast.AnnAssign) else None
        )
        if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            kind = ast.unparse(one.annotation) if isinstance(one, ast.AnnAssign) else ""
            if text := _text_below(init.body, one):
                yield Member(name=target.attr, signature="", type=kind, text=text)


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, marks: set[str]) -> str:
    lead = "classmethod " if "classmethod" in marks else "staticmethod " if "staticmethod" in marks else ""
    return lead + signature(node, node.name, bound="staticmethod" not in marks)


def _constructor(node: ast.ClassDef, lineage: list[ast.ClassDef]) -> str:
    """How it is made: by its `__init__`, or a dataclass' fields; the name alone where neither is its own."""
    for base in lineage:
        for one in base.body:
            if isinstance(one, ast.FunctionDef) and one.name == "__init__":
                return signature(one, node.name, bound=True)
        if "dataclass" in _decorators(base):
            return _fitted(node.name, _dataclass_words(lineage), "")
    return node.name


def _dataclass_words(lineage: list[ast.ClassDef]) -> list[str]:
    plain: dict[str, str] = {}
    keyword: dict[str, str] = {}
    for base in reversed(lineage):
        if "dataclass" not in _decorators(base):
            continue
        only = any("kw_only=True" in ast.unparse(one) for one in base.decorator_list)
        for one in _fields(base):
            name, kind = ast.unparse(one.target), ast.unparse(one.annotation)
            if kind == "KW_ONLY":
                only = True
            elif not kind.startswith("ClassVar") and "init=False" not in (ast.unparse(one.value) if one.value else ""):
                word = f"{name}: {kind}" + (f" = {_default(one.value)}" if one.value is not None else "")
                (keyword if only else plain)[name] = word
    return [*plain.values(), *(["*", *keyword.values()] if keyword else [])]


def _default(value: ast.expr) -> str:
    if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] == "field":
        for given in value.keywords:
            if given.arg == "default":
                return ast.unparse(given.value)
            if given.arg == "default_factory":
                made = ast.unparse(given.value)
                return "{}" if made == "dict" else "()" if made == "tuple" else f"{made}()"
    return ast.unparse(value)
