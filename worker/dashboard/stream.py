"""Server-sent events to one page: what changed, as long as it listens. A page that doesn't read holds nobody up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from worker.dashboard.feed import Feed, Look

MAX_CLIENTS = 64
SEND_S = 20.0
"""How long a page may take to accept an event; then it is let go."""
QUIET_S = 15.0
"""After so long without an event a comment is sent, so that proxies keep the connection."""
LASTS_S = 3600.0
"""A stream ends by itself; the page opens another, and shows its token again with it."""
RETRY_MS = 3000
FULL_RETRY_MS = 30_000


class EventStream:
    """An ASGI answer. `render` gives the data of one event from a look (it may keep what it made: it is called once per
    page and look)."""

    def __init__(self, feed: Feed[Any], render: Callable[[Look[Any]], Mapping[str, Any]]) -> None:
        self._feed = feed
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        full = self._feed.watchers >= MAX_CLIENTS
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if full or scope["method"] == "HEAD":
            # 200, since a browser gives up for good on any other status.
            body = f"retry: {FULL_RETRY_MS}\nevent: full\ndata: {{}}\n\n".encode()
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
            return
        async with self._feed.watched():
            speaking = asyncio.create_task(self._speak(send))
            leaving = asyncio.create_task(_until_gone(receive))
            try:
                await asyncio.wait({speaking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                speaking.cancel()
                leaving.cancel()
                await asyncio.gather(speaking, leaving, return_exceptions=True)

    async def _speak(self, send: Send) -> None:
        async def say(body: str, *, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": body.encode(), "more_body": more}
            await asyncio.wait_for(send(message), SEND_S)

        ends = asyncio.get_running_loop().time() + LASTS_S
        await say(f"retry: {RETRY_MS}\n\n")
        serial = 0
        while not self._feed.closed and asyncio.get_running_loop().time() < ends:
            look = await self._feed.after(serial, QUIET_S)
            if look is not None:
                serial = look.serial
                await say(f"id: {serial}\nevent: look\ndata: {json.dumps(self._render(look))}\n\n")
            elif not self._feed.closed:
                await say(": still here\n\n")
        await say("", more=False)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
