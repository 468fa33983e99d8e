"""A browser that runs in a sandbox, driven from here over the DevTools protocol. Needs the extra `[browser]`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from collimate_rl.errors import CollimateError


class HasCdpUrl(Protocol):
    """A `Sandbox` or a `Session` of a gateway."""

    def cdp_url(self, *, ttl_seconds: int = ...) -> str: ...


@contextmanager
def connect_browser(sandbox_or_url: HasCdpUrl | str, *, ttl: int = 600) -> Iterator[Any]:
    """Playwright's `Browser` over the sandbox's DevTools port (9222), for the length of the context.

    `sandbox_or_url` is a sandbox, or a DevTools URL; `ttl` (seconds, at most 3600) is how long the minted URL may be
    opened. Raises `CollimateError` without playwright. Leaving the context ends the connection, not the browser.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise CollimateError(
            "driving a browser needs the playwright package. Install the extra: pip install 'collimate-rl[browser]'"
        ) from error
    url = sandbox_or_url if isinstance(sandbox_or_url, str) else sandbox_or_url.cdp_url(ttl_seconds=ttl)
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(url)
        try:
            yield browser
        finally:
            browser.close()
