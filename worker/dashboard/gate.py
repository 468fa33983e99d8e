"""What every request passes first: who asks, from where, and what the browser may do with the answer."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from worker.dashboard.listening import names_this_machine
from worker.dashboard.tokens import COOKIE, COOKIE_LASTS_S, Token

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
OPEN = ("/login", "/healthz")
"""Paths that need no token, beside `/static/`."""
MAX_TARGET = 4096


class Gate:
    """Middleware. token -- None where only this machine reaches the dashboard; then the Host header is looked at."""

    def __init__(self, app: ASGIApp, token: Token | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is answered instead of the page; None lets the request through."""
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        if len(path) + len(scope["query_string"]) > MAX_TARGET:
            return _plain("that address is too long", 414)
        if self._token is None and not names_this_machine(headers.get("host", "")):
            return _plain("this dashboard answers to localhost only, not to that Host", 421)
        if method not in ("GET", "HEAD") and not (method == "POST" and path in ("/login", "/logout")):
            return _plain("this dashboard is for reading only", 405)
        if not _from_here(headers, method):
            return _plain("another site asked for this, not you", 403)
        if self._token is None or path in OPEN or path.startswith("/static/"):
            return None
        return self._unknown(scope, headers, self._token)

    def _unknown(self, scope: Scope, headers: Headers, token: Token) -> Response | None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if given:
            if scheme.lower() == "bearer" and token.fits(given.strip()):
                return None
            return _unauthorized("that is not this dashboard's token")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token", "")
        if given:
            if not token.fits(given):
                return _unauthorized("that is not this dashboard's token")
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            return signed_in(token, local(scope["path"] + (f"?{rest}" if rest else "")), secure=is_secure(scope))
        if token.knows(cookie_of(headers)):
            return None
        if "text/html" in headers.get("accept", "") and headers.get("sec-fetch-mode", "navigate") == "navigate":
            target = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            return RedirectResponse(f"/login?next={quote(local(target), safe='')}", 303)
        return _unauthorized("a token is needed: Authorization: Bearer TOKEN")


def signed_in(token: Token, target: str, *, secure: bool) -> Response:
    """Sets the cookie and goes on to `target`, which is a path of ours.

    By a page and not by a redirect: after a link on another site a browser would follow a redirect without the cookie
    that came with it, since that is for requests of this site alone.
    """
    from markupsafe import escape

    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Signed in</title>'
        f'<meta http-equiv="refresh" content="0;url={escape(target)}">'
        f'<p>Signed in. <a href="{escape(target)}">Go on</a>'
    )
    answer = Response(page, media_type="text/html")
    answer.set_cookie(
        COOKIE, token.cookie(), max_age=COOKIE_LASTS_S, path="/", httponly=True, samesite="strict", secure=secure
    )
    return answer


def local(target: str) -> str:
    """`target` where it is a path of this dashboard, else `/`: a login must lead nowhere else."""
    fine = target.startswith("/") and not target.startswith(("//", "/\\")) and all("!" <= c <= "~" for c in target)
    return target if fine and not target.startswith(("/login", "/logout")) else "/"


def cookie_of(headers: Headers) -> str:
    """Our cookie's value, '' where there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:  # a stranger's cookie of an impossible name
        return ""
    return "" if found is None else found.value


def is_secure(scope: Scope) -> bool:
    """Whether the browser speaks TLS (to a proxy on this machine, which says so)."""
    return bool(scope.get("scheme") == "https")


def _from_here(headers: Headers, method: str) -> bool:
    """Browsers say who caused a request: other sites may lead here, and nothing else."""
    site = headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return True
    return method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"


def _plain(text: str, status: int) -> Response:
    return PlainTextResponse(text + "\n", status)


def _unauthorized(text: str) -> Response:
    return PlainTextResponse(text + "\n", 401, {"WWW-Authenticate": 'Bearer realm="collimate dashboard"'})
