"""The codec: what goes in comes out, and nothing that anybody writes to the server gets further than `BadMessage`."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collimate_rl.errors import BadMessage, UnknownVersion
from collimate_rl.protocol import BatchResult, CaseReport, ResultStatus, Verdict, infra_verdict
from collimate_rl.protocol.codes import OUTCOMES
from collimate_rl.protocol.story import TURNS, Turn
from collimate_rl.queue import codec
from tests.fixtures.queue_batches import make_batch, passed

texts = st.text(alphabet=st.characters(exclude_categories=()), max_size=200)  # lone surrogates included
names = st.text(alphabet="abcXYZ019._-", min_size=1, max_size=20)
seeds = st.none() | st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)
numbers = st.floats(min_value=0, max_value=1e9)
READERS = [codec.unpack_batch, codec.unpack_verdict, codec.unpack_result]


@st.composite
def batches(draw: st.DrawFn) -> Any:
    candidates = draw(st.lists(texts, min_size=1, max_size=5))
    return make_batch(
        id=draw(names),
        candidates=tuple(candidates),
        seeds=tuple(draw(seeds) for _ in candidates),
        epoch=draw(st.integers(0, 2**40)),
        timeout_seconds=draw(st.integers(1, 3600)),
        case_timeout_s=draw(st.none() | st.floats(0.1, 60)),
        egress=draw(st.none() | st.just({"mode": "allowlist", "allow": ["a.example"]})),
        deadline_s=draw(st.floats(0.5, 86400)),
        tags=draw(st.dictionaries(names, texts, max_size=3)),
        cache=draw(st.booleans()),
    )


@st.composite
def verdicts(draw: st.DrawFn, index: int = 0) -> Verdict:
    if draw(st.booleans()):
        return infra_verdict(index, draw(names), draw(st.none() | texts), node=draw(names))
    cases = st.builds(CaseReport, outcome=st.sampled_from(sorted(OUTCOMES)), ms=numbers)
    return Verdict(
        index=index,
        reward=draw(st.floats(0, 1)),
        outcome=draw(st.sampled_from(sorted(OUTCOMES))),
        cases=draw(st.none() | st.lists(cases, max_size=4).map(tuple)),
        cases_total=draw(st.integers(0, 500)),
        detail=draw(st.none() | texts),
        output_tail=draw(st.binary(max_size=100)),
        session_id=draw(st.none() | names),
        exec_time_ms=draw(numbers),
        started_ms=draw(st.none() | numbers),
        judged_ms=draw(st.none() | numbers),
        flags=tuple(draw(st.lists(names, max_size=3))),
        sdk=draw(st.just("") | names),
        python=draw(st.just("") | names),
    )


@given(batches())
def test_batches_come_back(batch: Any) -> None:
    assert codec.unpack_batch(codec.pack_batch(batch)) == batch


@given(verdicts())
def test_verdicts_come_back_and_pack_the_same_each_time(verdict: Verdict) -> None:
    blob = codec.pack_verdict(verdict)
    assert codec.unpack_verdict(blob) == verdict
    assert codec.pack_verdict(codec.unpack_verdict(blob)) == blob


turns = st.builds(
    Turn,
    at=st.integers(0, 2**42).map(lambda ms: ms / 1000),
    what=st.sampled_from(sorted(TURNS)),
    attempt=st.integers(0, 9),
    node=names,
    worker=names,
)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_results_come_back(data: st.DataObject) -> None:
    result = BatchResult(
        run="r",
        id="i",
        epoch=data.draw(st.integers(0, 99)),
        status=data.draw(st.sampled_from(list(ResultStatus))),
        results=tuple(data.draw(verdicts(index=i)) for i in range(data.draw(st.integers(1, 3)))),
        submitted_at=data.draw(numbers),
        claimed_at=data.draw(st.none() | numbers),
        finished_at=data.draw(numbers),
        attempts=data.draw(st.integers(0, 9)),
        worker=data.draw(names),
        queued_at=data.draw(st.none() | numbers),
        story=tuple(data.draw(st.lists(turns, max_size=2))),
    )
    assert codec.unpack_result(codec.pack_result(result)) == result


@pytest.mark.parametrize("read", READERS)
@given(raw=st.binary(max_size=200))
@settings(max_examples=150)
def test_random_bytes_are_bad_messages(read: Any, raw: bytes) -> None:
    with pytest.raises(BadMessage):
        read(raw)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(data=st.data(), value=plain)
@settings(max_examples=150)
def test_a_sound_message_with_one_hostile_field_is_sound_or_bad(data: st.DataObject, value: Any) -> None:
    """Never anything but a message or `BadMessage`; a field that reads another way is checked like any other."""
    blob = data.draw(st.sampled_from([codec.pack_batch(make_batch()), codec.pack_verdict(passed(0))]))
    message = msgpack.unpackb(blob, raw=False)
    message[data.draw(st.sampled_from(sorted(message)))] = value
    raw = msgpack.packb(message, use_bin_type=True, unicode_errors="surrogatepass")
    read = codec.unpack_batch if "candidates" in message else codec.unpack_verdict
    try:
        read(raw)
    except BadMessage:
        pass


def deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\xc0",
        b"\x93\x01\x02\x03",
        deep(100_000),
        b"\x81\xa1v" + deep(5_000),
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\x7f\xff\xff\xff",
        b"\x81\x01\x01",
        b"\x81\xc4\x01v\x01",
        b"\x81\x90\x01",
        msgpack.packb({"v": 1}) + b"\x00",
        msgpack.packb({"w": 1}),
        msgpack.packb({"v": 0}),
        msgpack.packb({"v": -1}),
        msgpack.packb({"v": True}),
        msgpack.packb({"v": 1.0}),
        msgpack.packb({"v": "1"}),
        msgpack.packb({"v": None}),
        msgpack.packb({"v": 1}),
        msgpack.packb({"v": msgpack.ExtType(5, b"x" * 10)}),
        msgpack.packb({"v": msgpack.Timestamp(1, 2)}),
        b"\x81\xa1v\xa1\xff",
    ],
)
def test_hostile_bytes_are_bad_messages(read: Any, raw: bytes) -> None:
    with pytest.raises(BadMessage) as caught:
        read(raw)
    assert not isinstance(caught.value, UnknownVersion)


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_bytes_is_a_bad_message(read: Any) -> None:
    for value in (None, "text", 5, bytearray(b"\x80")):
        with pytest.raises(BadMessage):
            read(value)


@pytest.mark.parametrize("read", READERS)
def test_a_later_version_is_told_apart_whatever_else_it_holds(read: Any) -> None:
    with pytest.raises(UnknownVersion, match="version 2"):
        read(msgpack.packb({"v": 2, "candidates": 7, "results": {}}))


def test_an_oversized_payload_is_not_even_read() -> None:
    with pytest.raises(BadMessage, match="above the limit"):
        codec.unpack_batch(b"\x80" * ((8 << 20) + 1))


def test_unknown_keys_are_ignored_and_lacking_ones_named() -> None:
    message = msgpack.unpackb(codec.pack_batch(make_batch(id="x")), raw=False)
    assert codec.unpack_batch(msgpack.packb({**message, "colour": "red"})) == make_batch(id="x")
    del message["run"]
    with pytest.raises(BadMessage, match="run"):
        codec.unpack_batch(msgpack.packb(message))
    verdict = msgpack.unpackb(codec.pack_verdict(passed(3)), raw=False)
    assert codec.unpack_verdict(msgpack.packb({**verdict, "colour": "red"})) == passed(3)
    del verdict["index"]
    with pytest.raises(BadMessage, match="index"):
        codec.unpack_verdict(msgpack.packb(verdict))


def test_candidates_are_bytes_on_the_wire() -> None:
    message = msgpack.unpackb(codec.pack_batch(make_batch(candidates=("\ud800", "é"))), raw=False)
    assert message["candidates"] == [b"\xed\xa0\x80", "é".encode()]
    for wrong in ("text", 5, b"\xff"):
        message["candidates"][0] = wrong
        with pytest.raises(BadMessage, match=r"candidate|batch"):
            codec.unpack_batch(msgpack.packb(message))


def test_a_verdict_inside_a_result_may_be_of_a_later_version() -> None:
    result = {
        "v": 1,
        "run": "r",
        "id": "i",
        "epoch": 0,
        "status": "graded",
        "submitted_at": 0.0,
        "claimed_at": None,
        "finished_at": 0.0,
        "attempts": 0,
        "worker": "",
    }
    with pytest.raises(UnknownVersion):
        codec.unpack_result(msgpack.packb({**result, "results": [{"v": 9}]}))
    with pytest.raises(BadMessage):
        codec.unpack_result(msgpack.packb({**result, "results": [None]}))


def test_a_batch_above_the_payload_limit_is_refused_at_packing() -> None:
    with pytest.raises(ValueError, match="submit fewer candidates"):
        codec.pack_batch(
            make_batch(candidates=("x" * ((1 << 20) - 8),) * 8, seeds=("ab" * 32,) * 8, tags={"t": "x" * 1024})
        )
