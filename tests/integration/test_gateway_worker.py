"""Workers on a gateway: one cap for all nodes of a key, waited for and not failed over, and given back by the dead."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collimate_rl.errors import AmbiguousError, CollimateError, GatewayError
from collimate_rl.gateway import GatewayClient
from collimate_rl.protocol import ResultStatus, keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.sandboxd.config import cores
from tests.fixtures.local_gateways import RunningGateway
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until
from worker.gateway_slots import SeatedClient, Seats
from worker.ledger import SessionLabel

CANDIDATE = str(SessionLabel(k="a" * 32, index=3, fence=1))
JUDGE = str(SessionLabel(k="a" * 32, index=None, fence=1))


@pytest.fixture
def queue(redis_url: str) -> Iterator[BatchQueue]:
    client = connect_commands(redis_url)
    yield BatchQueue(client)
    client.close()


@pytest.fixture
def seats(queue: BatchQueue) -> Iterator[Callable[..., Seats]]:
    made: list[Seats] = []

    def build(cap: int = 3, **options: Any) -> Seats:
        made.append(Seats(queue, "gate", cap, **{"wait_s": 0.2, **options}))
        return made[-1]

    yield build
    for one in made:
        one.close()


def taken(queue: BatchQueue) -> int:
    return int(queue.client.zcard(keys.seats("gate")))


def full(seats: Seats, *, lasting: bool) -> bool:
    try:
        seats.give(seats.take(lasting=lasting))
    except CollimateError as error:
        return error.error_code == "at_capacity"
    return False


def test_nodes_share_the_places_and_sessions_leave_one(queue: BatchQueue, seats: Callable[..., Seats]) -> None:
    here, there = seats(), seats()
    first, _ = here.take(lasting=True), there.take(lasting=True)
    assert full(here, lasting=True)
    assert full(there, lasting=True)
    token = there.take(lasting=False)
    assert full(here, lasting=False)
    there.give(token)
    here.give(first)
    assert not full(there, lasting=True)
    assert (taken(queue), here.held, there.held) == (1, 0, 1)


def test_a_place_that_comes_free_is_taken_by_who_waits(seats: Callable[..., Seats]) -> None:
    here, there = seats(2, wait_s=60.0), seats(2)
    token = there.take(lasting=True)
    got: list[str] = []
    waiting = threading.Thread(target=lambda: got.append(here.take(lasting=True)))
    waiting.start()
    there.give(token)
    waiting.join(60)
    assert len(got) == 1


def test_a_place_is_renewed_while_its_holder_lives_and_lapses_when_it_is_gone(
    queue: BatchQueue, seats: Callable[..., Seats]
) -> None:
    dead = seats(2, lease_ms=700, renew_every_s=0.1)
    other = seats(2, wait_s=1.5)
    dead.take(lasting=True)
    assert full(other, lasting=True)  # twice the lease later
    dead.close()
    until(lambda: not full(other, lasting=True), "a dead holder kept its place")


def test_a_session_taken_over_has_its_place_whatever_the_cap(queue: BatchQueue, seats: Callable[..., Seats]) -> None:
    here = seats(2)
    for session in ("s1", "s2", "s3", "s1"):
        here.take_over(session)
    there = seats(2)
    there.take_over("s1")
    assert (taken(queue), here.held, there.held) == (3, 3, 1)
    for session in ("s1", "s2", "s2", "s3"):
        here.leave(session)
    assert (taken(queue), here.held) == (0, 0)


class Inner:
    """A gateway's client that does what it is told."""

    base_url = "https://gateway.example"

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def create_session(self, template_id: str, **_: Any) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"session_id": secrets.token_hex(4)}

    def exec_once(self, template_id: str, **_: Any) -> dict[str, Any]:
        return self.create_session(template_id)

    def session_exec(self, session_id: str, **_: Any) -> dict[str, Any]:
        return self.create_session(session_id)

    def delete_session(self, session_id: str) -> dict[str, Any]:
        return {"deleted": True}


def test_a_sandbox_has_a_place_from_its_making_to_its_end(queue: BatchQueue, seats: Callable[..., Seats]) -> None:
    inner, here = Inner(), seats(4)
    client = SeatedClient(inner, here)  # type: ignore[arg-type]
    candidates = [client.create_session("py", label=CANDIDATE)["session_id"] for _ in range(3)]
    with pytest.raises(CollimateError, match="in use"):
        client.create_session("py", label=CANDIDATE)
    judge = client.create_session("py", label=JUDGE)["session_id"]
    with pytest.raises(CollimateError, match="in use"):
        client.exec_once("py", command="true")
    client.delete_session(judge)
    client.exec_once("py", command="true")
    for session in candidates:
        client.session_exec(session, command="true")
        client.delete_session(session)
    assert taken(queue) == 0
    inner.error = GatewayError("gone", 404, "no_such_session")
    with pytest.raises(GatewayError):
        client.session_exec("somebody's", command="true")
    assert taken(queue) == 0


