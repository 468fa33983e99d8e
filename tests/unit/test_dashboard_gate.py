"""Who gets to see the dashboard, and what browsers may do with its pages."""

from __future__ import annotations

import asyncio
import socket
import sys
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from starlette.responses import PlainTextResponse

from collimate_rl.queue.batches import BatchQueue
from tests.fixtures.asgi import ask
from tests.fixtures.dashboards import Answer
from worker.__main__ import main
from worker.dashboard.app import Dashboard
from worker.dashboard.command import token_of
from worker.dashboard.gate import Gate, local
from worker.dashboard.listening import is_loopback, listen, names_this_machine
from worker.dashboard.tokens import COOKIE, COOKIE_LASTS_S, Token

WORDS = "correct-horse-battery"
ANYWHERE = "0.0.0.0"  # noqa: S104  (what must be refused)
HTML = {"accept": "text/html,*/*", "sec_fetch_mode": "navigate"}


async def page(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("the page")(scope, receive, send)


def get(path: str = "/", token: Token | None = None, method: str = "GET", **headers: str) -> Answer:
    return asyncio.run(ask(Gate(page, token), path, method, **headers))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8600", "127.0.0.1:1", "127.8.8.8", "[::1]:8600", "[::1]"])
def test_this_machines_names_are_answered(host: str) -> None:
    assert get(host=host).text == "the page"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "", "[::1", "localhost:x"],
)
def test_a_name_that_was_made_to_point_here_is_not(host: str) -> None:
    assert get(host=host).status == 421
    # With a token that is what counts: behind a proxy the name is the proxy's.
    assert get(host=host, token=Token(WORDS), authorization=f"Bearer {WORDS}").status == 200


