"""The dashboard as people use it: a real Chromium on a real dashboard, over a queue that a real node works on.

The server lets the dashboard in as the user that deploy/redis/users.acl has for it, so that a command it may not send
shows as a page that fails, and in the server's own list of denials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import playwright.sync_api as playwright
import pytest

from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.replies import Grant
from collimate_rl.queue.server import find_servers
from tests.fixtures.acl_users import GuardedRedis
from tests.fixtures.dashboards import Browser, DashboardProcess, Watched
from tests.fixtures.page_checks import KEYBOARD_WALK, LANDMARKS, POOR_CONTRAST, UNLABELLED
from tests.fixtures.queue_batches import make_batch, passed, put
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.worker_batches import RIGHT, SPEC, WRONG
from tests.fixtures.worker_nodes import HASTY, Node, hasty_timing, until

pytestmark = pytest.mark.usefixtures("chromium")

BANNER = "</pre></main><script>window.owned = 1; alert(1)</script><img src=x onerror='window.owned = 2; alert(2)'>"
LOUD = f"""
print({BANNER!r})
print("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x1b[2J \\u202egnp.exe")
def solve(x):
    return x + 1
"""
ENDLESS_LINE = """
print("<b>" + "A" * 5_000_000)
def solve(x):
    print("y" * 5_000_000 + "</pre><script>window.owned = 3</script>")
    return x + 1
