"""Request bodies at the door, and HTTP read from a socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collimate_rl._transport import _encode_body
from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.http_wire import (
    BadRequestLine,
    ConnectionEnded,
    Patience,
    RequestReader,
    error_answer,
    render,
)
from collimate_rl.sandboxd.wire import (
    WRITABLE,
    BodyParser,
    check_path,
    parse_exec,
    parse_label,
    parse_object,
    parse_template,
)

LIMIT = 128 * 1024
PATIENCE = Patience(idle_s=5, head_s=5, body_s=5)


def parsed(**body: Any) -> Any:
    return parse_exec(body, composed_bytes=LIMIT)


def refusal(action: Callable[[], Any]) -> tuple[int | None, str | None]:
    with pytest.raises(CollimateError) as refused:
        action()
    return refused.value.status, refused.value.error_code


def test_defaults() -> None:
    request = parsed(code="pass")
    assert (request.code, request.command, request.commands, request.files) == ("pass", None, None, ())
    assert request.timeout_s == 30
    assert len(request.seed) == 64
    assert request.seed != parsed(code="pass").seed


def test_precedence() -> None:
    request = parsed(command="a", commands=[["b"]], code="c")
    assert (request.command, request.commands, request.code) == ("a", None, None)
    request = parsed(commands=[["b"]], code="c")
    assert (request.command, request.commands, request.code) == (None, (("b",),), None)


def test_a_missing_final_newline_is_added() -> None:
    files = [{"path": "a", "content": "x"}, {"path": "b", "content": "x\n"}, {"path": "c", "content": ""}]
    assert [content for _, content in parsed(code="1", files=files).files] == [b"x\n", b"x\n", b"\n"]


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"code": "x" * 10}, 10),
        ({"command": "é" * 10}, 20),
        ({"command": "xx", "code": "y" * 100}, 2),
        ({"commands": [["ab", "c"], ["d"]]}, 3 + 2 + 2),
        ({"code": "x", "files": [{"path": "a" * 99, "content": "12"}, {"path": "b", "content": "é\n"}]}, 1 + 259 + 259),
    ],
)
def test_the_composed_size_is_counted_as_documented(body: dict[str, Any], size: int) -> None:
    assert parse_exec(body, composed_bytes=size).timeout_s == 30
    assert refusal(lambda: parse_exec(body, composed_bytes=size - 1)) == (413, "command_too_large")


@pytest.mark.parametrize(
    "path", ["a", "a/b", "./a", "a//b", "/box/a", "/tmp/x/y", "/dev/shm/z", "/box/./a", "...", "a b"]
)
def test_paths_that_stay_inside(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "/", "a/", "a/.", "..", "../a", "a/../b", "/box/../x", "/etc/x", "/boxes/x", "/box", "/tmp", "a\0",
     "/proc/1/x", "x" * 256, "a/" * 2100 + "b", "\ud800", "/tmp/"],
)  # fmt: skip
def test_paths_that_do_not(path: str) -> None:
    assert refusal(lambda: check_path(path)) == (400, "bad_request")


@given(st.text(alphabet="ab/.\0", max_size=20))
def test_whatever_passes_names_a_file_below_a_writable_place(path: str) -> None:
    try:
        check_path(path)
    except CollimateError:
        return
    parts = [part for part in path.split("/") if part not in ("", ".")]
    assert ".." not in parts
    assert parts
    if path.startswith("/"):
        assert any(("/" + "/".join(parts)).startswith(root + "/") for root in WRITABLE)


CODES = ('print("one")\n' * 400, 'x = "\u00e4\u2028"\n' * 400)
BODIES: list[dict[str, Any]] = [
    {"code": CODES[0], "template_id": "py"},
    {"code": CODES[1], "template_id": "py", "files": []},
    {"code": CODES[0] + "#", "template_id": "py"},
    {"code": "", "template_id": "py"},
    {"template_id": "py", "code": CODES[0]},
    {"code": CODES[0]},
]


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_a_code_that_is_known_by_its_bytes_is_parsed_as_any_other(number: int) -> None:
    parse, body = BodyParser(CODES).parse, BODIES[number]
    for written in (json.dumps(body), json.dumps(body, separators=(",", ":")), json.dumps(body, ensure_ascii=False)):
        assert parse(written.encode()) == body
    # As our own client writes it, the text is the very one that is known.
    if number < 2:
        assert parse(_encode_body(body)).get("code") is CODES[number]


def test_behind_a_known_code_all_is_as_strict_as_ever() -> None:
    parse, opening = BodyParser(CODES).parse, _encode_body({"code": CODES[0], "seed": ""})[: -len('"seed":""}')]
    assert parse(opening + b'"code":"other"}') == {"code": "other"}
    for rest in (b"", b"}", b'"', b'"seed"}', b'"seed":"ab"', b'"seed":"ab"}}', b" }"):
        assert refusal(lambda rest=rest: parse(opening + rest)) == (400, "bad_request")  # type: ignore[misc]


def test_templates_labels_and_objects() -> None:
    assert parse_template({"template_id": "py"}) == "py"
    assert refusal(lambda: parse_template({})) == (400, "template_id_required")
    assert parse_label({"label": "x"}) == "x"
    assert parse_label({}) is None
    assert refusal(lambda: parse_label({"label": "x" * 257})) == (400, "bad_request")
    assert refusal(lambda: parse_object(b"{")) == (400, "bad_request")
    assert refusal(lambda: parse_object(b'"x"')) == (400, "bad_request")
    assert refusal(lambda: parse_object(b"\xff")) == (400, "bad_request")


@pytest.fixture
def pipe() -> Iterator[tuple[socket.socket, RequestReader]]:
    """What is sent into the first is read by the second."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, RequestReader(theirs, 100, PATIENCE)


