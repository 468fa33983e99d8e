"""The pages: each reads a bounded lot, in a thread, and fills a template."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from collimate_rl.errors import CollimateError
from collimate_rl.protocol.bounds import is_k
from collimate_rl.queue.batch_list import MAX_LISTED, MAX_SEARCHED, MAX_UNANSWERED, list_batches
from collimate_rl.queue.batch_view import find_k, read_batch
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.numbers import Numbers
from worker.dashboard import batch_pages, gate
from worker.dashboard.feed import Feed, Look
from worker.dashboard.render import Renderer
from worker.dashboard.stream import EventStream
from worker.dashboard.tokens import COOKIE, Token

T = TypeVar("T")
READERS = 4
"""Pages of batches that are read side by side; further ones wait their turn."""
MAX_FORM = 4096
PAGE = 50
STATUSES = (
    "unanswered", "open", "running", "answered", "graded", "partial", "expired", "cancelled", "quarantined", "failed",
)  # fmt: skip
MOST = {"unanswered": MAX_UNANSWERED, "answered": MAX_SEARCHED, "listed": MAX_LISTED}
"""How far a list of batches reaches."""
TROUBLES = {"infra": "with infra errors", "zero": "with zeros", "any": "with either"}


class Pages:
    """Handlers over one queue. hour, day -- the shared looks, of the last hour and of the last 24."""

    def __init__(
        self, queue: BatchQueue, hour: Feed[Numbers], day: Feed[Numbers], renderer: Renderer, token: Token | None
    ) -> None:
        self._queue = queue
        self._hour = hour
        self._day = day
        self._renderer = renderer
        self._token = token
        self._turn = asyncio.Semaphore(READERS)

    async def overview(self, request: Request) -> Response:
        span, look = await self._span(request)
        return self._page(request, "overview.html", look, span=span, live="" if span == "day" else "overview")

    async def run(self, request: Request) -> Response:
        span, look = await self._span(request)
        name = request.path_params["run"]
        run = self._renderer.run_of(look, name)
        status = 404 if run is None and look.numbers is not None and not look.trouble else 200
        live = "" if span == "day" or run is None else f"run:{name}"
        return self._page(request, "run.html", look, status, name=name, run=run, span=span, live=live)

    async def batches(self, request: Request) -> Response:
        look = await self._hour.look()
        asked = {name: request.query_params.get(name, "").strip()[:128] for name in ("run", "status", "only", "q")}
        asked["status"] = asked["status"] if asked["status"] in STATUSES else ""
        asked["only"] = asked["only"] if asked["only"] in TROUBLES else ""
        show = min(MAX_LISTED, max(PAGE, _number(request.query_params.get("show", ""), PAGE)))
        lines, trouble = await self._read(
            lambda: list_batches(
                self._queue,
                run=asked["run"] or None,
                status=asked["status"] or None,
                trouble=asked["only"] or None,
                search=asked["q"],
                limit=min(MAX_LISTED, show + 1),
            )
        )
        found = lines or []
        following = {name: value for name, value in asked.items() if value}
        more = urlencode({**following, "show": show + PAGE}) if len(found) > show else ""
        return self._page(
            request, "batches.html", look, 503 if trouble else 200, lines=found[:show], asked=asked, more=more,
            trouble=trouble, statuses=STATUSES, troubles=TROUBLES, capped=len(found) >= MAX_LISTED, live="",
            most=MOST, now=time.time(),
        )  # fmt: skip

    async def find(self, request: Request) -> Response:
        """One batch by its key or as run/id, else the list of those whose names hold the words."""
        words = request.query_params.get("q", "").strip()[:300]
        if not words:
            return RedirectResponse("/batches", 303)

        def look_up() -> str:
            try:
                return find_k(self._queue, words) or ""
            except ValueError:  # neither a key nor run/id: a part of a name, then
                return ""

        k, _ = await self._read(look_up)
        if k:
            return RedirectResponse(f"/batches/{k}", 303)
        run, slash, identity = words.partition("/")
        query = urlencode({"run": run, "q": identity} if slash else {"q": words})
        return RedirectResponse(f"/batches?{query}", 303)

    async def batch(self, request: Request) -> Response:
        return await self._batch(request, "batch.html", None)

    async def candidate(self, request: Request) -> Response:
        return await self._batch(request, "candidate.html", int(request.path_params["index"]))

    async def _batch(self, request: Request, template: str, index: int | None) -> Response:
        look = await self._hour.look()
        k = request.path_params["k"]
        batch, trouble = await self._read(lambda: read_batch(self._queue, k)) if is_k(k) else (None, "")
        if batch is None or (index is not None and index >= batch.n):
            what = "batch" if batch is None else "candidate"
            status = 503 if trouble else 404
            return self._page(request, "missing.html", look, status, trouble=trouble, k=k, what=what, live="")
        if index is None:
            start = max(0, _number(request.query_params.get("from", ""), 0))
            values: Mapping[str, Any] = batch_pages.batch_values(batch, start)
        else:
            values = batch_pages.candidate_values(batch, index)
        return self._page(request, template, look, live="", **values)

    async def events(self, request: Request) -> Response:
        live = request.query_params.get("live", "")[:256]
        return EventStream(self._hour, lambda look: self._renderer.event(look, live))  # type: ignore[return-value]

    async def healthz(self, _request: Request) -> Response:
        """That this process answers; of the queue it says nothing."""
        return PlainTextResponse("ok\n")

    async def login(self, request: Request) -> Response:
        if self._token is None:
            return RedirectResponse("/", 303)
        target, wrong = gate.local(request.query_params.get("next", "/")), False
        if request.method == "POST":
            body = b""
            async for part in request.stream():  # not by its declared length, which one in chunks need not keep to
                body += part
                if len(body) > MAX_FORM:
                    return PlainTextResponse("too long\n", 413)
            form = parse_qs(body.decode("utf-8", "replace"))
            target = gate.local(form.get("next", ["/"])[0])
            if self._token.fits(form.get("token", [""])[0].strip()):
                return gate.signed_in(self._token, target, secure=gate.is_secure(request.scope))
            wrong = True
        page = self._renderer.page("login.html", target=target, wrong=wrong)
        return HTMLResponse(page, 401 if wrong else 200)

    async def logout(self, _request: Request) -> Response:
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    async def not_found(self, request: Request, _error: Exception) -> Response:
        look = await self._hour.look()
        return self._page(request, "missing.html", look, 404, trouble="", k="", what="page", live="")

    async def _span(self, request: Request) -> tuple[str, Look[Numbers]]:
        if request.query_params.get("span") == "day":
            return "day", await self._day.look()
        return "hour", await self._hour.look()

    async def _read(self, read: Callable[[], T]) -> tuple[T | None, str]:
        """What was read, and what was in the way of it."""
        async with self._turn:
            try:
                return await asyncio.to_thread(read), ""
            except CollimateError as error:
                return None, error.message

    def _page(
        self, request: Request, template: str, look: Look[Numbers], status: int = 200, **values: Any
    ) -> HTMLResponse:
        page = self._renderer.page(
            template, look=look, path=request.scope["path"], guarded=self._token is not None, **values
        )
        return HTMLResponse(page, status)


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else default
