"""The answer to one batch, and how a trainer turns it into rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from collimate_rl.errors import RunMisconfigured, Ungraded
from collimate_rl.protocol.bounds import check_int, check_name, one_line
from collimate_rl.protocol.codes import ResultStatus
from collimate_rl.protocol.messages import Verdict
from collimate_rl.protocol.story import Turn

OnInfra = Literal["raise", "drop", "none"]


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """All K answers of a batch, in the group's order; times are Unix seconds."""

    run: str
    id: str
    epoch: int
    status: ResultStatus
    results: tuple[Verdict, ...]
    submitted_at: float
    """The producer's clock."""
    claimed_at: float | None
    """The server's clock: the first claim; None when nobody ever claimed it."""
    finished_at: float
    """The server's clock."""
    attempts: int
    """How often it was claimed."""
    worker: str
    """The last owner's name; empty when there was none."""
    queued_at: float | None = None
    """The server's clock: when it was submitted there."""
    story: tuple[Turn, ...] = ()
    """Who held it when, up to the answer, by the server's clock; the last 24 turns."""
    received_at: float | None = field(default=None, compare=False)
    """The clock of the producer that has it: when it came there. No part of the message, and no matter to equality."""

    def __post_init__(self) -> None:
        for what in ("run", "id"):
            check_name(what, getattr(self, what))
        check_int("epoch", self.epoch, 0, 2**53)
        check_int("attempts", self.attempts, 0, 2**53)
        object.__setattr__(self, "status", ResultStatus(self.status))
        object.__setattr__(self, "results", tuple(self.results))
        object.__setattr__(self, "story", tuple(self.story))
        if not self.results or [v.index for v in self.results] != list(range(len(self.results))):
            raise ValueError("results are not one verdict per candidate, in order")

    @property
    def infra_errors(self) -> tuple[Verdict, ...]:
        """The infra-flagged answers among `results`."""
        return tuple(v for v in self.results if v.infra_error)

    def raise_if_misconfigured(self) -> None:
        """Raise `RunMisconfigured` when any code says that the run itself is set up wrongly."""
        for verdict in self.results:
            if verdict.is_misconfigured:
                told = f": {verdict.detail}" if verdict.detail else ""
                raise RunMisconfigured(
                    f"batch {self.id!r} of run {self.run!r} was answered {verdict.error_code!r}{told}; "
                    "trying again cannot help, correct the run's set-up",
                    None,
                    verdict.error_code,
                )

    def rewards(self, on_infra: OnInfra = "raise", min_valid: int = 0) -> list[float | None]:
        """The group's rewards, in order.

        on_infra -- what an infra-flagged candidate becomes: "raise" raises `Ungraded`, "drop" leaves it out (the
                    list is shorter), "none" puts None in its place.
        min_valid -- fewer real rewards than this raise `Ungraded` under every policy.

        Codes that mean that the run is misconfigured always raise `RunMisconfigured`.
        """
        if on_infra not in ("raise", "drop", "none"):
            raise ValueError(f"on_infra {on_infra!r} is none of raise, drop, none")
        self.raise_if_misconfigured()
        flagged = self.infra_errors
        valid = len(self.results) - len(flagged)
        if flagged and (on_infra == "raise" or valid < min_valid):
            codes = ", ".join(sorted({str(v.error_code) for v in flagged}))
            why = next((f"; candidate {v.index}: {one_line(v.detail)}" for v in flagged if v.detail), "")
            raise Ungraded(
                f"{len(flagged)} of {len(self.results)} candidates of batch {self.id!r} (run {self.run!r}) have no "
                f"verdict ({codes}), which says nothing about them: producer.resubmit(handle) submits them again{why}",
                None,
                flagged[0].error_code,
            )
        if valid < min_valid:
            raise Ungraded(f"batch {self.id!r} has {valid} candidates, fewer than min_valid={min_valid}")
        return [v.reward for v in self.results if on_infra == "none" or not v.infra_error]
