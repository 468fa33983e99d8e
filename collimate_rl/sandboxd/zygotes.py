"""Starting warm interpreters, keeping one per core alive, and asking them for forks."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd import launch
from collimate_rl.sandboxd.backend import IsolationUnavailable
from collimate_rl.sandboxd.findings import remedies
from collimate_rl.sandboxd.inside.channel import ChannelClosed, receive_report
from collimate_rl.sandboxd.jail import JailPlan, binds, jail_command
from collimate_rl.sandboxd.privileges import NobodyToBe, jail_user, read_privileges

log = logging.getLogger(__name__)
START_TIMEOUT_S = 120.0
_REPLACEMENT_WAIT_S = 10.0
_BACKOFF_S = (0.0, 0.1, 0.5, 2.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class ZygotePlan:
    """What a zygote is made from: its jail, the settings it reads, and the folder for staged binds."""

    jail: JailPlan
    settings: dict[str, Any]
    stage: str


def bringup_failed(message: str) -> CollimateError:
    """503: the fork failed and left nothing live."""
    return CollimateError(message, 503, "session_bringup_failed")


class Zygote:
    """One warm interpreter in its jail. It is started, and must be, by a thread that outlives it."""

    def __init__(self, plan: ZygotePlan) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        try:
            with theirs, tempfile.TemporaryFile() as settings:
                settings.write(json.dumps(plan.settings).encode())
                settings.seek(0)
                self._process = subprocess.Popen(
                    _launch_command(plan, control_fd=theirs.fileno(), settings_fd=settings.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    pass_fds=(theirs.fileno(), settings.fileno()),
                    env={"PATH": os.defpath},
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            self._errors.close()
            raise

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until it has imported everything; IsolationUnavailable with its own words when it can't."""
        answer = b""
        if select.select([self.control], [], [], timeout_s)[0]:
            try:
                answer = self.control.recv(65536)
            except ConnectionError:
                # It died before it read anything; its words are in the error file.
                pass
        said = json.loads(answer) if answer else {}
        if not said.get("ready"):
            self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            words = self._errors.read(4096).decode(errors="replace").strip()
            if "error" in said:
                raise IsolationUnavailable(f"the warm interpreter could not be set up: {said['error']}")
            raise IsolationUnavailable(
                f"bubblewrap could not build the jail: {words or f'no answer within {timeout_s:.0f} s'}. It needs user "
                f"namespaces, and a /proc of its own. {remedies() or 'Nothing in the way is to be seen from here'}. "
                "--check tells more; for tests without isolation: --isolation none"
            )

    def fork(self, kind: bytes, timeout_s: float) -> tuple[socket.socket, int, int]:
        """A fork: its channel, and the pidfds of its process 1 and of the process to put under limits.

        CollimateError (session_bringup_failed) when there is none.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self.control, [kind], [theirs.fileno()])
            if not select.select([ours], [], [], timeout_s)[0]:
                raise bringup_failed(f"the warm interpreter gave no fork within {timeout_s:.0f} s")
            answer, fds = receive_report(ours)
            if "error" in answer:
                raise bringup_failed(f"the fork failed: {answer['error']}")
        except (OSError, ChannelClosed) as exc:
            ours.close()
            raise bringup_failed(f"the warm interpreter is gone: {exc}") from exc
        except CollimateError:
            ours.close()
            raise
        return ours, fds[0], fds[1]

    def is_dead(self, within_s: float = 0.0) -> bool:
        """Whether it is gone (its end of the control socket is closed)."""
        fd = self.control.fileno()
        if fd < 0:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLHUP)
        return bool(poll.poll(within_s * 1000))

    def close(self) -> None:
        """End it and everything that was forked from it, and wait for that."""
        self.control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def started(plan: ZygotePlan) -> Zygote:
    """A zygote that is ready; nothing is left of one that can't be."""
    zygote = Zygote(plan)
    try:
        zygote.wait_ready()
    except BaseException:
        zygote.close()
        raise
    return zygote


