"""What a test does to the world that a candidate elsewhere would not see: then the two can't be taken apart."""

from __future__ import annotations

import builtins
import os
import sys
from typing import Any, List

from collimate_rl.guest.pytests import MonkeyPatch

_STDIN = sys.stdin
_REPLACEABLE = (builtins.input, builtins.print, builtins.open)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_MAKING = ("os.mkdir", "os.rename", "os.symlink", "os.chdir", "sqlite3.connect")


class Reach:
    """The state of the process as the test found it, and what has become of it."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.arguments = list(sys.argv)
        self.wrote = False

    def watch(self) -> None:
        """Notes from now on, for as long as the process lives, whether files are written."""
        sys.addaudithook(self._noted)

    def _noted(self, event: str, args: Any) -> None:
        if event in _MAKING:
            self.wrote = True
        elif event == "open" and not self.wrote:
            path, _, flags = args
            if isinstance(path, (str, bytes, os.PathLike)) and isinstance(flags, int) and flags & _WRITING:
                name = os.fsdecode(path)
                self.wrote = not name.startswith(("/dev/", "/proc/")) and "__pycache__" not in name

    def beyond(self) -> List[str]:
        """Why the candidate, called now, would have to be in this process."""
        if sys.stdin is not _STDIN or (builtins.input, builtins.print, builtins.open) != _REPLACEABLE:
            return ["replaces what the candidate reads or prints with"]
        if self.wrote:
            return ["keeps files that the candidate may be meant to find"]
        if MonkeyPatch.used or sys.argv != self.arguments or dict(os.environ) != self.environment:
            return ["patches what the candidate may use"]
        return []
