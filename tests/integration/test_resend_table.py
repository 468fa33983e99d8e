"""What is sent again and what never is: every cell of the table in docs/reference/sdk.md, over a real wire."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from collimate_rl._retry import GATEWAY_IDEMPOTENT, GATEWAY_NON_IDEMPOTENT, RetryPolicy
from collimate_rl._transport import Sender, Transport
from collimate_rl.client import CollimateClient
from collimate_rl.errors import (
    AmbiguousError,
    CollimateDrainingError,
    CollimateError,
    MalformedAnswer,
    UnreachableError,
)
from tests.fixtures.authority import Authority
from tests.fixtures.fences import ROOT
from tests.fixtures.scripted_server import Behaviour, ScriptedServer
from tests.fixtures.transports import build
from tests.fixtures.wire_faults import BEFORE, FAULTS, SLOW

LARGE = "x" * 8_000_000
RAISED = {
    "`UnreachableError`": UnreachableError,
    "`AmbiguousError`": AmbiguousError,
    "`MalformedAnswer`": MalformedAnswer,
    "`CollimateDrainingError`": CollimateDrainingError,
    "refusal": CollimateError,
}

Ask = Callable[[], object]


def table() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The rows: what happens -> what is raised, and a cell for each kind of request."""
    text = (ROOT / "docs/reference/sdk.md").read_text(encoding="utf-8")
    section = text[text.index("\n## Retries") :]
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0].splitlines()  # type: ignore[index]
    ]
    return {row[0]: (row[1], row[2:]) for row in rows[2:]}


ROWS = table()


def askers(transport: Transport, pause: Callable[[float], None], wait_s: float, text: str = "1") -> tuple[Ask, ...]:
    """One for each column: asks once, and says nothing but whether it worked."""
    client = CollimateClient(transport=transport, timeout=wait_s, sleep=pause)
    gateway = Sender(transport, RetryPolicy(), headers={"Authorization": "Bearer k"}, sleep=pause)

    def post() -> object:
        body = {"command": text}
        return gateway.json("POST", "/v1/sandboxes/s/exec", body, rule=GATEWAY_NON_IDEMPOTENT, timeout_s=wait_s)

    def get() -> object:
        return gateway.json("GET", "/v1/sandboxes", rule=GATEWAY_IDEMPOTENT, timeout_s=wait_s)

    def execute() -> object:
        # An exec is waited for half a minute beyond its own limit, which these tests do not have.
        return client._once("/v1/exec", {"command": text}, wait_s)

    return (client.health, execute, get, post)


COLUMNS = ("get", "exec", "gateway-get", "gateway-post")
KINDS = pytest.mark.parametrize("kind", ["std-tcp", "requests-tcp"])


def test_the_table_and_the_faults_are_the_same() -> None:
    assert [*BEFORE, *FAULTS] == list(ROWS)
    for _, cells in ROWS.values():
        assert len(cells) == len(COLUMNS)
        assert set(cells) <= {"again", "never", ""}


CELLS = [
    pytest.param(what, behave, column, id=f"{what}-{number}-{COLUMNS[column]}")
    for what, behaviours in FAULTS.items()
    for number, behave in enumerate(behaviours)
    for column in range(len(COLUMNS))
    if ROWS.get(what, ("", ("",) * 4))[1][column]
]


@KINDS
@pytest.mark.parametrize(("what", "behave", "column"), CELLS)
def test_a_fault_after_the_request(kind: str, what: str, behave: Behaviour, column: int) -> None:
    raised, cells = ROWS[what]
    pauses: list[float] = []
    wait_s = 0.5 if what in SLOW else 20.0
    with ScriptedServer() as server, closing(build(kind, server.base_url)) as transport:
        ask = askers(transport, pauses.append, wait_s)[column]
        server.script = [behave]
        if cells[column] == "again":
            assert ask()
        else:
            with pytest.raises(RAISED[raised]) as caught:
                ask()
            assert type(caught.value) is RAISED[raised]
        expected = 2 if cells[column] == "again" else 1
        assert len(server.requests) == expected
        assert len(pauses) == expected - 1
        # It always comes, and is typed as the table says, once the repeats are spent.
        server.requests.clear()
        server.script = [behave] * 4
        with pytest.raises(RAISED[raised]):
            ask()
        assert len(server.requests) == (4 if cells[column] == "again" else 1)


@KINDS
@pytest.mark.parametrize("column", range(len(COLUMNS)), ids=COLUMNS)
def test_nothing_listens_until_the_second_try(kind: str, column: int) -> None:
    assert ROWS[BEFORE[0]] == ("`UnreachableError`", ("again",) * 4)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ExitStack() as stack:
        started: list[ScriptedServer] = []

        def start(_: float) -> None:
            started.append(stack.enter_context(ScriptedServer(port=port)))

        transport = stack.enter_context(closing(build(kind, f"http://127.0.0.1:{port}")))
        assert askers(transport, start, 20.0)[column]()
        assert [len(server.requests) for server in started] == [1]


@pytest.mark.parametrize("kind", ["std-tls", "requests-tls"])
@pytest.mark.parametrize("column", range(len(COLUMNS)), ids=COLUMNS)
def test_tls_that_fails(kind: str, column: int, authority: Authority) -> None:
    raised, cells = ROWS[BEFORE[1]]
    assert (raised, set(cells)) == ("`UnreachableError`", {"again"})
    pauses: list[float] = []
    with ScriptedServer(tls=authority.server_context()) as server:
        with closing(build(kind, server.base_url)) as transport, pytest.raises(UnreachableError):
            askers(transport, pauses.append, 20.0)[column]()
        assert server.requests == []
        assert len(pauses) == 3


@KINDS
@pytest.mark.parametrize("column", [1, 3], ids=["exec", "gateway-post"])
def test_a_reset_within_the_body(kind: str, column: int) -> None:
    raised, cells = ROWS[BEFORE[3]]
    assert (raised, cells) == ("`AmbiguousError`", ("again", "never", "again", "never"))
    with ScriptedServer() as server, closing(build(kind, server.base_url)) as transport:
        server.cut_bodies = 1
        with pytest.raises(AmbiguousError):
            askers(transport, lambda _: None, 20.0, LARGE)[column]()
        assert (server.requests, server.connections) == ([], 1)


@KINDS
@pytest.mark.parametrize("column", [1, 3], ids=["exec", "gateway-post"])
def test_an_idle_connection_that_closes_within_the_body(kind: str, column: int) -> None:
    raised, cells = ROWS[BEFORE[2]]
    assert raised.startswith("nothing")
    assert set(cells) == {"again"}
    pauses: list[float] = []
    with ScriptedServer() as server, closing(build(kind, server.base_url)) as transport:
        asks = askers(transport, pauses.append, 20.0, LARGE)
        asks[0]()
        server.cut_bodies = 1
        assert asks[column]()
        assert (len(server.requests), server.connections, pauses) == (2, 2, [])