"""


@dataclass
class World:
    """What all tests of this file share."""

    server: GuardedRedis
    queue: BatchQueue
    dashboard: DashboardProcess
    hostile: str
    """k of a batch that a node graded, whose candidates attack whoever looks at them."""

    def submit(self, *candidates: str, **fields: Any) -> str:
        given = {"spec": json.dumps(SPEC), "timeout_seconds": 20, "deadline_s": 300.0, **fields}
        batch = make_batch(candidates=candidates, k=len(candidates), **given)
        return put(self.queue, batch)


@pytest.fixture(scope="module")
def world(sandbox_daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if not find_servers():
        pytest.skip("no redis server on this machine")
    folder: Path = tmp_path_factory.mktemp("dashboard")
    with GuardedRedis(aof=True) as server:
        node = Node(
            folder, server.url_of("worker"), f"unix:{sandbox_daemon.socket_path}", processes=2, slots=8, timing=HASTY
        )
        client = connect_commands(server.url)
        dashboard = DashboardProcess(server.url_of("dashboard"), "--timing", HASTY, log=folder / "dashboard.log")
        try:
            node.start().wait_for("worker_ready", count=2)
            made = World(server, BatchQueue(client, "grade", timing=hasty_timing()), dashboard, "")
            made.hostile = made.submit(
                LOUD, ENDLESS_LINE, WRONG, run="hostile", id="b.hostile", tags={BANNER[:200]: f"\x1b[31m{BANNER[:200]}"}
            )
            until(lambda: made.queue.result(made.hostile), "the hostile batch was never answered")
            yield made
            assert dashboard.stop() == 0, dashboard.log.read_text()
            assert "Traceback" not in dashboard.log.read_text()
        finally:
            dashboard.end()
            node.end()
            client.close()


def text(watched: Watched, selector: str) -> str:
    return str(watched.page.locator(selector).first.inner_text())


def wait_for(watched: Watched, expression: str) -> None:
    """Asked from here: the page's policy lets nobody evaluate a text in it, and playwright's own waiting would."""

    def true() -> bool:
        try:
            return bool(watched.page.evaluate(expression))
        except playwright.Error as error:
            if "context was destroyed" not in error.message:  # the page is being loaded again
                raise
            return False

    until(true, f"never true on the page: {expression}")


ANSWERED = "Number(document.querySelector('.flow .fact:nth-child(6) .big').textContent.replace(/,/g, ''))"


def test_numbers_change_while_a_load_runs(browser: Browser, world: World) -> None:
    watched = browser.open(world.dashboard.url)
    wait_for(watched, "document.body.classList.contains('is-live')")
    watched.page.evaluate("window.sameDocument = true")
    before = watched.page.evaluate(ANSWERED)
    for step in range(3):
        for number in range(4):
            world.submit(RIGHT, WRONG, run="load", id=f"step{step}.prompt{number}")
        wait_for(watched, f"{ANSWERED} >= {before + 4 * (step + 1)}")
    row = "tr[data-key='load']"
    wait_for(watched, f"document.querySelector(\"{row} td[data-name='Answered']\").textContent === '12'")
    assert text(watched, f"{row} td[data-name='Mean']") == "0.5"
    assert watched.page.locator(f"{row} svg.plot").get_attribute("aria-label").startswith("Mean reward of load")
    assert watched.page.locator(f"{row} svg.plot .plot-dot, {row} svg.plot .plot-line").count() >= 1
    assert text(watched, "tr[data-key='n1'] .badge") == "Daemon up"
    assert watched.page.evaluate("window.sameDocument") is True
    assert float(text(watched, ".flow .fact:nth-child(3) .big")) > 0
    watched.check()
    watched.shoot("overview-under-load")


def test_a_batch_is_found_and_opened_by_keyboard(browser: Browser, world: World) -> None:
    k = world.submit(RIGHT, WRONG, run="finding", id="needle.7")
    until(lambda: world.queue.result(k), "it was never answered")
    watched = browser.open(world.dashboard.url)
    page = watched.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_label("Find a batch").focus()
    page.keyboard.type("finding/needle.7")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/batches/{k}")
    assert text(watched, "h1") == "needle.7"
    assert [badge.strip() for badge in page.locator("#main td .badge").all_inner_texts()] == ["passed", "wrong_answer"]
    page.get_by_role("link", name="Candidate 1: code and output").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/batches/{k}/1")
    assert text(watched, "#command") == "collimate replay finding/needle.7 --index 1"
    assert "return 1 - x" in text(watched, "[aria-label='Code']")
    assert "Node, attempt" in text(watched, "#main")
    page.get_by_role("link", name="Candidate 0").click()
    page.wait_for_url(f"**/batches/{k}/0")
    assert text(watched, ".headline .badge") == "passed"
    # A part of its name leads to the list, and the filters narrow that down.
    until(lambda: "needle.7" in world.dashboard.get("/batches?status=answered&q=eedle").text, "it was never listed")
    page.get_by_label("Find a batch").fill("eedle")
    page.keyboard.press("Enter")
    page.wait_for_url("**/batches?q=eedle")
    page.get_by_label("Only those").select_option("zero")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**only=zero**")
    assert page.locator("tbody tr").count() == 1
    page.get_by_label("Only those").select_option("infra")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**only=infra**")
    assert "No batch here" in text(watched, "#main")
    page.get_by_role("link", name="Clear").click()
    page.wait_for_url("**/batches")
    watched.check()


def test_hostile_output_is_text(browser: Browser, world: World) -> None:
    base = f"/batches/{world.hostile}"
    watched = browser.open(world.dashboard.url, base)
    assert BANNER[:60] in text(watched, "#main")
    for index in range(3):
        watched.page.goto(f"{world.dashboard.url}{base}/{index}")
        watched.shoot(f"hostile-{index}")
        assert watched.page.locator("#main script, #main img, #main style").count() == 0
        assert watched.page.evaluate("window.owned") is None
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert len(world.dashboard.get(f"{base}/{index}").text) < 300_000
        watched.check()
        if index == 0:
            shown = text(watched, "[aria-label='Output']")
            assert BANNER in shown
            assert "red \\x1b]0;title\\x07 \\x1b[2J \\u202egnp.exe" in shown
        if index == 1:
            assert "</pre><script>window.owned = 3</script>" in text(watched, "[aria-label='Output']")
    # What is asserted not to happen would be seen: the policy stops an inline script, and the page tells of it.
    watched.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned = 4'}))"
    )
    assert watched.page.evaluate("window.owned") is None
    assert watched.violations() == ["script-src-elem inline"]


def test_redis_killed_and_back(browser: Browser, world: World) -> None:
    watched = browser.open(world.dashboard.url)
    wait_for(watched, "document.body.classList.contains('is-live')")
    answered = watched.page.evaluate(ANSWERED)
    world.server.kill()
    wait_for(watched, "!document.getElementById('trouble').hidden")
    assert "Redis is away since" in text(watched, "#trouble")
    assert watched.page.evaluate(ANSWERED) == answered
    assert watched.page.evaluate(POOR_CONTRAST) == []
    assert text(watched, "footer").startswith("Last read at")
    watched.shoot("redis-away")
    other = browser.open(world.dashboard.url, f"/batches/{world.hostile}")
    assert text(other, "h1") == "Not to be read now"
    assert world.dashboard.get("/batches").status == 503
    assert world.dashboard.get("/healthz").status == 200
    world.server.start()
    wait_for(watched, "document.getElementById('trouble').hidden")
    wait_for(other, "document.querySelector('h1').textContent === 'b.hostile'")
    wait_for(watched, f"{ANSWERED} >= {answered}")
    watched.check()
    other.check()


SHOWN = ("overview", "run", "batch", "candidate")
WALKED = ("overview", "batches", "candidate")


def held(world: World) -> tuple[str, Grant]:
    """A batch that a worker of a node which is not there holds. The real node is quicker than it now and then."""
    for turn in range(50):
        k = put(world.queue, make_batch(id=f"held.{turn}", run="held", k=3), depth=10**6)
        reply = world.queue.claim(k, "o1", "n9-0-x", "n9")
        if reply.grant is not None:
            return k, reply.grant
    raise AssertionError("the node was quicker every time")


def walk(watched: Watched) -> None:
    """With Tab to everything, its focus seen. Lists that change meanwhile take presses, too."""
    wanted = watched.page.evaluate(KEYBOARD_WALK["wanted"])
    for pressed in range(10 * wanted):
        if pressed >= wanted and watched.page.evaluate(KEYBOARD_WALK["left"]) == []:
            break
        watched.page.keyboard.press("Tab")
        assert watched.page.evaluate(KEYBOARD_WALK["seen"]) == "seen"
    assert watched.page.evaluate(KEYBOARD_WALK["left"]) == []


def test_everybody_can_use_it(browser: Browser, world: World) -> None:
    """Labels, landmarks, contrast by day and night, no scrolling sideways, and everything reached by Tab with its focus
    seen."""
    k, grant = held(world)
    world.queue.verdict(grant.hold, passed(0))
    pages = {
        "overview": "/",
        "run": "/runs/hostile",
        "batches": "/batches",
        "batch": f"/batches/{world.hostile}",
        "running": f"/batches/{k}",
        "candidate": f"/batches/{world.hostile}/0",
        "none": "/batches?q=nothing.is.called.so",
        "missing": "/nowhere",
    }
    watched = browser.open(world.dashboard.url)
    grounds = set()
    for name, path in pages.items():
        watched.page.goto(world.dashboard.url + path)
        for width in (1280, 390):
            watched.page.set_viewport_size({"width": width, "height": 900})
            contrast = {}
            for scheme in ("dark", "light"):
                watched.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                contrast[scheme] = watched.page.evaluate(POOR_CONTRAST)
                grounds.add(watched.page.evaluate("getComputedStyle(document.body).backgroundColor"))
                if name in SHOWN:
                    watched.shoot(f"{name}-{scheme}-{width}")
            assert contrast == {"dark": [], "light": []}, (name, width)
            found = {
                "unlabelled": watched.page.evaluate(UNLABELLED),
                "landmarks": watched.page.evaluate(LANDMARKS),
                "sideways": watched.page.evaluate("document.documentElement.scrollWidth - innerWidth > 0"),
            }
            assert found == {"unlabelled": [], "landmarks": [], "sideways": False}, (name, width)
        if name in WALKED:
            walk(watched)
        watched.check()
    assert len(grounds) == 2, "both schemes were looked at"
    world.queue.cancel(k)
