"""The local gateway's reference page names every setting, code and tier limit that there is."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from collimate_rl.localgateway.gateway import GatewayConfig
from collimate_rl.localgateway.keys import TIERS
from tests.fixtures.fences import ROOT

PAGE = (ROOT / "docs/reference/local-gateway.md").read_text(encoding="utf-8")
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "collimate_rl/localgateway").glob("*.py"))


@pytest.mark.parametrize("name", [field.name for field in fields(GatewayConfig)])
def test_settings(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_codes() -> None:
    codes = set(re.findall(r'Refusal\(\s*\d+, "([a-z_]+)"', SOURCES)) | set(
        re.findall(r'conflict\("([a-z_]+)"', SOURCES)
    )
    codes |= set(re.findall(r'code = "([a-z_]+)" if [^\n]+ else "[a-z_]+"', SOURCES))
    assert {"unauthorized", "at_capacity", "demo_tier_limit", "template_in_use", "fork_too_large"} <= codes
    assert not {code for code in codes if f"`{code}`" not in PAGE}


@pytest.mark.parametrize("tier", TIERS.values(), ids=TIERS)
def test_tiers(tier: object) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{tier.name}`"))  # type: ignore[attr-defined]
    assert f"| {tier.fan_out} |" in row  # type: ignore[attr-defined]
    assert tier.concurrency is None or f"| {tier.concurrency} |" in row  # type: ignore[attr-defined]
