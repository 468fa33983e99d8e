"""`connect_browser` on a stand-in for playwright: which URL it opens, and that it lets go of it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from collimate_rl import CollimateError, connect_browser


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    events: list[str] = []

    def connect_over_cdp(url: str) -> Any:
        events.append(url)
        return SimpleNamespace(close=lambda: events.append("closed"))

    @contextmanager
    def sync_playwright() -> Any:
        yield SimpleNamespace(chromium=SimpleNamespace(connect_over_cdp=connect_over_cdp))

    module = ModuleType("playwright.sync_api")
    module.sync_playwright = sync_playwright  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "playwright", ModuleType("playwright"))
    monkeypatch.setitem(sys.modules, "playwright.sync_api", module)
    return events


def test_a_sandboxs_browser_or_a_url(seen: list[str]) -> None:
    sandbox = SimpleNamespace(cdp_url=lambda *, ttl_seconds: f"wss://minted/{ttl_seconds}")
    for given in (sandbox, "wss://given"):
        with connect_browser(given, ttl=30):
            pass
    assert seen == ["wss://minted/30", "closed", "wss://given", "closed"]


def test_it_lets_go_when_the_caller_fails(seen: list[str]) -> None:
    with pytest.raises(KeyError), connect_browser("wss://given"):
        raise KeyError
    assert seen[-1] == "closed"


def test_without_playwright_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright", None)
    monkeypatch.delitem(sys.modules, "playwright.sync_api", raising=False)
    with pytest.raises(CollimateError, match=r"\[browser\]"), connect_browser("wss://given"):
        pass
