"""What people are told of a node whose daemon lacks a template or is away, on real parts: server, daemon, node."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from collimate_rl.cli.app import app
from collimate_rl.errors import RunMisconfigured, Ungraded
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.sandboxd.config import DEFAULT_CATALOG
from producer import Producer
from tests.fixtures.process_tree import descendants
from tests.fixtures.sandbox_daemon import NoIsolation, RunningDaemon, start_daemon
from tests.fixtures.worker_nodes import Node, until
from worker.backend import Backend, remembering
from worker.pulse import heartbeat
from worker.settings import WorkerSettings

SPEC = {"type": "unit_test", "tests": [{"input": 1, "expected": 2}]}
RIGHT = "def solve(x):\n    return x + 1\n"
WHY = "ModuleNotFoundError: No module named 'nowhere_to_be_found'"


@contextmanager
def serving(config: Path, tables: str) -> Iterator[RunningDaemon]:
    config.write_text(tables)
    try:
        made = start_daemon("--isolation", "namespaces", "--config", str(config))
    except NoIsolation as error:
        pytest.skip(f"no isolated sandboxes on this machine: {error}")
    yield made
    if made.process.poll() is None:
        made.stop()
    shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """One that has `py`, and a template that does not come up."""
    with serving(tmp_path / "collimate.toml", '[templates.broken]\npreload = ["nowhere_to_be_found"]\n') as made:
        yield made


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[RunningDaemon]:
    """One that has lost every template since it came up: a directory that they all need is gone."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    tables = "".join(f'[templates.{name}]\ndata = {{ "/data" = "{data}" }}\n' for name in DEFAULT_CATALOG)
    with serving(tmp_path / "dead.toml", tables) as made:
        data.rmdir()
        for pid in descendants(made.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        yield made


def test_a_template_that_failed_and_a_daemon_that_is_away_are_told_to_whoever_asks(
    daemon: RunningDaemon, node: Callable[..., Node], redis_url: str
) -> None:
    worker = node(backend=f"unix:{daemon.socket_path}")
    worker.wait_for("worker_ready")
    with Producer(redis_url, run="told") as producer:
        until(lambda: "failed_templates" in producer.queue.nodes().get("n1", {}), "the node never said it")
        with pytest.raises(RunMisconfigured) as refused:
            producer.submit(template="broken", candidates=[RIGHT], spec=SPEC)
        assert "on node n1 it failed: " in str(refused.value)
        assert WHY in str(refused.value)
        found = CliRunner().invoke(app, ["doctor", "--no-trial", "--redis-url", redis_url, "--json"])
        nodes = [one for one in json.loads(found.stdout)["redis"] if one["name"] == "node n1"]
        assert [(one["state"], WHY in one["found"]) for one in nodes] == [("ok", False), ("missing", True)]

        graded = producer.submit(template="py", candidates=[RIGHT], spec=SPEC).result(60)
        assert graded.rewards() == [1.0]
        daemon.stop()
        handle = producer.submit(template="py", candidates=[RIGHT, RIGHT + "\n"], spec=SPEC, id="late", deadline_s=3)
        result = handle.result(60)
    assert [(verdict.reward, verdict.error_code) for verdict in result.results] == [(None, "expired")] * 2
    for verdict in result.results:
        told = str(verdict.detail)
        assert told.startswith("the deadline of 3 s passed ")
        assert "the sandbox daemon of node n1 could not be reached" in told
        assert f"unix:{daemon.socket_path}: cannot connect" in told
    with pytest.raises(Ungraded, match="candidate 0: the deadline of 3 s passed"):
        result.rewards()
    shown = CliRunner().invoke(app, ["trace", "told/late", "--redis", redis_url])
    assert str(result.results[1].detail) in shown.stdout


def test_a_daemon_that_lost_every_template_is_told_to_whoever_submits(dead: RunningDaemon, redis_url: str) -> None:
    backend = Backend(f"unix:{dead.socket_path}")
    state = until(lambda: (found := backend.look()).templates == () and found, "it has templates")
    assert (state.up, set(state.failed)) == (False, set(DEFAULT_CATALOG))
    settings = WorkerSettings(node="n1", backend=f"unix:{dead.socket_path}")
    with Producer(redis_url, run="told") as producer, closing(connect_commands(redis_url)) as client:
        queue = BatchQueue(client)
        queue.beat("n1", heartbeat(settings, state, 1))
        with pytest.raises(RunMisconfigured, match=r"on node n1 it failed: .*there is no directory.*there are: none"):
            producer.submit(template="py", candidates=[RIGHT], spec=SPEC)
        # Where it had them before, it may get them back: whoever submits is told, and waits.
        before = replace(state, up=True, templates=("py",), failed={})
        queue.beat("n1", heartbeat(settings, remembering(state, before), 1))
        producer.submit(template="py", candidates=[RIGHT], spec=SPEC)
        assert "there is no directory" in str(producer.unserved)
