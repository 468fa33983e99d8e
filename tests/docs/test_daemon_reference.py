"""The local daemon's reference page names every limit, capability, health field and error code that there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from collimate_rl.sandboxd.config import DEFAULT_CATALOG, Limits, Template
from collimate_rl.sandboxd.service import CAPABILITIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/local-daemon.md").read_text(encoding="utf-8")
DAEMON = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "collimate_rl/sandboxd").glob("*.py"))


@pytest.mark.parametrize("name", [field.name for field in (*fields(Limits), *fields(Template))])
def test_limits_and_template_settings(name: str) -> None:
    assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE)


@pytest.mark.parametrize("name", [*CAPABILITIES, *DEFAULT_CATALOG])
def test_capabilities_and_catalog(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_error_codes() -> None:
    codes = set(re.findall(r"\b(?:4\d\d|503), \"([a-z_]+)\"", DAEMON))
    assert {"at_capacity", "no_template", "command_too_large", "bad_request"} <= codes
    assert not {code for code in codes if f"`{code}`" not in PAGE}


def test_health_fields() -> None:
    health = DAEMON[DAEMON.index("def health(self)") : DAEMON.index("def list_sessions(self)")]
    names = set(re.findall(r'^ +"([a-z_]+)": ', health, re.MULTILINE))
    assert {"status", "capabilities", "isolation"} <= names
    assert not {name for name in names if f"`{name}`" not in PAGE}
