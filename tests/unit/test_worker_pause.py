"""The node's pause: one file that all its processes go by, whoever writes it and whoever dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.pause import LONGEST_WAIT_S, NodePause, pause_file


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pair(tmp_path: Path, clock: Clock) -> tuple[NodePause, NodePause]:
    """Two processes of one node."""
    one, other = (NodePause(pause_file(str(tmp_path), "n1"), clock=clock) for _ in range(2))
    return one, other


def begin(pause: NodePause, *, draining: bool = True, anyway_in_s: float | None = None) -> bool:
    return pause.begin("going", template="py", draining=draining, anyway_in_s=anyway_in_s)


def test_what_one_process_begins_another_ends(pair: tuple[NodePause, NodePause]) -> None:
    one, other = pair
    assert one.current() is None
    assert begin(one)
    assert not begin(other)
    seen = other.current()
    assert seen is not None
    assert (seen.reason, seen.template, seen.draining) == ("going", "py", True)
    assert other.end(seen)
    assert one.current() is None
    assert not one.end(seen)


def test_one_process_looks_when_a_look_is_due(pair: tuple[NodePause, NodePause], clock: Clock) -> None:
    one, other = pair
    assert one.take_turn(5.0) is None
    begin(one)
    assert one.take_turn(5.0) is not None
    assert other.take_turn(5.0) is None
    clock.now += 5.0
    assert other.take_turn(5.0) is not None
    assert one.take_turn(5.0) is None


def test_a_drain_outranks_an_absence(pair: tuple[NodePause, NodePause], clock: Clock) -> None:
    one, other = pair
    begin(one, draining=False, anyway_in_s=5.0)
    absent = one.current()
    assert absent is not None
    clock.now += 5.0
    assert one.is_over(absent)
    begin(other, draining=True)
    begin(one, draining=False, anyway_in_s=5.0)
    drain = one.current()
    assert drain is not None
    clock.now += 500.0
    assert drain.draining
    assert not one.is_over(drain)


def test_a_look_from_before_a_pause_does_not_end_it(pair: tuple[NodePause, NodePause], clock: Clock) -> None:
    one, other = pair
    begin(one)
    mine = one.take_turn(5.0)
    assert mine is not None
    assert other.end(mine)
    clock.now += 1.0
    begin(other)
    assert not one.end(mine)
    assert one.current() is not None


def test_a_pause_of_an_earlier_boot_is_looked_at_at_once(pair: tuple[NodePause, NodePause], clock: Clock) -> None:
    one, _ = pair
    begin(one, draining=False, anyway_in_s=5.0)
    clock.now -= 900.0  # the monotonic clock began anew
    before = one.current()
    assert before is not None
    assert before.look_at - clock.now > LONGEST_WAIT_S
    assert one.take_turn(5.0) is not None
    assert one.is_over(before)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"reason": 1}', '{"of": "a later version"}'])
def test_a_file_that_cannot_be_read_pauses_until_a_look_says_otherwise(
    tmp_path: Path, pair: tuple[NodePause, NodePause], text: str
) -> None:
    one, _ = pair
    pause_file(str(tmp_path), "n1").write_text(text)
    mine = one.take_turn(5.0)
    assert mine is not None
    assert mine.draining
    assert one.end(mine)
    assert one.current() is None


def block(tmp_path: Path) -> None:
    """Where the node's files should be is a file: neither folder nor lock nor pause can be made there, by nobody."""
    place = pause_file(str(tmp_path), "n1").parent
    for file in place.iterdir():
        file.unlink()
    place.rmdir()
    place.write_text("")


def test_where_nothing_can_be_written_each_process_pauses_by_itself(
    pair: tuple[NodePause, NodePause], clock: Clock, tmp_path: Path
) -> None:
    one, other = pair
    block(tmp_path)
    assert begin(one, draining=False, anyway_in_s=5.0)
    assert isinstance(one.unshared(), OSError)
    assert one.unshared() is None
    assert other.current() is None
    mine = one.take_turn(5.0)
    assert mine is not None
    assert one.take_turn(5.0) is None
    clock.now += 5.0
    assert one.is_over(mine)
    begin(one)
    drain = one.current()
    assert drain is not None
    assert drain.draining
    assert not one.end(mine)
    assert one.end(drain)
    assert one.current() is None


def test_a_folder_that_somebody_removed_is_made_again(pair: tuple[NodePause, NodePause], tmp_path: Path) -> None:
    one, other = pair
    pause_file(str(tmp_path), "n1").parent.rmdir()
    assert begin(one)
    assert one.unshared() is None
    assert one.current() is not None
    assert other.current() == one.current()


def test_a_pause_whose_file_cannot_be_removed_ends_here_all_the_same(
    pair: tuple[NodePause, NodePause], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    begin(one)
    seen = other.current()
    assert seen is not None

    def refuse(_path: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert other.end(seen)
    assert other.current() is None
    assert isinstance(other.unshared(), OSError)
    assert one.current() == seen
    assert one.end(seen)
    clock.now += 1.0
    assert begin(one)
    assert other.current() == one.current()
