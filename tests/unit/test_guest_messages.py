"""What a holder and its candidate say to each other: messages whole at every size, and texts as `json` writes them."""

from __future__ import annotations

import json
import marshal
import math
import os
import socket
import sys
import threading
from typing import Any

import pytest

from collimate_rl.guest import candidate, plain, rehearsal
from collimate_rl.guest.candidate import MESSAGE, heard
from collimate_rl.guest.holder import packed

TREES: list[Any] = [
    None,
    {"v": 3},
    {"v": ["l", -(1 << 52), True, False, None, ["s", "ff"]], "u": []},
    '\ud800 \x00 "\\ é \U0001f600',
    {"a": {"b": [1.5, -0.0, 1e300, "x" * 5000]}, "": [[]], "1": {}},
    [math.inf, -math.inf],
]


def slow(tree: Any) -> str:
    return json.dumps(tree, separators=(",", ":"))


@pytest.mark.parametrize("without", [False, True], ids=["kept encoder", "none in C"])
def test_texts_are_those_of_json(without: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if without:
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    dumps = plain._find_dumps()
    assert [dumps(tree) for tree in TREES] == [slow(tree) for tree in TREES]
    with pytest.raises(TypeError, match="not JSON serializable"):
        dumps({"v": object()})
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        dumps(deep)


@pytest.mark.parametrize("chosen", ["another signature", "another call"])
def test_an_encoder_that_is_made_in_another_way_is_left_alone(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"another signature": lambda one: one, "another call": lambda *_: lambda tree: ["no", tree]}[chosen]
    monkeypatch.setattr(json.encoder, "c_make_encoder", made)
    dumps = plain._find_dumps()
    monkeypatch.undo()
    assert dumps({"v": 3}) == '{"v":3}'


def test_messages_are_heard_whole_one_by_one_until_there_are_no_more() -> None:
    messages = [
        {"a": 1},
        {"code": "x" * (20 * MESSAGE), "none": None},
        {"f": ["n", "\ud800"], "a": ["t", 1 << 60, 1.5]},
    ]
    ours, theirs = socket.socketpair()
    got = []

    def hear() -> None:
        while True:
            got.append(heard(theirs.fileno()))
            if got[-1] is None:
                return
            theirs.send(b".")

    hearer = threading.Thread(target=hear)
    with theirs:
        with ours:
            hearer.start()
            for message in messages:
                ours.sendall(packed(message))
                assert ours.recv(1) == b"."
        hearer.join()
    assert got == [*messages, None]


def test_a_message_that_is_cut_off_is_none() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(packed({"code": "x" * 100})[:-1])
        assert heard(theirs.fileno()) is None


def test_what_the_candidate_puts_in_the_place_of_functions_changes_no_frame(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """It runs before it answers, and honest code may replace what it likes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    code = "import json, marshal, os\nos.read = os.write = marshal.loads = json.loads = None\ndef f(x): return x\n"
    job = {"code": code, "prelude": "", "program": False, "entry": "f", "first": 0, "value_bytes": 1 << 20}
    for module, name in ((os, "read"), (os, "write"), (marshal, "loads"), (json, "loads")):
        monkeypatch.setattr(module, name, getattr(module, name))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(packed({**job, "arguments": False, "handles": False}))
        ours.send(packed({"f": ["n", "f"], "a": ["t", 7]}))
        ours.shutdown(socket.SHUT_WR)
        assert candidate.candidate(theirs.fileno()) == 0
        assert [ours.recv(100), ours.recv(100)] == [b"-1 v null\n", b'0 v {"v":7}\n']


def test_the_streams_that_a_fork_replaces_stay_in_the_process_that_is_forked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal, "streams", {})
    monkeypatch.setattr(rehearsal, "replaced", [])
    monkeypatch.setattr(rehearsal, "ROUNDS", 1)
    before = [sys.stdin, sys.stdout, sys.stderr]
    rehearsal.rehearse()
    assert rehearsal.replaced == before
    for stream in {*rehearsal.streams.values()}:
        stream.detach()
