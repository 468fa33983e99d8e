"""The dashboard as a process: what it sends to Redis, who it lets in, and how it stops."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from collimate_rl.queue.batch_list import MAX_LISTED, MAX_SEARCHED, MAX_UNANSWERED
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import LocalRedis, find_servers
from tests.fixtures.dashboards import DashboardProcess
from tests.fixtures.fences import ROOT
from tests.fixtures.queue_batches import make_batch, passed, put, take
from tests.fixtures.worker_nodes import until
from worker.dashboard.tokens import COOKIE

TOKEN = "token-of-the-tests-0123"  # noqa: S105  (of a server that lives for a test)
DOC = (ROOT / "docs" / "reference" / "dashboard.md").read_text(encoding="utf-8")


def documented(heading: str) -> set[str]:
    """What stands in backticks in the first column of the table below a heading of the dashboard's reference."""
    section = DOC.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalRedis]:
    if not find_servers():
        pytest.skip("no redis server on this machine")
    with LocalRedis() as made:
        yield made


@pytest.fixture(scope="module")
def open_one(server: LocalRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    """A dashboard for this machine alone."""
    made = DashboardProcess(server.url, log=tmp_path_factory.mktemp("open") / "log")
    yield made
    made.end()


@pytest.fixture(scope="module")
def guarded(server: LocalRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    """One that others reach, with a token."""
    made = DashboardProcess(server.url, "--host", "0.0.0.0", log=tmp_path_factory.mktemp("t") / "log", token=TOKEN)  # noqa: S104
    yield made
    made.end()


class Monitor:
    """What every client of a server sends, as lists of words in capitals (the command) and as they are (the rest)."""

    def __init__(self, server: LocalRedis) -> None:
        self.sent: list[list[str]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(server.socket_path))
        self._socket.sendall(b"MONITOR\r\n")
        self._stream = self._socket.makefile("rb")
        assert self._stream.readline() == b"+OK\r\n"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            words = re.findall(r'"((?:[^"\\]|\\.)*)"', line.decode("latin-1"))
            self.sent.append([words[0].upper(), *words[1:]])

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._stream.close()
        self._socket.close()


KEYED = {"GET", "HGETALL", "HMGET", "HGET", "HLEN", "ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "XLEN", "XRANGE",
         "XREVRANGE", "PFCOUNT", "EXISTS", "MGET", "LLEN", "LRANGE", "STRLEN"}  # fmt: skip
MANY = {"MGET", "EXISTS", "PFCOUNT"}


def test_it_sends_what_is_documented_and_only_reads(server: LocalRedis, open_one: DashboardProcess) -> None:
    client = connect_commands(server.url)
    queue = BatchQueue(client)
    k = put(queue, make_batch(id="one", run="seen"))
    done = put(queue, make_batch(id="two", run="seen", k=1))
    grant = take(queue, done)
    queue.verdict(grant.hold, passed(0))
    queue.publish(grant.hold)
    queue.beat("n1", {"up": True, "slots": 4})
    before: Any = client.dbsize(), client.hgetall(f"col:state:{k}")
    monitor = Monitor(server)
    try:
        for path in (
            "/", "/?span=day", "/runs/seen", "/runs/none", "/batches", "/batches?only=zero", "/find?q=seen/one",
            "/find?q=o", f"/batches/{k}", f"/batches/{done}", f"/batches/{k}/0", f"/batches/{'0' * 32}", "/nowhere",
            f"/find?q={quote('run name/<b>')}", "/batches?run=seen&status=unanswered&q=on&show=9999999",
        ):  # fmt: skip
            assert open_one.get(path).status in (200, 303, 404), path
        cases = re.findall(r'class="case-n"[^>]*>(\d+)<', open_one.get(f"/batches/{done}/0").text)
        assert cases == ["1"], "not as details, `collimate replay` and `collimate grade` count them"
        until(lambda: any(words[0] == "HGETALL" for words in monitor.sent))
    finally:
        monitor.close()
    assert len(monitor.sent) > 50
    commands = {words[0] for words in monitor.sent}
    assert commands <= documented("What it sends")
    patterns = [re.escape(name).replace(r"\*", ".*") for name in documented("What it reads")]
    for command, *words in monitor.sent:
        if command in KEYED:
            for key in words if command in MANY else words[:1]:
                assert any(re.fullmatch(pattern, key) for pattern in patterns), (command, key)
    assert (client.dbsize(), client.hgetall(f"col:state:{k}")) == before
    # The server itself says of each command that it changes nothing.
    for name in documented("What it sends") - {"AUTH", "PING", "CLIENT", "TIME"}:
        told: Any = client.execute_command("COMMAND", "INFO", name)
        assert "readonly" in next(iter(told.values()))["flags"], name
    client.close()


def test_what_is_on_no_list_is_told_of_and_found_by_its_name(server: LocalRedis, open_one: DashboardProcess) -> None:
    """No janitor runs here, so that an answer is counted by nobody, as one is that lies too far back."""
    client = connect_commands(server.url)
    queue = BatchQueue(client)
    put(queue, make_batch(id="listed", run="reach"))
    done = put(queue, make_batch(id="unlisted", run="reach", k=1))
    grant = take(queue, done)
    queue.verdict(grant.hold, passed(0))
    queue.publish(grant.hold)
    client.close()
    lists = {name: open_one.get(f"/batches?run=reach&q={name}").text for name in ("listed", "unlisted", "other")}
    assert {name: "No batch here" in page for name, page in lists.items()} == {
        "listed": False, "unlisted": True, "other": True,
    }  # fmt: skip
    told = [page.partition('id="listed">')[2].partition("</p>")[0] for page in lists.values()]
    assert all('href="#find"' in words for words in told)
    section = DOC.split("### What is listed\n")[1].split("\n#")[0]
    for number in (MAX_UNANSWERED, MAX_SEARCHED, MAX_LISTED):
        assert all(f" {number:,}" in words for words in (*told, section)), number
    for words in ("reach/unlisted", done):
        found = open_one.get(f"/find?q={words}")
        assert (found.status, found.headers["location"]) == (303, f"/batches/{done}")
    assert open_one.get(f"/batches/{done}").text.count("unlisted") > 0


def test_a_page_costs_one_look_for_everybody(server: LocalRedis, open_one: DashboardProcess) -> None:
    """Of many requests at once, few read the queue."""
    monitor = Monitor(server)
    try:
        until(lambda: open_one.get("/").status == 200 and monitor.sent)
        threads = [threading.Thread(target=open_one.get, args=("/",)) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        monitor.close()
    assert 1 <= sum(words[:2] == ["XLEN", "col:quarantine"] for words in monitor.sent) < 15


def test_without_the_token_nothing_of_the_queue_is_told(guarded: DashboardProcess) -> None:
    page = guarded.get("/batches", accept="text/html")
    assert (page.status, page.headers["location"]) == (303, "/login?next=%2Fbatches")
    login = guarded.get(page.headers["location"])
    assert (login.status, 'name="next" value="/batches"' in login.text) == (200, True)
    for path in ("/", "/events", "/batches/0", "/find?q=x", "/nowhere"):
        assert guarded.get(path).status == 401
    assert guarded.get("/", host="queue.example").status == 401
    assert guarded.get("/healthz").text == "ok\n"


def test_a_login_lasts_until_it_is_left(guarded: DashboardProcess) -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    wrong = guarded.get("/login", "POST", f"token={'x' * 20}&next=%2Fbatches", **form)
    assert (wrong.status, 'role="alert"' in wrong.text) == (401, True)
    assert guarded.get("/login", "POST", "token=" + "x" * 5000, **form).status == 413
    right = guarded.get("/login", "POST", f"token={TOKEN}&next=//evil.example", **form)
    assert (right.status, 'content="0;url=/"' in right.text) == (200, True)
    cookie = SimpleCookie(right.headers["set-cookie"])[COOKIE]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "strict")
    held = f"{COOKIE}={cookie.value}"
    page = guarded.get("/", cookie=held)
    assert (page.status, "Sign out" in page.text) == (200, True)
    left = guarded.get("/logout", "POST", "", cookie=held)
    assert (left.status, left.headers["location"]) == (303, "/login")
    assert SimpleCookie(left.headers["set-cookie"])[COOKIE].value == ""
    assert guarded.get("/", authorization=f"Bearer {TOKEN}").status == 200


def test_a_name_that_points_here_is_not_answered_without_a_token(open_one: DashboardProcess) -> None:
    assert open_one.get("/", host="evil.example").status == 421
    assert open_one.get("/", host=f"localhost:{open_one.port}").status == 200


def test_hostile_addresses_are_answered_in_order(open_one: DashboardProcess) -> None:
    for path in (
        "/batches/..%2f..%2fetc%2fpasswd", "/static/..%2f..%2fcommand.py", "/static/%2e%2e/app.py", "/runs/%ff%00",
        "/batches?run=%00&q=%ff", f"/batches/{'0' * 32}/99999999999999999999", "/find?q=%f0%9f", "/batches?show=-1",
        "/runs/" + quote("<script>alert(1)</script>"), "/batches?q=" + quote("\"><script>alert(1)</script>"),
    ):  # fmt: skip
        answer = open_one.get(path)
        assert answer.status in (200, 303, 404), path
        assert "<script>alert" not in answer.text
    assert open_one.get("/static/dashboard.css").headers["cache-control"].startswith("public")


def test_it_stops_in_order_while_pages_listen(server: LocalRedis, tmp_path: Path) -> None:
    dashboard = DashboardProcess(server.url, "--log-format", "json", log=tmp_path / "log")
    try:
        with socket.create_connection(("127.0.0.1", dashboard.port)) as odd:
            odd.sendall(b"no request\r\n\r\n")
            odd.settimeout(60)
            assert odd.recv(100).startswith(b"HTTP/1.1 400 ")
        listening = [socket.create_connection(("127.0.0.1", dashboard.port)) for _ in range(3)]
        for one in listening:
            one.sendall(b"GET /events?live=overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
            one.settimeout(60)
            assert one.recv(100).startswith(b"HTTP/1.1 200 OK")
        assert dashboard.stop() == 0
        for one in listening:
            one.close()
        told = [json.loads(line) for line in dashboard.log.read_text().splitlines()]
        assert [(each["event"], each["level"]) for each in told] == [
            ("dashboard_served", "info"),
            ("uvicorn.error", "warning"),
        ]
        assert told[0]["url"] == dashboard.url
    finally:
        dashboard.end()
