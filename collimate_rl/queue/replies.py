"""What the scripts answer, as types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from collimate_rl.queue._raw import text


class Submitted(str, Enum):
    NEW = "NEW"
    SAME = "SAME"
    """Known with this content: the stored batch stands, this producer gets its result too."""
    DONE = "DONE"
    """Answered already: read the result."""
    CONFLICT = "CONFLICT"
    """Known with other content."""
    FULL = "FULL"
    """The queue's depth is reached."""
    WINDOW = "WINDOW"
    """The run's window is full."""


class SubmitReply(NamedTuple):
    word: Submitted
    number: int
    """NEW, SAME: the deadline in ms from now. FULL: the depth. WINDOW: the run's unanswered batches."""


class Claimed(str, Enum):
    OK = "OK"
    BUSY = "BUSY"
    DONE = "DONE"
    GONE = "GONE"


@dataclass(frozen=True)
class Hold:
    """The right to work on batch `k`: what every owner's call carries. A higher fence anywhere ends it."""

    k: str
    owner: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a successful claim hands out; all of one instant."""

    hold: Hold
    payload: bytes
    """The packed GradeBatch; empty when it is lost, which no worker can heal: publish with fill="internal"."""
    lease_s: float
    deadline_in_s: float
    """May be negative: the owner may go on for 30 s past it."""
    queue_ms: float
    """From submit to the first claim."""
    verdicts: Mapping[int, bytes]
    """Packed verdicts that stand: these candidates are judged."""
    ledger: Mapping[int, bytes]
    """Packed session entries of earlier owners."""
    cautious: bool
    """Mark every start; run what has blame 2 alone and last; leave out what has blame 3 (publish answers it)."""
    blame: Mapping[int, int]
    """Candidate to counted losses; empty unless cautious."""
    losses: int
    errors: int
    passes: int
    """How often owners have given it back because the infrastructure failed them."""

    @property
    def quarantined(self) -> frozenset[int]:
        """Candidates that must not run any more; `publish` answers them by itself."""
        return frozenset(i for i, n in self.blame.items() if n >= self.max_blame)

    max_blame: int = 3


class ClaimReply(NamedTuple):
    word: Claimed
    grant: Grant | None = None
    """There exactly when the word is OK."""
    busy_ms: int = 0


class Renewed(str, Enum):
    OK = "OK"
    FENCED = "FENCED"
    OVERDUE = "OVERDUE"


class RenewReply(NamedTuple):
    word: Renewed
    lease_s: float = 0.0
    cancelled: bool = False
    """Somebody asked to cancel: stop, and publish with fill="cancelled"."""
    deadline_in_s: float = 0.0


class Written(str, Enum):
    ACCEPTED = "ACCEPTED"
    STANDS = "STANDS"
    """Another verdict stands, and stays."""
    FENCED = "FENCED"


class Remembered(str, Enum):
    KEPT = "KEPT"
    STANDS = "STANDS"
    """One is kept already, and stays."""
    NO_ROOM = "NO_ROOM"
    """The run's cache is full."""
    FENCED = "FENCED"


class Published(str, Enum):
    OK = "OK"
    ALREADY = "ALREADY"
    FENCED = "FENCED"
    MISSING = "MISSING"


class PublishReply(NamedTuple):
    word: Published
    missing: tuple[int, ...] = ()

    @classmethod
    def read(cls, reply: list[Any]) -> PublishReply:
        """What the script answered."""
        word, *missing = reply
        return cls(Published(text(word)), tuple(int(index) for index in missing))


class Mode(str, Enum):
    """Why an owner gives a batch back."""

    CLEAN = "clean"
    """A stop, a drain: uncounted, rings at once at the front."""
    PASS = "pass"  # noqa: S105 - no password
    """The infrastructure failed here; others shall try, after a back-off."""
    LATER = "later"
    """A message of a later version: some other worker may know it, in 30 s."""
    ERROR = "error"
    """An exception in our own code; the third in a row without a verdict answers the batch as failed."""


class Released(str, Enum):
    RELEASED = "RELEASED"
    ANSWERED = "ANSWERED"
    FENCED = "FENCED"


class ReleaseReply(NamedTuple):
    word: Released
    dropped: Mapping[int, bytes]
    """Ledger entries taken out: their sessions are the caller's to delete."""


class Buried(str, Enum):
    NONE = "NONE"
    RELEASED = "RELEASED"
    ANSWERED = "ANSWERED"


class BuryReply(NamedTuple):
    word: Buried
    k: str | None = None


class Mended(str, Enum):
    FORGOT = "FORGOT"
    LIVE = "LIVE"
    ANSWERED = "ANSWERED"
    SETTLING = "SETTLING"
    RELEASED = "RELEASED"
    WAITING = "WAITING"
    LISTED = "LISTED"
    LOOK = "LOOK"
    RUNG = "RUNG"


class Cancelled(str, Enum):
    ASKED = "ASKED"
    ANSWERED = "ANSWERED"
    DONE = "DONE"
    GONE = "GONE"


class Purged(str, Enum):
    PURGED = "PURGED"
    OTHER = "OTHER"
    """It is another run's batch."""
    GONE = "GONE"


class Tallied(str, Enum):
    OK = "OK"
    STALE = "STALE"
    """The cursor is elsewhere: another counted, or this call was carried out before."""
    NOT_LEADING = "NOT_LEADING"


class TallyReply(NamedTuple):
    word: Tallied
    cursor: str = ""
    """Where the cursor is."""


class NoteReply(NamedTuple):
    accepted: bool
    replaced: bytes | None = None
    """The entry that stood before: its session is now the caller's to delete."""
    noted: bool = False
    """The session given is known as noted. A refused session that never was is the caller's to delete."""


class BeatReply(NamedTuple):
    settled: bool
    for_ms: int


class SeatReply(NamedTuple):
    mine: bool
    told: int
    """The places taken; or, where it is not the caller's, the ms until the first may come free."""


class LeaseReply(NamedTuple):
    mine: bool
    ms: int
    """Until it ends: the caller's own, or whoever holds it."""
