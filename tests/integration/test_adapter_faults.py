"""Every adapter under every fault, inline and queued: over real sockets, real daemons, a real gateway and a real Redis.

What may pass is raised, or the framework's word for no verdict; what no retry heals is raised whatever the policy. None
of it is ever a reward.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from collimate_rl.errors import CollimateError, RunMisconfigured
from collimate_rl.grading.inline import InlineGrader
from collimate_rl.hooks import scoring
from collimate_rl.hooks.policy import code_of
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.protocol import infra_verdict
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import LocalRedis
from collimate_rl.transport import connect
from producer.producer import Producer
from producer.wiring import close_graders
from tests.fixtures.adapter_calls import CALLS, PACKAGES, RIGHT, WRONG, call
from tests.fixtures.local_gateways import start_gateway
from tests.fixtures.queue_batches import make_batch, put
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.scripted_server import Behaviour, ScriptedServer, hang_up, refuse
from tests.fixtures.tiny_worker import TinyWorker
from tests.fixtures.worker_nodes import until

SLEEPY = "```python\nimport time\ntime.sleep(20)\ndef solve(x):\n    return x * x\n```"


class World:
    """What faults are made of; `set` sets a setting of the environment until the test is over."""

    def __init__(self, patch: pytest.MonkeyPatch, daemon: RunningDaemon, redis_url: str, folder: Path) -> None:
        self.patch = patch
        self.daemon = daemon
        self.redis_url = redis_url
        self.folder = folder

    def set(self, **settings: str) -> None:
        for name, value in settings.items():
            self.patch.setenv(f"COLLIMATE_{name.upper()}", value)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, sandbox_daemon: RunningDaemon, shared_server: str) -> Iterator[World]:
    """Without retries of the client's, the grader's and the hook's own: those are tested where they are."""
    for name in (*HookSettings.__dataclass_fields__, "serve_socket", "serve_url", "base_url"):
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)
    monkeypatch.setattr("collimate_rl.hooks.wiring.InlineGrader", partial(InlineGrader, attempts=1))
    monkeypatch.setattr("collimate_rl.hooks.wiring.connect", partial(connect, retries=0))
    client = connect_commands(shared_server)
    client.flushall()
    client.close()
    with tempfile.TemporaryDirectory(prefix="col-f-", dir="/tmp") as folder:
        made = World(monkeypatch, sandbox_daemon, shared_server, Path(folder))
        made.set(infra_budget_s="0", run="faults", redis_url=shared_server)
        yield made
        close_graders()


# -- inline: what the daemon's end does


@contextmanager
def scripted(world: World, behaviour: Behaviour) -> Iterator[None]:
    with ScriptedServer(world.folder / "s.sock") as server:
        server.default = behaviour
        world.set(serve_socket=str(world.folder / "s.sock"))
        yield


@contextmanager
def down(world: World) -> Iterator[None]:
    world.set(serve_socket=str(world.folder / "nobody.sock"))
    yield


@contextmanager
def late(world: World) -> Iterator[None]:
    world.set(serve_socket=world.daemon.socket_path, deadline_s="0.3")
    yield


@contextmanager
def unknown_template(world: World) -> Iterator[None]:
    world.set(serve_socket=world.daemon.socket_path, template="no-such-template")
    yield


@contextmanager
def unknown_key(world: World) -> Iterator[None]:
    with ExitStack() as cleanup:
        gateway = start_gateway(cleanup, backend=f"unix:{world.daemon.socket_path}")
        world.set(api_key="clm_stranger", base_url=gateway.base_url)
        yield


# -- queued: what a worker answers, the queue refuses, and the server does


@contextmanager
def answered(world: World, code: str) -> Iterator[None]:
    def every_candidate(batch: object) -> list[object]:
        return [infra_verdict(index, code, f"said {code}") for index in range(len(batch.candidates))]  # type: ignore[attr-defined]

    with TinyWorker(world.redis_url, every_candidate):  # type: ignore[arg-type]
        yield


@contextmanager
def nobody_answers(world: World) -> Iterator[None]:
    world.set(deadline_s="0.5")
    yield


@contextmanager
def cancelled(world: World) -> Iterator[None]:
    """Somebody cancels whatever the run has on the queue, until the fault is over."""
    over = False
    queue = BatchQueue(connect_commands(world.redis_url), "grade")

    def cancel_on() -> None:
        while not over:
            for k in queue.inflight("faults"):
                queue.cancel(k)
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        cancelling = pool.submit(cancel_on)
        try:
            yield
        finally:
            over = True
            cancelling.result(60)
            queue.client.close()


