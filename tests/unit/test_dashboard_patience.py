"""Who holds a connection to the dashboard and asks nothing takes nobody else's place; on uvicorn itself."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.fixtures.worker_nodes import PATIENCE_S
from worker.dashboard.patience import Patience

PLACES = 8
STALLED = {
    "nothing at all": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-",
    "half a body": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf",
    "half of the next": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
}


class Answering:
    """In place of a dashboard: `/slow` is answered after a while, a form when its body is there."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        if scope["method"] == "POST":
            while (message := await receive()).get("more_body"):
                pass
            if message["type"] == "http.disconnect":
                return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/slow":
            self.asked.set()
            await self.release.wait()
        await send({"type": "http.response.body", "body": b"whole"})

    async def close(self) -> None:
        self.release.set()


async def said(port: int, request: bytes) -> bytes:
    """All that the server says until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def scene(patience: Patience, requests: list[bytes], then: bytes) -> tuple[list[bytes], bytes]:
    """What clients with these requests hear beside a slow answer, and what one hears that comes when they are gone."""
    import uvicorn

    from worker.dashboard.command import _Server

    app = Answering()
    config = uvicorn.Config(app, log_level="critical", lifespan="off", http="h11", limit_concurrency=PLACES, ws="none")
    server = _Server(config, app, patience)  # type: ignore[arg-type]
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        slow = asyncio.create_task(said(port, b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        await asyncio.wait_for(app.asked.wait(), PATIENCE_S)
        heard = await asyncio.gather(*(said(port, request) for request in requests))
        late = await said(port, then)
        assert not slow.done()
        app.release.set()
        assert b"whole" in await slow
        server.should_exit = True
        await asyncio.wait_for(serving, PATIENCE_S)
    return heard, late


def test_those_that_stand_still_are_let_go_and_an_answer_that_takes_long_is_not() -> None:
    pytest.importorskip("uvicorn", reason="the extra [dashboard] is not installed")
    whole = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    heard, late = asyncio.run(scene(Patience(PLACES, patience_s=0.4), list(STALLED.values()), whole))
    answered = {name: text.count(b"whole") for name, text in zip(STALLED, heard, strict=True)}
    assert answered == {"nothing at all": 0, "half a head": 0, "half a body": 0, "half of the next": 1}
    assert b"whole" in late


def test_a_crowd_is_waited_for_less() -> None:
    pytest.importorskip("uvicorn", reason="the extra [dashboard] is not installed")
    whole = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    crowd = [STALLED["half a head"]] * PLACES
    heard, late = asyncio.run(scene(Patience(PLACES, patience_s=1e9, crowded_s=0.3), crowd, whole))
    assert heard == [b""] * PLACES
    assert b"whole" in late
