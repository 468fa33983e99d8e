"""A sandbox daemon of a given isolation, on a unix socket."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from collimate_rl import CollimateClient
from collimate_rl.errors import CollimateError

START_S = 60.0


class Daemon:
    """Context manager: `client` speaks to it."""

    def __init__(self, socket: Path, isolation: str = "namespaces") -> None:
        self._log = socket.with_suffix(".log")
        argv = [sys.executable, "-m", "collimate_rl.local_backend", "--socket", str(socket), "--isolation", isolation]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.client = CollimateClient(unix_socket=socket)

    def __enter__(self) -> Daemon:
        end = time.monotonic() + START_S
        while True:
            try:
                self.client.health()
                return self
            except CollimateError:
                if self._process.poll() is not None or time.monotonic() > end:
                    self._stop()
                    raise RuntimeError(f"the daemon did not start:\n{self._log.read_text()[-2000:]}") from None
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self.client.close()
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(15)
