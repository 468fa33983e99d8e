"""A node's pause: while its daemon takes no work, none of its worker processes takes a job. One file says so to all.

It stands beside the slots' lock files. Instants in it are on the machine's monotonic clock, which processes share; one
of another boot reads as due. Where it can't be written (a full disk, rights taken away) each process keeps a pause of
its own: a batch must not fail for a file.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

LONGEST_WAIT_S = 60.0
"""No look and no try is ever set further ahead: an instant beyond that is of another boot."""


def pause_file(state_dir: str, node: str) -> Path:
    """Where a node's pause is, shared by its processes."""
    return Path(state_dir) / node / "paused"


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Why and since when nothing is taken. `draining`: the daemon said so itself, and only a probe ends it.

    `template` is one that the daemon has, to probe it by.
    """

    reason: str
    template: str | None
    draining: bool
    since: float
    look_at: float
    """When the daemon is looked at next, by whichever process comes first."""
    anyway_at: float | None
    """When jobs are taken again whatever the daemon does; None: never."""


class NodePause:
    """The pause in the file at `path`. One object per process; every call is safe against other processes'."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._clock = clock
        self._own: Pause | None = None
        """One that could not be written."""
        self._ended: float | None = None
        """Since when the pause was on whose file could not be removed."""
        self._unshared: OSError | None = None

    def unshared(self) -> OSError | None:
        """Why, since this was last asked, the file was out of reach, so that this process went by itself; or None."""
        error, self._unshared = self._unshared, None
        return error

    def current(self) -> Pause | None:
        """The pause that is on; None when jobs may be taken."""
        if self._own is not None:
            return self._own
        shared = self._shared()
        return None if shared is None or shared.since == self._ended else shared

    def _shared(self) -> Pause | None:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unshared = error
            return None
        try:
            fields = json.loads(text)
            return Pause(**fields)
        except (ValueError, TypeError):
            # Whoever wrote this was of another version: paused for a reason unknown here, until a look says otherwise.
            return Pause(reason="unknown", template=None, draining=True, since=0.0, look_at=0.0, anyway_at=None)

    def drains(self) -> bool:
        """The node is paused because its daemon drains."""
        pause = self.current()
        return pause is not None and pause.draining

    def begin(self, reason: str, *, template: str | None, draining: bool, anyway_in_s: float | None) -> bool:
        """Pause the node; the first look is due at once. False when it was paused already.

        A drain outranks an absence: the daemon that drains goes away at the end of it.
        """
        with self._locked():
            before = self.current()
            if before is not None and (before.draining or not draining):
                return False
            now = self._clock()
            anyway_at = None if anyway_in_s is None or draining else now + anyway_in_s
            self._keep(
                Pause(
                    reason=reason,
                    template=template,
                    draining=draining,
                    since=now,
                    look_at=now,
                    anyway_at=anyway_at,
                )
            )
            return before is None

    def take_turn(self, next_in_s: float) -> Pause | None:
        """The pause, when a look at the daemon is due and this process is to look; the next one is due `next_in_s` on.

        None when it isn't due, or when the pause is over.
        """
        now = self._clock()
        seen = self.current()
        if seen is None or not self._is_due(seen.look_at, now):
            return None
        with self._locked():
            seen = self.current()
            if seen is None or not self._is_due(seen.look_at, now):
                return None
            mine = replace(seen, look_at=now + next_in_s)
            self._keep(mine)
            return mine

    def is_over(self, pause: Pause) -> bool:
        """The time has come to take jobs anyway."""
        return pause.anyway_at is not None and self._is_due(pause.anyway_at, self._clock())

    def end(self, seen: Pause) -> bool:
        """Jobs may be taken again, unless another pause has begun since this one was seen. True when this ended it."""
        with self._locked():
            now = self.current()
            if now is None or now.since != seen.since:
                return False
            self._own = None
            try:
                shared = self._shared()
                if shared is not None and shared.since == seen.since:
                    self._path.unlink(missing_ok=True)
            except OSError as error:
                self._ended, self._unshared = seen.since, error
            return True

    @staticmethod
    def _is_due(at: float, now: float) -> bool:
        return now >= at or at - now > LONGEST_WAIT_S

    def _keep(self, pause: Pause) -> None:
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            part.write_text(json.dumps(asdict(pause)), encoding="utf-8")
            part.replace(self._path)
        except OSError as error:
            self._own, self._unshared = pause, error
        else:
            self._own = None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # somebody may have cleaned up
            lock = os.open(
                self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            self._unshared = error
            yield  # of this process alone then
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
