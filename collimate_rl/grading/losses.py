"""Infra is no escape hatch: whose doing it is when a sandbox goes away under a candidate.

One loss says nothing: sandboxes are lost to restarts, janitors, idle limits and full machines. So a candidate is
believed to have brought its sandbox down only when that happened on two fresh forks, with each time a proof that
nothing else was wrong. In doubt it stays infra: a 0 that is not the candidate's is worse than a flagged result.

- Right after each loss a control, a trivial exec in a fork of its own, has to work.
- The first loss counts when the daemon that took the exec itself answered that the sandbox is lost. A connection that
  broke under an exec, or a session that is not known, may as well be a daemon that went and came back.
- From then on a bystander stands by: a session made before the candidate's next fork, which has to outlive it and to
  work after it. Whatever ends sandboxes wholesale (a restart, a drain, an idle or age limit, somebody who cleans up)
  ends the bystander too. What a bystander outlived counts however it was told, and nothing else counts any more.

So a candidate costs two forks and two controls, or three of each where the first loss was not told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from collimate_rl.errors import (
    RETRYABLE_BEFORE_WORK,
    AmbiguousError,
    CollimateDrainingError,
    CollimateError,
    MalformedAnswer,
    SandboxKilled,
)
from collimate_rl.grading.execute import ExecRequest, Executor, Role
from collimate_rl.sandbox import ExecResult
from collimate_rl.transport import SessionClient

FORKS: Final = 2
"""On how many fresh forks a sandbox has to be lost, with proof, before the candidate is held to have done it."""
CONTROL_WORD: Final = "collimate-control"
CONTROL_CODE: Final = f"print({CONTROL_WORD!r})"
CONTROL_TIMEOUT_S: Final = 10
DAEMONS_OWN_FAULT: Final = frozenset({"internal", "internal_error"})
_GONE: Final = frozenset({404, 410})


def session_lost(error: CollimateError) -> bool:
    """An exec in a session failed with this because the session is no more."""
    return error.status in _GONE and not error.is_misconfigured


def sandbox_lost(error: CollimateError) -> bool:
    """An exec in a sandbox of its own failed with this as if the sandbox had gone away under it.

    `session_gone`; a 500, unless its code proves that nothing ran or blames the daemon itself; a connection that broke.
    Not an answer that never came in time, nor one that could not be read: neither need be about the sandbox.
    """
    if not error.is_infra or error.is_misconfigured:
        return False
    if error.error_code in RETRYABLE_BEFORE_WORK | DAEMONS_OWN_FAULT:
        return False
    if isinstance(error, AmbiguousError):
        return not isinstance(error, MalformedAnswer) and not isinstance(error.__cause__, TimeoutError)
    return session_lost(error) or error.status == 500


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A sandbox lost under candidate `index`: by which error, whether the control worked, and how many count so far."""

    index: int
    error: CollimateError
    control: bool
    counted: int


class LossWitness:
    """An `Executor` that runs a candidate again on a fresh fork when its sandbox is lost, and then says who did it.

    `inner` has to use a fresh sandbox after each loss. What has an exec id it sends again to the same session, whatever
    became of it, until that is gone. Raises `SandboxKilled` when the candidate did it, else the error as it came (a
    control's, when that says that the daemon drains). `egress` and `label` are for the bystander, as for the
    candidate's own session; after `stop` nothing is started. `on_loss` hears of every loss.
    """

    def __init__(
        self,
        inner: Executor,
        client: SessionClient,
        template_id: str,
        *,
        egress: Mapping[str, Any] | None = None,
        label: str | None = None,
        stop: threading.Event | None = None,
        on_loss: Callable[[Loss], None] = lambda _loss: None,
    ) -> None:
        self._inner = inner
        self._client = client
        self._template_id = template_id
        self._egress = egress
        self._named: dict[str, Any] = {} if label is None else {"label": label}
        self._stop = stop
        self._on_loss = on_loss
        self._counted: dict[int, int] = {}
        """Losses that count, since its last answer, of every candidate that lost a sandbox at all."""
        self._under_way: set[int] = set()
        """Candidates whose exec may have begun in a session that is older than any bystander to come."""

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        if role != "runner" or index is None:
            return self._inner.run(request, role=role, index=index)
        in_session = request.exec_id is not None
        lost = session_lost if in_session else sandbox_lost
        while True:
            with self._bystander(wanted=index in self._counted) as bystander:
                try:
                    answer = self._attempt(request, index, again=in_session and bystander is not None)
                except CollimateError as error:
                    if not lost(error) or self._stopped:
                        if in_session:
                            self._under_way.add(index)
                        raise
                    self._weigh(index, error, None if index in self._under_way else bystander)
                    self._under_way.discard(index)
                else:
                    self._under_way.discard(index)
                    self._counted.pop(index, None)
                    return answer

    def _attempt(self, request: ExecRequest, index: int, *, again: bool) -> ExecResult:
        try:
            return self._inner.run(request, role="runner", index=index)
        except AmbiguousError:
            if not again or self._stopped:
                raise
        # Its session tells what became of it, while the same bystander stands by.
        return self._inner.run(request, role="runner", index=index)

    @property
    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _weigh(self, index: int, error: CollimateError, bystander: str | None) -> None:
        """Returns when the candidate is to run once more."""
        try:
            works = self._control_works(bystander)
        except CollimateDrainingError as away:
            raise away from error
        counted = self._counted.get(index, 0)
        told = error.status is not None and error.status != 404
        if works and (bystander is not None or (told and not counted)):
            counted += 1
        self._counted[index] = counted
        self._on_loss(Loss(index=index, error=error, control=works, counted=counted))
        if not works or self._stopped:
            raise error
        if counted >= FORKS:
            raise SandboxKilled(
                f"its sandbox was lost under it on {FORKS} fresh forks, while other execs on the same node worked: "
                f"{error.message:.300}"
            ) from error

    def _control_works(self, bystander: str | None) -> bool:
        asked: dict[str, Any] = {"code": CONTROL_CODE, "timeout_seconds": CONTROL_TIMEOUT_S}
        try:
            answers = [self._client.exec_once(self._template_id, egress=self._egress, **asked)]
            if bystander is not None:
                answers.append(self._client.session_exec(bystander, **asked))
        except CollimateDrainingError:
            raise
        except CollimateError:
            # Whatever it is: the node doesn't work as it should, which is all that was asked.
            return False
        return all(answer["exit_code"] == 0 and answer["stdout"].strip() == CONTROL_WORD for answer in answers)

    @contextmanager
    def _bystander(self, *, wanted: bool) -> Iterator[str | None]:
        """The id of a session that stands by meanwhile; None where none is wanted."""
        if not wanted:
            yield None
            return
        session = self._client.create_session(self._template_id, egress=self._egress, **self._named)["session_id"]
        try:
            yield session
        finally:
            try:
                self._client.delete_session(session)
            except CollimateError:
                # Gone with its daemon, or left to the daemon's idle limit and the janitor: as with any session.
                pass