def test_every_answer_carries_the_policy() -> None:
    for answer in (get(), get(host="evil.example"), get(token=Token(WORDS))):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_other_sites_may_lead_here_and_nothing_else() -> None:
    assert get(sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200
    for mode in ("no-cors", "cors", "websocket"):
        assert get(sec_fetch_site="cross-site", sec_fetch_mode=mode).status == 403
        assert get(sec_fetch_site="same-site", sec_fetch_mode=mode).status == 403
    assert get("/login", method="POST", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 403
    assert get(sec_fetch_site="same-origin", sec_fetch_mode="cors").status == 200


def test_it_is_for_reading() -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert get(method=method).status == 405
    assert get("/" + "x" * 5000).status == 414


def test_without_the_token_there_is_a_login_for_people_and_a_refusal_for_programs() -> None:
    token = Token(WORDS)
    asked = get("/batches?run=a&only=zero", token, **HTML)
    assert (asked.status, asked.headers["location"]) == (303, "/login?next=%2Fbatches%3Frun%3Da%26only%3Dzero")
    refused = get("/events", token, accept="text/event-stream")
    assert (refused.status, refused.headers["www-authenticate"][:6]) == (401, "Bearer")
    assert get("/events", token, accept="text/html", sec_fetch_mode="cors").status == 401
    for path in ("/login", "/healthz", "/static/dashboard.css"):
        assert get(path, token).status == 200
    for path in ("/static", "/loginx", "//static/", "/healthz/x"):
        assert get(path, token).status == 401


def test_the_token_is_taken_as_a_bearer() -> None:
    token = Token(WORDS)
    assert get(token=token, authorization=f"Bearer {WORDS}").status == 200
    assert get(token=token, authorization=f"bearer {WORDS}").status == 200
    for wrong in ("Bearer x", f"Basic {WORDS}", f"Bearer {WORDS}x", f"Bearer {WORDS[:-1]}", "Bearer \u00e9"):
        assert get(token=token, authorization=wrong, **HTML).status == 401


def test_a_login_is_read_no_further_than_a_token_may_be_long() -> None:
    dashboard = Dashboard(BatchQueue(fakeredis.FakeRedis(), "grade"), Token(WORDS))

    def login(length: str, body: bytes, **headers: str) -> int:
        return asyncio.run(ask(dashboard, "/login", "POST", body, content_length=length, **headers)).status

    assert login("32", b"token=not-that-one-but-as-long-x") == 401
    assert login("5000", b"token=" + b"x" * 4994) == 413
    # A body in chunks goes on whatever length stands beside it.
    assert login("10", b"token=" + b"x" * 100_000, transfer_encoding="chunked") == 413


def cookie_of(answer: Answer) -> Any:
    return SimpleCookie(answer.headers["set-cookie"])[COOKIE]


def test_the_token_in_an_address_becomes_a_cookie_and_leaves_the_address() -> None:
    token = Token(WORDS)
    answer = get(f"/batches?run=a&token={WORDS}", token, **HTML)
    assert answer.status == 200
    assert 'content="0;url=/batches?run=a"' in answer.text
    assert WORDS not in answer.text + str(answer.headers)
    held = cookie_of(answer)
    assert (held["httponly"], held["samesite"], held["path"], held["secure"]) == (True, "strict", "/", "")
    assert get("/", token, cookie=f"{COOKIE}={held.value}").status == 200
    assert get("/", token, cookie=f"other=1; {COOKIE}={held.value}; more=2").status == 200
    assert get("/?token=wrong", token, **HTML).status == 401


def test_a_cookie_is_the_tokens_own_and_ends() -> None:
    now = 1_000_000.0
    token = Token(WORDS, clock=lambda: now)
    cookie = token.cookie()
    assert token.knows(cookie)
    assert not Token("another-secret-of-ours", clock=lambda: now).knows(cookie)
    ends, _, signature = cookie.partition(".")
    for forged in (
        "",
        ".",
        ends,
        f"{int(ends) + 1}.{signature}",
        f"{ends}.{signature[:-1]}",
        f"9e9.{signature}",
        "\ud800.",
    ):
        assert not token.knows(forged)
    now += COOKIE_LASTS_S + 1
    assert not token.knows(cookie)


@pytest.mark.parametrize("secret", ["short", "x" * 15, "with a blank in it....", "\u00e9" * 20])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="at least 16 characters"):
        Token(secret)


def test_a_login_leads_nowhere_else() -> None:
    for target in (
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "",
        "javascript:1",
        "/a\nb",
        "/login",
        "x",
    ):
        assert local(target) == "/"
    assert local("/batches?run=a%2Fb") == "/batches?run=a%2Fb"


def test_addresses_of_this_machine() -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::1%lo"):
        assert is_loopback(address)
    for address in (ANYWHERE, "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost", "", "fe80::1%eth0"):
        assert not is_loopback(address)
    assert not names_this_machine("localhost:")


def test_it_listens_beyond_this_machine_with_a_token_only() -> None:
    with pytest.raises(ValueError, match=r"refuses to listen on 0\.0\.0\.0 without a token"):
        listen(ANYWHERE, 0, guarded=False)
    with listen(ANYWHERE, 0, guarded=True) as listening:
        assert listening.getsockname()[1] > 0
    with listen("localhost", 0, guarded=False) as listening:
        assert is_loopback(listening.getsockname()[0])
        with pytest.raises(ValueError, match="cannot listen on"):
            listen(listening.getsockname()[0], listening.getsockname()[1], guarded=False)
    with pytest.raises(ValueError, match="names no address"):
        listen("no.such.host.invalid", 0, guarded=True)


def test_where_a_token_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{WORDS}-file\n")
    environ = {"COLLIMATE_DASHBOARD_TOKEN": f"{WORDS}-env"}

    def fits(found: Token | None, end: str) -> bool:
        return found is not None and found.fits(WORDS + end)

    assert fits(token_of(WORDS, str(file), environ), "")
    assert fits(token_of(None, str(file), environ), "-file")
    assert fits(token_of(None, None, environ), "-env")
    assert token_of(None, None, {}) is None
    with pytest.raises(ValueError, match="cannot be read"):
        token_of(None, str(tmp_path / "none"), environ)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["dashboard", "--host", ANYWHERE], "without a token"),
        (["dashboard", "--host", ANYWHERE, "--token", "short"], "at least 16"),
        (["dashboard", "--port", "many"], "--port must be a number"),
        (["dashboard", "--port", "65536"], "--port must be a number"),
        (["dashboard", "--token-file", "/nowhere"], "cannot be read"),
        (["status", "--port", "1"], "--port goes with dashboard, not with status"),
    ],
    ids=["open", "short token", "no number", "too high", "no file", "other command"],
)
def test_what_is_refused_ends_with_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLLIMATE_DASHBOARD_TOKEN", raising=False)
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_without_its_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "worker.dashboard.command", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["dashboard"]) == 2
    assert "the dashboard needs uvicorn: pip install 'collimate-rl[dashboard]'" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["dashboard", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1 port" in capsys.readouterr().err
