"""Public names as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from docs.apisource import Item, Member

Homes = Mapping[tuple[str, str], str]
"""Where a name is defined, to the page that tells of it."""


def page(title: str, about: str, modules: Iterable[tuple[str, list[Item]]], homes: Homes, here: str) -> str:
    """One page: every item once, under the module that people import it from."""
    parts = [f"# {title}", about, "Written by `make docs` from the sources."]
    for module, items in modules:
        parts.append(f"## `{module}`")
        for item in items:
            parts += _item(item, homes, here)
    return "\n\n".join(parts) + "\n"


def _item(item: Item, homes: Homes, here: str) -> list[str]:
    parts = [f"### `{item.name}`"]
    lead = "class " if item.kind == "class" else ""
    parts.append(f"```py\n{lead}{item.signature}\n```")
    if item.text:
        parts.append(prose(item.text))
    told = [base for base in item.bases if base in homes]
    if told:
        links = ", ".join(f"[`{name}`]({_to(homes[module, name], here)}#{name.lower()})" for module, name in told)
        parts.append(f"It is a {links}, and has what that has.")
    members = list(item.members)
    for base, further in item.inherited.items():
        if base not in homes:
            members += further
    values = [_value(member) for member in members if not member.signature and (member.text or not member.given)]
    if values:
        parts.append("\n".join(values))
    parts += [_method(member) for member in members if member.signature]
    return parts


def _to(page_name: str, here: str) -> str:
    return "" if page_name == here else f"{page_name}.md"


def _value(member: Member) -> str:
    kind = f" `{member.type}`" if member.type else ""
    text = prose(" ".join(member.text.split()))
    return f"- `{member.name}`{kind}{': ' if text else ''}{text}"


def _method(member: Member) -> str:
    shown = f"#### `{member.name}`\n\n```py\n{member.signature}\n```"
    return f"{shown}\n\n{prose(member.text)}" if member.text else shown


def prose(text: str) -> str:
    """A docstring's text: its `name -- meaning` as a list; what HTML would take for a tag stands as it is."""
    text = re.sub(r"^(\w[\w, ]*) -- (.*(?:\n +\S.*)*)", _listed, text, flags=re.MULTILINE)
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else piece.replace("<", "&lt;") for piece in pieces)


def _listed(found: re.Match[str]) -> str:
    names = ", ".join(f"`{name.strip()}`" for name in found[1].split(","))
    meaning = re.sub(r"\n +", "\n  ", found[2])
    return f"- {names}: {meaning}"
