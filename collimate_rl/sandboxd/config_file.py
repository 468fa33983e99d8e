"""The `[templates.NAME]` tables of a `collimate.toml`, as Templates; a ValueError names the place of what is off."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from collimate_rl._config_tables import check_tables
from collimate_rl.sandboxd.templates import Template, check_template_name

log = logging.getLogger(__name__)
CONFIG_FILE = "collimate.toml"
_KNOWN = (*(field.name for field in fields(Template)), "egress")
_VSOCK_ONLY = {"mode": "none"}


def load_templates(named: str | None, *, environ: Mapping[str, str] = os.environ) -> dict[str, Template]:
    """The templates of the file that is named (or `$COLLIMATE_CONFIG` names), which must be there; else those of
    `collimate.toml` in the working directory, where there is one. Empty when the file has none."""
    named = named or environ.get("COLLIMATE_CONFIG") or None
    path = Path(named or CONFIG_FILE)
    if named is None and not path.is_file():
        return {}
    try:
        document = _read(path)
    except NoTomlReader as exc:
        if named is not None:
            raise
        log.warning("%s is not read: %s", path, exc)
        return {}
    check_tables(path, document)
    tables = document.get("templates", {})
    if not isinstance(tables, dict):
        raise ValueError(f"{path}: [templates] must hold a table for each template, as [templates.mine]")
    return {
        check_template_name(name): parse_template(f"{path}: [templates.{name}]", table)
        for name, table in tables.items()
    }


class NoTomlReader(ValueError):
    """This Python has no module that reads TOML."""


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise NoTomlReader(
                "Python 3.10 reads TOML with the package tomli alone: `pip install 'collimate-rl[local]'`, or run the "
                "daemon on Python 3.11 or later"
            ) from None
    try:
        with path.open("rb") as stream:
            document: dict[str, Any] = tomllib.load(stream)
    except OSError as exc:
        raise ValueError(f"the configuration file {path} cannot be read: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ValueError(f"the configuration file {path} is not TOML: {exc}") from exc
    return document


def parse_template(place: str, table: Any) -> Template:
    """One table; `place` is what messages call it."""
    if not isinstance(table, dict):
        raise ValueError(f"{place} must be a table")
    unknown = sorted(set(table) - set(_KNOWN))
    if unknown:
        raise ValueError(f"{place} has unknown keys: {', '.join(unknown)}. There are {', '.join(_KNOWN)}")
    given: dict[str, Any] = {}
    for key, value in table.items():
        if key == "egress":
            _check_egress(place, value)
        else:
            given[key] = _READERS[key](f"{place}: {key}", value)
    try:
        return Template(**given)
    except ValueError as exc:
        raise ValueError(f"{place}: {exc}") from exc


def _check_egress(place: str, value: Any) -> None:
    if value != _VSOCK_ONLY:
        raise ValueError(
            f'{place}: egress can only be {{ mode = "none" }}: a local sandbox has no way out (template is vsock-only)'
        )


def _number(place: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{place} must be a whole number, not {value!r}")
    return value


def _texts(place: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{place} must be a list of strings, not {value!r}")
    return tuple(value)


def _numbers(place: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{place} must be a list of whole numbers, not {value!r}")
    return tuple(_number(place, item) for item in value)


def _text_or_argv(place: str, value: Any) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else _texts(place, value)


def _pairs(place: str, value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ValueError(f"{place} must be a table of strings, not {value!r}")
    return tuple(value.items())


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "interpreter": _text_or_argv,
    "preload": _texts,
    "memory_mb": _number,
    "pids": _number,
    "tmpfs_mb": _number,
    "entry": _text_or_argv,
    "entry_timeout_s": _number,
    "expose_ports": _numbers,
    "data": _pairs,
    "env": _pairs,
}
