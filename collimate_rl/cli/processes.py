"""Child processes of a command: each in a group of its own, with a log file, stopped for certain.

A terminal's Ctrl-C goes to the whole foreground process group; children in sessions of their own do not see it, so
that the command that started them can stop them in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 10.0
"""How long a child may take to leave after SIGTERM, before its whole group is killed."""
KILL_WAIT_S = 10.0


@dataclass
class Child:
    """A started process, its name for messages, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, argv: Sequence[str], log: Path, env: dict[str, str] | None = None) -> Child:
        """Starts `argv` in a session of its own; stdout and stderr are appended to `log`."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def last_words(self, lines: int = 15) -> str:
        """The end of the log, for messages."""
        try:
            text = self.log.read_bytes()[-8192:].decode("utf-8", "replace")
        except OSError as error:
            return f"({self.log}: {error.strerror})"
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, grace_s: float = GRACE_S) -> bool:
        """SIGTERM, and after `grace_s` seconds SIGKILL to the whole group; True when it left by itself."""
        orderly = True
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                orderly = False
        self._kill_group()
        self.process.wait(KILL_WAIT_S)
        return orderly

    def _kill_group(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the usual case: nobody of the group is left
        except PermissionError:
            pass  # what is left of it changed its user, and dies with its parent