def test_requests_one_after_the_other(pipe: tuple[socket.socket, RequestReader]) -> None:
    sender, reader = pipe
    sender.sendall(
        b"POST /a?b=c HTTP/1.1\r\nCONTENT-length:  3 \r\nX: y\r\n\r\nabcGET /b HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
    first, second = reader.next(), reader.next()
    assert (first.method, first.path, first.body, first.keep_alive) == ("POST", "/a", b"abc", True)
    assert (second.method, second.path, second.body, second.keep_alive) == ("GET", "/b", b"", False)


def test_a_request_in_drops(pipe: tuple[socket.socket, RequestReader]) -> None:
    sender, reader = pipe
    whole = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde"
    for at in range(len(whole)):
        sender.sendall(whole[at : at + 1])
    assert reader.next().body == b"abcde"


@pytest.mark.parametrize(
    ("line", "keep"),
    [
        (b"GET / HTTP/1.1\r\n", True),
        (b"GET / HTTP/1.0\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: CLOSE\r\n", False),
    ],
)
def test_keep_alive(pipe: tuple[socket.socket, RequestReader], line: bytes, keep: bool) -> None:
    sender, reader = pipe
    sender.sendall(line + b"\r\n")
    assert reader.next().keep_alive is keep


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /\r\n", 400),
        (b"GET / HTTP/2\r\n", 400),
        (b"\x16\x03\x01 not http\r\n", 400),
        (b"GET / HTTP/1.1\r\nbroken\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", 411),
        (b"GET / HTTP/1.1\r\nContent-Length: 999999999999\r\n", 413),
    ],
)
def test_what_is_no_request(pipe: tuple[socket.socket, RequestReader], head: bytes, status: int) -> None:
    sender, reader = pipe
    sender.sendall(head + b"\r\n")
    with pytest.raises(BadRequestLine) as bad:
        reader.next()
    assert bad.value.error.status == status


def test_a_body_over_the_limit_is_read_to_its_end_first(pipe: tuple[socket.socket, RequestReader]) -> None:
    sender, reader = pipe
    sender.sendall(b"POST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000)
    with pytest.raises(BadRequestLine) as bad:
        reader.next()
    assert bad.value.error.error_code == "command_too_large"
    sender.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionEnded):
        reader.next()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"])
def test_an_end_in_the_middle(pipe: tuple[socket.socket, RequestReader], sent: bytes) -> None:
    sender, reader = pipe
    sender.sendall(sent)
    sender.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionEnded):
        reader.next()


def test_rendered_answers() -> None:
    head, _, body = render(201, {"a": "ä\ufffd"}, keep_alive=True).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 Created\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"a": "ä\ufffd"}
    assert error_answer(CollimateError("why", 404, "no_template")) == (
        404,
        {"error": "why", "error_code": "no_template"},
    )
