"""Whatever comes in, the door answers it with the caller's fault or runs it: never with a fault of the daemon.

REPEAT=<n> in the environment looks at n times as many examples.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.backend import Outcome, Turn
from collimate_rl.sandboxd.config import Limits, Template
from collimate_rl.sandboxd.http_front import HttpFront
from collimate_rl.sandboxd.http_wire import (
    BadRequestLine,
    ConnectionEnded,
    Patience,
    Request,
    RequestReader,
    error_answer,
    render,
)
from collimate_rl.sandboxd.service import Service
from collimate_rl.sandboxd.wire import Exec, check_path

EXAMPLES = settings(max_examples=80 * int(os.environ.get("REPEAT", "1")), deadline=None)
PATIENCE = Patience(idle_s=5, head_s=5, body_s=5)
CALLERS_FAULTS = {
    (400, "bad_request"), (400, "template_id_required"), (400, "invalid_seed"), (404, "no_template"),
    (404, "no_such_session"), (404, "not_found"), (405, "method_not_allowed"), (413, "command_too_large"),
}  # fmt: skip
TOKENS = st.sampled_from(
    [b"GET", b"POST", b" ", b"/v1/exec", b"/", b"HTTP/1.1", b"HTTP/1.", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b":",
     b"Content-Length", b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"\0", b"\xff",
     b"9" * 20, b"9" * 5000, b"-1", b"+3", b"0x10", b"1_0", b"Connection: close", b"x" * 17_000, b"{}", b"\t"]
)  # fmt: skip
STREAMS = st.one_of(
    st.binary(max_size=300), st.lists(st.one_of(TOKENS, st.binary(max_size=6)), max_size=14).map(b"".join)
)


def requests_of(pieces: list[bytes]) -> list[Request | int | None]:
    """What a reader makes of a stream that ends: requests, then the status of what is none, or None for the end."""
    ours, theirs = socket.socketpair()
    found: list[Request | int | None] = []
    with ours, theirs:

        def send() -> None:
            try:
                for piece in pieces:
                    ours.sendall(piece)
                ours.shutdown(socket.SHUT_WR)
            except OSError:
                # The reader has seen enough.
                return

        sender = threading.Thread(target=send)
        sender.start()
        reader = RequestReader(theirs, 4096, PATIENCE)
        while True:
            try:
                found.append(reader.next())
            except ConnectionEnded:
                found.append(None)
                break
            except BadRequestLine as exc:
                found.append(exc.error.status)
                break
        theirs.shutdown(socket.SHUT_RDWR)
        sender.join()
    return found


@EXAMPLES
@given(st.lists(STREAMS, max_size=4))
@example([b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"])
@example([b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"])
@example([b"POST / HTTP/1.1\r\nContent-Length : 1\r\n\r\na"])
@example([b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n"])
def test_any_bytes_are_requests_or_the_senders_fault(pieces: list[bytes]) -> None:
    *requests, last = requests_of(pieces)
    assert last is None or (isinstance(last, int) and 400 <= last < 500)
    for request in requests:
        assert isinstance(request, Request)
        assert len(request.body) <= 4096


NAMES = st.from_regex(re.compile(r"[A-Za-z][A-Za-z0-9-]{0,12}", re.ASCII), fullmatch=True).filter(
    lambda name: name.lower() not in ("content-length", "transfer-encoding", "connection", "expect")
)
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)


@st.composite
def written_requests(draw: st.DrawFn) -> tuple[Request, bytes]:
    """A request, and one of the ways to write it."""
    method = draw(st.sampled_from(["GET", "POST", "DELETE", "PATCH"]))
    path = "/" + draw(st.from_regex(re.compile(r"[a-z0-9/%._~-]{0,20}"), fullmatch=True))
    body, close = draw(st.binary(max_size=200)), draw(st.booleans())
    lines = [f"{name}:{draw(st.sampled_from(['', ' ', '  ', chr(9)]))}{value}"
             for name, value in draw(st.dictionaries(NAMES, VALUES, max_size=4)).items()]  # fmt: skip
    if body or draw(st.booleans()):
        lines.append(f"{draw(st.sampled_from(['Content-Length', 'content-length']))}: {len(body)}")
    if close:
        lines.append("Connection: close")
    query = draw(st.sampled_from(["", "?", "?a=b"]))
    head = "\r\n".join([f"{method} {path}{query} HTTP/1.1", *draw(st.permutations(lines))]) + "\r\n\r\n"
    return Request(method=method, path=path, body=body, keep_alive=not close), head.encode("latin-1") + body


@EXAMPLES
@given(st.lists(written_requests(), min_size=1, max_size=3), st.lists(st.integers(1, 400), max_size=6))
def test_requests_are_read_as_they_were_written_however_they_are_cut(
    written: list[tuple[Request, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(text for _, text in written)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    assert requests_of(pieces) == [*(request for request, _ in written), None]


class EchoBackend:
    """Runs nothing, and never fails: what goes wrong is the door's own."""

    name = "none"

    def start(self) -> None: ...

    def run_once(self, template: Template, request: Exec, turn: Turn = nullcontext) -> Outcome:
        for path, content in request.files:
            assert check_path(path) == path
            assert isinstance(content, bytes)
        return Outcome(exit_code=0, output=b"42\n", truncated=False, fork_ms=0.0, exec_ms=0.0)

    def create(self, template: Template) -> EchoBox:
        return EchoBox()

    def failure(self, template: Template) -> str | None:
        return None

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