def test_what_may_have_been_made_keeps_its_place_until_the_lease_ends(
    queue: BatchQueue, seats: Callable[..., Seats]
) -> None:
    inner, here = Inner(), seats(4, lease_ms=600, renew_every_s=0.1)
    client = SeatedClient(inner, here)  # type: ignore[arg-type]
    inner.error = GatewayError("full", 503, "at_capacity")
    with pytest.raises(GatewayError):
        client.create_session("py")
    assert taken(queue) == 0
    inner.error = AmbiguousError("reset")
    for call in (lambda: client.create_session("py"), lambda: client.exec_once("py")):
        with pytest.raises(AmbiguousError):
            call()
    assert (taken(queue), here.held) == (2, 0)
    inner.error = None
    until(lambda: client.exec_once("py") and taken(queue) == 0, "a lapsed place stayed")


class Watch:
    """Looks all the time how many sandboxes a key has."""

    def __init__(self, client: GatewayClient) -> None:
        self.most = 0
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, len(self._client.list_sandboxes()))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def key(local_gateway: RunningGateway) -> str:
    return local_gateway.key("demo")


@pytest.fixture
def tenant(local_gateway: RunningGateway, key: str) -> Iterator[GatewayClient]:
    with GatewayClient(key, local_gateway.base_url) as client:
        yield client


@pytest.fixture
def on_gateway(node: Callable[..., Node], local_gateway: RunningGateway, key: str) -> Callable[..., Node]:
    """Starts nodes whose backend is the gateway, all with the same demo key."""

    def start(name: str, **options: Any) -> Node:
        options = {"slots": 12, "processes": 2, "timing": HASTY, "retry_backoff": 0.05, **options}
        environment = {"COLLIMATE_API_KEY": key}
        return node(name, backend=f"gateway:{local_gateway.base_url}", environment=environment, **options)

    return start


def test_two_nodes_stay_under_one_keys_cap(
    on_gateway: Callable[..., Node], audit: Audit, tenant: GatewayClient
) -> None:
    nodes = [on_gateway("n1"), on_gateway("n2")]
    for made in nodes:
        made.wait_for("worker_ready", count=2)
    with Watch(tenant) as watch:
        for number in range(4):
            audit.submit([slow(0.2), WRONG, RIGHT] * 4, id=f"b{number}")
        results = audit.results()
    assert {result.status for result in results} == {ResultStatus.GRADED}
    assert [[v.reward for v in result.results] for result in results] == [[1.0, 0.0, 1.0] * 4] * 4
    assert 2 <= watch.most <= 8
    audit.check_each_answered_once()
    until(lambda: tenant.list_sandboxes() == [], "a sandbox was left")
    until(lambda: audit.queue.client.zcard(keys.seats(tenant.key_hash)) == 0, "a place was left")
    for made in nodes:
        refused = [event for event in made.events("candidate_retried") if event["code"] == "demo_tier_limit"]
        assert refused == [], "the gateway had to refuse"


def test_a_tier_limit_is_waited_out(on_gateway: Callable[..., Node], audit: Audit, tenant: GatewayClient) -> None:
    others = [tenant.create_sandbox("py")["id"] for _ in range(8)]
    made = on_gateway("n1", gateway_cap=100, processes=1, retries=0, hops=0)
    k = audit.submit([RIGHT, WRONG] * 3)
    made.wait_for("candidate_retried", count=3, code="demo_tier_limit")
    assert audit.queue.result(k) is None
    for sandbox in others:
        tenant.delete_sandbox(sandbox)
    assert audit.rewards(k) == [1.0, 0.0] * 3
    assert made.events("candidate_infra") == []


def execs(tenant: GatewayClient) -> list[int]:
    """How many execs each of the sandboxes has begun. A ledger names one before that."""
    return [row["exec_count"] for row in tenant.list_sandboxes()]


def test_the_places_of_a_killed_node_come_free(
    on_gateway: Callable[..., Node], audit: Audit, tenant: GatewayClient
) -> None:
    first = on_gateway("n1", processes=1)
    first.wait_for("worker_ready")
    count = min(6, 2 * cores())  # the daemon's places: what waits for one has not begun
    k = audit.submit([slow(5.0)] * count, timeout_seconds=30)
    until(lambda: execs(tenant) == [1] * count, "the candidates never started")
    first.kill()
    second = on_gateway("n2", processes=1)
    assert audit.rewards(k) == [1.0] * count
    assert {verdict.recovered for verdict in audit.result(k).results} <= {"read", "waited"}
    second.wait_for("session_found", count=count, reply="attached")
    until(lambda: tenant.list_sandboxes() == [], "a sandbox was left")
    until(lambda: audit.queue.client.zcard(keys.seats(tenant.key_hash)) == 0, "a place was left")


def test_a_key_that_is_not_let_in_is_answered_at_once(
    node: Callable[..., Node], local_gateway: RunningGateway, audit: Audit
) -> None:
    stranger = {"COLLIMATE_API_KEY": "col_pro_stranger_" + "x" * 32}
    node("n1", backend=f"gateway:{local_gateway.base_url}", environment=stranger, timing=HASTY)
    k = audit.submit([RIGHT])
    assert [(v.reward, v.error_code) for v in audit.result(k).results] == [(None, "unauthorized")]