def _launch_command(plan: ZygotePlan, *, control_fd: int, settings_fd: int) -> list[str]:
    try:
        user = jail_user(read_privileges())
    except NobodyToBe as exc:
        raise IsolationUnavailable(str(exc)) from exc
    moved: dict[str, str] = {}
    if user.staged:
        sources = [*plan.jail.bwrap.bundle, *(bind.source for bind in binds(plan.jail))]
        for number, source in enumerate(dict.fromkeys(sources)):
            # The wheel's folders find each other by their names.
            moved[source] = (
                f"{plan.stage}/{'bwrap' if source in plan.jail.bwrap.bundle else number}/{os.path.basename(source)}"
            )
    instructions = {
        "uid": user.uid,
        "gid": user.uid,
        "moves": list(moved.items()),
        "argv": jail_command(plan.jail, moved=moved, control_fd=control_fd, settings_fd=settings_fd),
    }
    return [sys.executable, "-I", "-S", os.path.abspath(launch.__file__), json.dumps(instructions)]


class ZygoteKeeper:
    """Keeps `count` zygotes per plan alive, from one thread of its own.

    That thread starts them all: the kernel ends a zygote when the THREAD that started it ends.
    """

    def __init__(self, plans: dict[Any, ZygotePlan], count: int) -> None:
        self._plans = plans
        self._count = count
        self._zygotes: dict[Any, list[Zygote]] = {key: [] for key in plans}
        self._turn = 0
        self._changed = threading.Condition()
        self._stop, self._stopped = os.pipe()
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="zygote-keeper", daemon=True)

    def start(self) -> None:
        """Start them all; IsolationUnavailable when one can't be."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def fork(self, key: Any, kind: bytes, timeout_s: float) -> tuple[Zygote, socket.socket, int, int]:
        """A fork of the next zygote in turn, after the zygote itself; of the one after it when that has died."""
        while True:
            zygote = self._pick(key)
            try:
                return zygote, *zygote.fork(kind, timeout_s)
            except CollimateError:
                if not zygote.is_dead():
                    raise

    def _pick(self, key: Any) -> Zygote:
        with self._changed:
            living: list[Zygote] = []

            def look() -> bool:
                living[:] = [zygote for zygote in self._zygotes[key] if not zygote.is_dead()]
                return bool(living)

            if not self._changed.wait_for(look, timeout=_REPLACEMENT_WAIT_S):
                raise bringup_failed("there is no warm interpreter, and none could be started in time")
            self._turn += 1
            return living[self._turn % len(living)]

    def close(self) -> None:
        """End all zygotes and the thread."""
        os.close(self._stopped)
        self._thread.join()

    def _keep(self) -> None:
        try:
            for key, plan in self._plans.items():
                for _ in range(self._count):
                    self._zygotes[key].append(Zygote(plan))
            for living in self._zygotes.values():
                for zygote in living:
                    zygote.wait_ready()
        except (OSError, IsolationUnavailable) as exc:
            self._failure = exc if isinstance(exc, IsolationUnavailable) else IsolationUnavailable(str(exc))
        self._ready.set()
        if self._failure is None:
            self._watch()
        for living in self._zygotes.values():
            for zygote in living:
                zygote.close()
        os.close(self._stop)

    def _watch(self) -> None:
        failures = 0
        while True:
            poll = select.poll()
            poll.register(self._stop, select.POLLIN | select.POLLHUP)
            owners: dict[int, tuple[Any, Zygote]] = {}
            for key, living in self._zygotes.items():
                for zygote in living:
                    owners[zygote.control.fileno()] = (key, zygote)
                    poll.register(zygote.control.fileno(), select.POLLHUP)
            short = any(len(living) < self._count for living in self._zygotes.values())
            pause = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)] * 1000 if short else None
            events = [fd for fd, _ in poll.poll(pause)]
            if self._stop in events:
                return
            for fd in events:
                key, zygote = owners[fd]
                log.warning("a warm interpreter died; starting another")
                with self._changed:
                    self._zygotes[key].remove(zygote)
                zygote.close()
            if short or events:
                failures = 0 if self._replace() else failures + 1

    def _replace(self) -> bool:
        for key, living in self._zygotes.items():
            while len(living) < self._count:
                try:
                    zygote = started(self._plans[key])
                except (OSError, IsolationUnavailable) as exc:
                    log.error("a warm interpreter could not be started: %s", exc)
                    return False
                with self._changed:
                    living.append(zygote)
                    self._changed.notify_all()
        return True
