"""Every error the product raises on purpose, in one tree.

    CollimateError                  the root: message, status, error_code
    ├── UnreachableError            no byte was sent: the request provably did not happen
    ├── AmbiguousError              sent, no answer: it may or may not have happened
    │   └── MalformedAnswer         an answer came that is none of the API's
    ├── CollimateDrainingError      the daemon refuses work because it is going away
    ├── GatewayError                the gateway's own refusal: message, status, code
    │   ├── DemoTierLimit           a limit of the demo tier; the message is the server's, word for word
    │   └── TemplateBakeFailed      a template ended in the phase Failed; .status says why
    ├── TransferError               file IO with a sandbox did not arrive whole
    ├── CollimateTaskError          a command failed inside the guest: the task's own doing
    │   └── GuestFileError          (a TransferError too) the guest has no such file, or cannot take it
    ├── SandboxKilled               a candidate brought its sandbox down, twice: its own doing
    └── QueueError                  the queue's side
        ├── RedisUnavailable        the server cannot be reached
        ├── UnsuitableServer        too old, or it may evict keys
        ├── QueueFull               more unanswered batches than the queue admits
        ├── BatchConflict           the same (run, id) was submitted with other content
        ├── BatchGone               the batch or its result is no longer kept
        ├── BadMessage              a payload that is no message of ours
        │   └── UnknownVersion      a message of a later version than this code reads
        ├── Ungraded                candidates without a verdict, and the caller asked to be told
        └── RunMisconfigured        an infra code that no retry heals (no_template, unauthorized, …)
            └── GraderChanged       another grader judged than the one that the run is held to

Arguments that are wrong in themselves are plain `ValueError`s; a wait that ran out is a `TimeoutError`.
`exc.is_infra` tells the sides apart: False means that the candidate's (or the task's) own code failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RETRYABLE_BEFORE_WORK = frozenset({"at_capacity", "session_bringup_failed", "draining"})
"""Codes that prove that nothing ran, so that a create or an exec may be sent again (docs/reference/sdk.md, Retries)."""

BACKPRESSURE = frozenset({"at_capacity", "rate_limited", "demo_tier_limit"})
"""Codes that say "not now", before anything ran: a worker waits them out until its batch's deadline."""

MISCONFIGURED = frozenset(
    {
        "no_template",
        "template_id_required",
        "unauthorized",
        "forbidden",
        "quota_exceeded",
        "insufficient_credits",
        "network_requires_pro",
        "invalid_seed",
        "bad_request",
        "command_too_large",
        "grader_changed",
    }
)
"""Codes that say that the run is set up wrongly: always raised on the trainer's side, never scored."""


class CollimateError(Exception):
    """The backend, the wire or the product failed; `error_code` is the wire's code where there was one.

    `retry_after_s` is set where the answer said when to come again (Retry-After). `answer` is the whole of a refusal,
    where that was a JSON object: a daemon whose health fails says there what it has.
    """

    def __init__(self, message: str, status: int | None = None, error_code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.error_code = error_code
        self.retry_after_s: float | None = None
        self.answer: Mapping[str, Any] | None = None

    @property
    def is_infra(self) -> bool:
        """True when the failure says nothing about the candidate."""
        return True

    @property
    def is_misconfigured(self) -> bool:
        """True when trying again cannot help, because the run itself is set up wrongly."""
        return self.error_code in MISCONFIGURED


class UnreachableError(CollimateError):
    """Nothing was sent: connection refused, no such socket, no such host."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None, "unreachable")


class AmbiguousError(CollimateError):
    """The request left this process and no answer came back: it is never sent again blindly."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None, "ambiguous")


class MalformedAnswer(AmbiguousError):
    """The peer answered with something that is no answer of this API: what it did is not known."""


class CollimateDrainingError(CollimateError):
    """The daemon was still draining when the retry budget ran out."""

    def __init__(self, message: str, status: int | None = 503, error_code: str | None = "draining") -> None:
        super().__init__(message, status, error_code)


class GatewayError(CollimateError):
    """The gateway refused. `code` (also `error_code`) is its code, or that of a daemon behind it."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message, status, code)

    @property
    def code(self) -> str | None:
        return self.error_code


class DemoTierLimit(GatewayError):
    """A limit of the demo tier, refused before anything ran. The message is for the user, and shown as it came."""

    def __init__(self, message: str, status: int | None = 429, code: str | None = "demo_tier_limit") -> None:
        super().__init__(message, status, code)


class TemplateBakeFailed(GatewayError):
    """A template ended in the phase Failed, for good. `status` is what the gateway tells of it (`TemplateStatus`)."""

    def __init__(self, message: str, status: Any = None, code: str | None = "template_bake_failed") -> None:
        super().__init__(message, None, code)
        self.status = status


class TransferError(CollimateError):
    """A file did not arrive byte for byte; the target is as it was before."""


class CollimateTaskError(CollimateError):
    """A command failed inside the guest: the task's own doing, not the infrastructure's."""

    def __init__(self, exit_code: int, output: str) -> None:
        super().__init__(f"the command exited with {exit_code}: {output[-2000:]}")
        self.exit_code = exit_code
        self.output = output

    @property
    def is_infra(self) -> bool:
        return False


class GuestFileError(TransferError, CollimateTaskError):
    """What the guest said to a transfer: no such file, no folder to put it in, a full disk. Not the wire's doing."""

    def __init__(self, message: str, exit_code: int, output: str) -> None:
        CollimateError.__init__(self, message)
        self.exit_code = exit_code
        self.output = output


class SandboxKilled(CollimateError):
    """A candidate brought its sandbox down on two fresh forks: its own doing. Grading makes an outcome of it."""

    @property
    def is_infra(self) -> bool:
        return False


class QueueError(CollimateError):
    """Something about the queue, its server or its messages."""


class RedisUnavailable(QueueError):
    """The Redis server cannot be reached, or stopped answering within the budget."""


class UnsuitableServer(QueueError):
    """The Redis server is too old, or its policy may evict keys: batches could be lost there."""


class QueueFull(QueueError):
    """The queue holds as many unanswered batches as it admits."""


class BatchConflict(QueueError):
    """The same (run, id) is known with other content."""


class BatchGone(QueueError):
    """The batch, or its result, is no longer kept."""


class BadMessage(QueueError):
    """Bytes that are no message of this protocol, or a message with a field that is off."""


class UnknownVersion(BadMessage):
    """A message of a later version than this code reads."""


class Ungraded(QueueError):
    """Candidates of a batch have no verdict: the infrastructure failed, and the caller asked to be told."""


class RunMisconfigured(QueueError):
    """A result carries a code that no retry heals; raised on the trainer's side whatever the policy."""


class GraderChanged(RunMisconfigured):
    """A batch was judged by another grader than the one that its run is held to; its rewards are not handed out."""

    def __init__(self, message: str, status: int | None = None, error_code: str | None = "grader_changed") -> None:
        super().__init__(message, status, error_code)