@contextmanager
def no_room(world: World, limit: str) -> Iterator[None]:
    """Another batch of the run takes the only place, in the queue (depth) or in the run's window."""
    world.set(deadline_s="0.5")
    world.patch.setattr("producer.wiring.DEFAULT_WINDOW", 1 if limit == "window" else 256)
    if limit == "depth":
        world.patch.setattr("producer.wiring.Producer", partial(Producer, depth=1))
    queue = BatchQueue(connect_commands(world.redis_url), "grade")
    put(queue, make_batch(run="faults"))
    yield
    queue.client.close()


@contextmanager
def no_such_server(world: World) -> Iterator[None]:
    world.set(redis_url=f"unix://{world.folder}/nobody.sock")
    yield


@contextmanager
def another_template(world: World) -> Iterator[None]:
    queue = BatchQueue(connect_commands(world.redis_url), "grade")
    queue.beat("a-node", {"templates": ["py"]})
    world.set(template="no-such-template")
    yield
    queue.client.close()


Fault = Callable[[World], AbstractContextManager[None]]

PASSING: dict[str, tuple[str, Fault, str]] = {
    "the backend is down": ("inline", down, "unreachable"),
    "at capacity for longer than the budget": (
        "inline",
        partial(scripted, behaviour=refuse(503, "at_capacity")),
        "at_capacity",
    ),
    "draining": ("inline", partial(scripted, behaviour=refuse(503, "draining")), "draining"),
    "the connection breaks": ("inline", partial(scripted, behaviour=hang_up), "ambiguous"),
    "the result is late": ("inline", late, "expired"),
    "queued, the backend is down": ("queued", partial(answered, code="unreachable"), "unreachable"),
    "queued, at capacity": ("queued", partial(answered, code="at_capacity"), "at_capacity"),
    "queued, draining": ("queued", partial(answered, code="draining"), "draining"),
    "queued, quarantined": ("queued", partial(answered, code="quarantined"), "quarantined"),
    "queued, the result is late": ("queued", nobody_answers, "expired"),
    "queued, the batch is cancelled": ("queued", cancelled, "cancelled"),
    "queued, the queue is full": ("queued", partial(no_room, limit="depth"), "queue_full"),
    "queued, the window is full": ("queued", partial(no_room, limit="window"), "expired"),
    "queued, Redis is down": ("queued", no_such_server, "redis_unavailable"),
}
FATAL: dict[str, tuple[str, Fault, str]] = {
    "wrong template": ("inline", unknown_template, "no_template"),
    "unauthorized": ("inline", unknown_key, "unauthorized"),
    "queued, wrong template": ("queued", another_template, "no_template"),
    "queued, wrong template at the worker": ("queued", partial(answered, code="no_template"), "no_template"),
    "queued, unauthorized": ("queued", partial(answered, code="unauthorized"), "unauthorized"),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_may_pass_is_raised_or_no_verdict_and_no_reward(world: World, fault: str) -> None:
    way, enter, code = PASSING[fault]
    right, wrong = (SLEEPY, SLEEPY) if fault == "the result is late" else (RIGHT, WRONG)

    def ask(framework: str) -> None:
        answered = call(framework, PACKAGES[way], [right, wrong])
        assert answered.rewards == [None, None], framework
        assert set(answered.codes) == {code}, framework
        with pytest.raises(CollimateError) as caught:
            call(framework, PACKAGES[way], [right], neutral=False)
        assert caught.value.is_infra, framework
        assert code_of(caught.value) == code, framework
        assert not isinstance(caught.value, RunMisconfigured), framework

    with enter(world), ThreadPoolExecutor(len(CALLS)) as pool:
        list(pool.map(ask, CALLS))


@pytest.mark.parametrize("neutral", [False, True])
@pytest.mark.parametrize("fault", FATAL)
def test_what_no_retry_heals_is_raised_whatever_the_policy(world: World, fault: str, neutral: bool) -> None:
    way, enter, code = FATAL[fault]
    world.set(infra_budget_s="20")  # of which nothing is spent
    with enter(world):
        for framework in CALLS:
            with pytest.raises(RunMisconfigured) as caught:
                call(framework, PACKAGES[way], [RIGHT, WRONG], neutral=neutral)
            assert caught.value.error_code == code, framework


def test_a_redis_that_dies_while_answers_are_awaited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "DEADLINE_MARGIN_S", 0.5)
    world.set(deadline_s="3")
    with LocalRedis() as server, ThreadPoolExecutor(len(CALLS)) as pool:
        world.set(redis_url=server.url)
        queue = BatchQueue(connect_commands(server.url), "grade")
        calling = {framework: pool.submit(call, framework, "producer", [RIGHT, WRONG]) for framework in CALLS}
        until(lambda: queue.depth() > len(CALLS), "not all was submitted")
        queue.client.close()
        server.stop()
        for framework, called in calling.items():
            answered = called.result(60)
            assert answered.rewards == [None, None], framework
            assert set(answered.codes) <= {"expired", "redis_unavailable"}, framework
        close_graders()
