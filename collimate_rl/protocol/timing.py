"""How long things last on the queue. The scripts get these as a block of constants, so tests can shorten them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All in milliseconds, counted by the server's clock; the `*_every_ms` are the pace of our own loops.

    Every process on one queue should hold the same values: a lease is stored as an instant, so another length
    elsewhere loses nothing, but takeovers come sooner or later than its owner expects.
    """

    lease_ms: int = 12_000
    """A claim holds this long without a renewal."""
    renew_every_ms: int = 3_000
    overdue_ms: int = 30_000
    """Past the deadline by this much, renewals are refused."""
    recheck_ms: int = 10_000
    """An unanswered batch that looks well is looked at again after this."""
    look_ms: int = 4_000
    """A bell must be missing twice, this far apart, before another is rung."""
    later_ms: int = 30_000
    """A batch of an unknown version rings again after this."""
    backoff_ms: int = 2_000
    """The n-th error in a row, or the n-th pass, rings after n times this."""
    settle_ms: int = 12_000
    """The beats must have come this long without a gap before an expired lease is taken over."""
    gap_ms: int = 6_000
    beat_every_ms: int = 2_000
    alive_ms: int = 9_000
    """`col:alive:worker` and a node's heartbeat last this long: no longer than what is left of a lease that was just
    about to be renewed, so that the takeover of a lost node's batch finds its worker gone, and counts the loss."""
    home_ms: int = 10_000
    """For so long a batch whose sessions only its last owner's node can reach is kept for that node."""
    janitor_lease_ms: int = 6_000
    producer_lease_ms: int = 15_000
    keep_ms: int = 86_400_000
    """Keys outlive the deadline, and after the answer the answer, by this much."""
    quarantine_ms: int = 604_800_000
    """The payload of a batch with a quarantined candidate is kept this long, as evidence."""
    numbers_ms: int = 691_200_000
    """What is counted of a run and of a queue is kept this long after the last count."""
    bell_ms: int = 86_400_000
    """An rq job hash of ours expires after this."""
    max_errors: int = 3
    """So many exceptions of our own code in a row, without a verdict, answer the batch as failed."""
    max_blame: int = 3
    """So many counted losses blamed on a candidate quarantine it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"Timing.{field.name} is {value!r}: a positive integer is needed")
        if self.renew_every_ms >= self.lease_ms:
            raise ValueError("a lease must outlast the pause between two renewals")
        if self.beat_every_ms >= self.gap_ms:
            raise ValueError("the tolerated gap must outlast the pause between two beats")