class EchoBox:
    fork_ms = 0.0
    endpoints: Mapping[int, str] = {}
    served_at = 0.0

    def run(self, request: Exec) -> Outcome:
        return EchoBackend().run_once(Template(), request)

    def alive(self) -> bool:
        return True

    def destroy(self) -> bool:
        return True


@pytest.fixture(scope="module")
def front() -> Iterator[HttpFront]:
    """A door without a street: requests are handed to it as if they had been read."""
    service = Service(EchoBackend(), {"py": Template()}, Limits(max_sessions=10_000))
    door = HttpFront(service, [], keepalive_s=1, max_connections=1)
    door.start()
    yield door
    door.stop_accepting()
    service.close()


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.sampled_from(["", "py", "\ud800", "a\0b", "../x", "/etc/x", "/box/a", "0" * 64, "ab" * 32, "x" * 300]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.sampled_from([10**400, 1e400, -0.0])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)
GOOD = {
    "template_id": st.just("py"),
    "command": TEXTS,
    "commands": st.lists(st.lists(TEXTS, min_size=1, max_size=3), min_size=1, max_size=3),
    "code": st.one_of(TEXTS, st.just("#" * 140_000)),
    "files": st.lists(st.fixed_dictionaries({"path": TEXTS, "content": TEXTS}), max_size=3),
    "timeout_seconds": st.integers(-5, 4000),
    "seed": st.sampled_from(["0" * 64, "0" * 63, "g" * 64, "٣" * 64]),
    "egress": st.fixed_dictionaries({"mode": st.sampled_from(["open", "none"])}),
    "label": TEXTS,
}
BODIES = st.fixed_dictionaries({}, optional={name: st.one_of(good, good, JSON) for name, good in GOOD.items()})
TARGETS = st.sampled_from(
    [
        "/v1/exec",
        "/exec",
        "/v1/sessions",
        "/v1/sessions/none",
        "/v1/sessions/none/exec",
        "/v1/health",
        "/",
        "/v1/",
        "//",
    ]
)
METHODS = st.sampled_from(["GET", "POST", "DELETE", "PUT", "get", "HEAD"])


def answered(front: HttpFront, method: str, path: str, body: bytes) -> tuple[int, Any]:
    """The answer, as a peer would read it, and what holds for all."""
    status, answer = front._answer(Request(method=method, path=path, body=body, keep_alive=True))
    read = json.loads(render(status, answer, keep_alive=True).partition(b"\r\n\r\n")[2])
    assert status in (200, 201) or (status, read["error_code"]) in CALLERS_FAULTS, read
    return status, read


@EXAMPLES
@given(METHODS, TARGETS, st.one_of(BODIES, JSON))
@example("POST", "/v1/sessions", {"template_id": "py", "label": "\ud800"})
def test_any_object_is_served_or_the_senders_fault(front: HttpFront, method: str, path: str, body: Any) -> None:
    status, answer = answered(front, method, path, json.dumps(body).encode())
    if status == 201:
        assert answered(front, "GET", f"/v1/sessions/{answer['session_id']}", b"")[0] == 200
        assert answered(front, "GET", "/v1/sessions", b"")[0] == 200
        assert answered(front, "DELETE", f"/v1/sessions/{answer['session_id']}", b"")[0] == 200


@EXAMPLES
@given(METHODS, TARGETS, st.binary(max_size=60))
@example("POST", "/v1/exec", b'{"timeout_seconds": ' + b"9" * 5000 + b"}")
@example("POST", "/v1/exec", b'{"a":' * 50_000)
@example("POST", "/v1/exec", '{"code": "\ud800"}'.encode("utf-16", "surrogatepass"))
def test_any_body_is_served_or_the_senders_fault(front: HttpFront, method: str, path: str, body: bytes) -> None:
    answered(front, method, path, body)


@EXAMPLES
@given(st.text(st.characters(max_codepoint=0xFF), max_size=30))
def test_any_path_is_served_or_the_senders_fault(front: HttpFront, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answered(front, method, path, b"{}")
        answered(front, method, f"/v1/sessions/{path}/exec", b'{"code": "1"}')


def test_an_error_of_any_text_can_be_rendered() -> None:
    status, answer = error_answer(CollimateError("\ud800 \0 \x7f \u2028", 400, "bad_request"))
    body = render(status, answer, keep_alive=False).partition(b"\r\n\r\n")[2]
    assert json.loads(body.decode())["error"] == "\ud800 \0 \x7f \u2028"
