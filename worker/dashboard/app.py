"""The dashboard as one ASGI application over one queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.numbers import DAY, Numbers, read_numbers
from worker.dashboard.feed import Feed
from worker.dashboard.gate import Gate
from worker.dashboard.pages import Pages
from worker.dashboard.render import HERE, Renderer
from worker.dashboard.tokens import Token

EVERY_S = 2.0
DAY_EVERY_S = 30.0


class Dashboard:
    """The application, and the looks that its pages share. Made inside the event loop that serves it."""

    def __init__(self, queue: BatchQueue, token: Token | None = None, *, every_s: float = EVERY_S) -> None:
        self.hour: Feed[Numbers] = Feed(lambda: read_numbers(queue), every_s=every_s)
        self.day: Feed[Numbers] = Feed(lambda: read_numbers(queue, series=DAY), every_s=DAY_EVERY_S)
        pages = Pages(queue, self.hour, self.day, Renderer(queue.queue), token)
        looking = ["GET"]  # Starlette adds HEAD
        self._app = Starlette(
            routes=[
                Route("/", pages.overview, methods=looking),
                Route("/runs/{run}", pages.run, methods=looking),
                Route("/batches", pages.batches, methods=looking),
                Route("/batches/{k}", pages.batch, methods=looking),
                Route("/batches/{k}/{index:int}", pages.candidate, methods=looking),
                Route("/find", pages.find, methods=looking),
                Route("/events", pages.events, methods=looking),
                Route("/healthz", pages.healthz, methods=looking),
                Route("/login", pages.login, methods=["GET", "POST"]),
                Route("/logout", pages.logout, methods=["POST"]),
                Mount("/static", _Static(directory=HERE / "static"), name="static"),
            ],
            middleware=[Middleware(Gate, token=token)],
            exception_handlers={404: pages.not_found},
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def close(self) -> None:
        """Ends the streams of events, so that a stop waits for none of them."""
        await self.hour.close()
        await self.day.close()

    @asynccontextmanager
    async def _lifespan(self, _app: Any) -> AsyncIterator[None]:
        yield
        await self.close()


class _Static(StaticFiles):
    """Files that may be kept by browsers: their addresses change with what is in them."""

    def file_response(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().file_response(*args, **kwargs)
        answer.headers["Cache-Control"] = "public, max-age=86400"
        return answer
