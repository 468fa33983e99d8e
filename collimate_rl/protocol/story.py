"""What became of a batch, turn by turn, as the scripts write it down beside its state."""

from __future__ import annotations

from dataclasses import dataclass

MAX_STORY = 24
"""So many turns are kept, the last ones."""

TURNS = {
    "claimed": "a worker took it",
    "answered": "it was answered while that worker held it",
    "clean": "the worker gave it back: it stopped, or its daemon drained",
    "pass": "the worker gave it back: the infrastructure failed there",
    "later": "the worker gave it back: its message is of a later version",
    "error": "the worker gave it back: an exception in this program's own code",
    "buried": "the worker's process had died, and its supervisor gave the batch back",
    "lost": "the worker had fallen silent, and its lease had ended",
}
"""The word of a turn, and what it says."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of a batch's story."""

    at: float
    """Unix seconds, by the server's clock."""
    what: str
    """A word of `TURNS`; a later version may know more."""
    attempt: int
    """Under which fence."""
    node: str
    worker: str


def parse_story(text: str) -> tuple[Turn, ...]:
    """From the lines `ms word fence node worker`; what is no such line is left out."""
    found = []
    for line in text.split("\n"):
        words = line.split(" ")
        if len(words) == 5 and words[0].isdecimal() and words[2].isdecimal():
            at, what, fence, node, worker = words
            found.append(Turn(at=int(at) / 1000, what=what, attempt=int(fence), node=node, worker=worker))
    return tuple(found)


def write_story(story: tuple[Turn, ...]) -> str:
    """The lines that `parse_story` reads."""
    return "".join(f"{round(turn.at * 1000)} {turn.what} {turn.attempt} {turn.node} {turn.worker}\n" for turn in story)
