"""Forks of a warm interpreter in namespaces of their own: the isolation `namespaces`."""

from __future__ import annotations

import base64
import logging
import os
import select
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd import cgroups, seccomp
from collimate_rl.sandboxd.backend import Box, IsolationUnavailable, Outcome
from collimate_rl.sandboxd.boxes import NamespaceBox
from collimate_rl.sandboxd.config import MIB, Limits, Template
from collimate_rl.sandboxd.forks import Fork
from collimate_rl.sandboxd.guests import GuestPrograms
from collimate_rl.sandboxd.inside.channel import ChannelClosed, receive_report, send_request
from collimate_rl.sandboxd.interpreter import inspect_interpreter
from collimate_rl.sandboxd.jail import Bwrap, BwrapMissing, JailPlan, find_bwrap, rebinds, write_etc
from collimate_rl.sandboxd.rundir import RunFolder
from collimate_rl.sandboxd.running import Running
from collimate_rl.sandboxd.wire import WORKDIR, Exec
from collimate_rl.sandboxd.zygotes import ZygoteKeeper, ZygotePlan, bringup_failed

log = logging.getLogger(__name__)
_PRELOAD = (
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "io",
    "itertools",
    "json",
    "math",
    "operator",
    "pickle",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "tempfile",
    "textwrap",
    "time",
    "traceback",
    "types",
    "typing",
)
"""What candidates import most; warm, they cost a fork nothing."""
_EXEC_FDS = 1024
_ZYGOTE_FDS = 256
"""What a zygote holds beside one pidfd per session, if all of them are its own."""
_ADDRESS_SPACE_SLACK = 512 * MIB
"""Where there are no control groups, RLIMIT_AS stands in for the memory limit; the interpreter's own mappings
and thread stacks count in it."""


class NamespaceBackend:
    """See the module. `limits` bound what a fork may take to come up, to run, to die."""

    name = "namespaces"

    def __init__(self, templates: Mapping[str, Template], limits: Limits, *, zygotes: int) -> None:
        self._templates = dict.fromkeys(templates.values())
        self._limits = limits
        self._count = zygotes
        self._programs = GuestPrograms.known()
        self._folder: RunFolder | None = None
        self._cgroups: cgroups.Cgroups = cgroups.NoCgroups()
        self._keeper: ZygoteKeeper | None = None
        self._unclean = 0

    def start(self) -> None:
        """Build the jails and warm the interpreters; IsolationUnavailable when this machine can't."""
        self._folder = RunFolder.create()
        try:
            self._start_below(self._folder)
        except BaseException:
            self.close()
            raise

    def _start_below(self, folder: RunFolder) -> None:
        if sys.platform != "linux":
            raise IsolationUnavailable(
                f"namespaces need Linux, and this is {sys.platform}: --isolation none is for tests"
            )
        machine = os.uname().machine
        if machine not in seccomp.ARCHITECTURES:
            raise IsolationUnavailable(f"there is no system call filter for {machine}: use isolation none")
        try:
            bwrap = find_bwrap()
        except BwrapMissing as exc:
            raise IsolationUnavailable(str(exc)) from exc
        layout = cgroups.read_layout()
        cgroups.sweep_stale(cgroups.stale_places(layout), RunFolder.is_alive)
        self._cgroups = cgroups.open_cgroups(layout, folder.mark)
        write_etc(folder.path("etc"))
        shutil.copytree(
            os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside"),
            folder.path("inside"),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        filters = seccomp.build_filters(seccomp.ARCHITECTURES[machine])
        plans = {
            template: self._plan(folder, number, template, bwrap, filters)
            for number, template in enumerate(self._templates)
        }
        self._keeper = ZygoteKeeper(plans, self._count)
        self._keeper.start()

    def _plan(
        self, folder: RunFolder, number: int, template: Template, bwrap: Bwrap, filters: seccomp.Filters
    ) -> ZygotePlan:
        try:
            interpreter = inspect_interpreter(template.interpreter or sys.executable)
        except ValueError as exc:
            raise IsolationUnavailable(str(exc)) from exc
        jail = JailPlan(
            bwrap=bwrap,
            interpreter=interpreter,
            etc_folder=folder.path("etc"),
            guest_folder=folder.path("inside"),
            tmpfs_bytes=template.tmpfs_mb * MIB,
        )
        settings = {
            "preload": [*_PRELOAD, *template.preload],
            "programs": self._programs.texts,
            "base_filter": base64.b64encode(filters.base).decode(),
            "seal_filter": base64.b64encode(filters.seal).decode(),
            "max_fd": self._limits.max_sessions + _ZYGOTE_FDS,
            "exec_rlimits": {"RLIMIT_NOFILE": _EXEC_FDS, **self._stand_ins(template)},
            "tmpfs_bytes": template.tmpfs_mb * MIB,
            "workdir": WORKDIR,
            "rebinds": rebinds(interpreter.roots),
        }
        return ZygotePlan(jail=jail, settings=settings, stage=folder.path(f"stage{number}"))

    def _stand_ins(self, template: Template) -> dict[str, int]:
        if self._cgroups.kind != "none":
            return {}
        return {
            "RLIMIT_AS": template.memory_mb * MIB + _ADDRESS_SPACE_SLACK,
            "RLIMIT_NPROC": template.pids * self._limits.max_inflight,
        }

    def run_once(self, template: Template, request: Exec) -> Outcome:
        """Fork, run, discard. A fork that died before it began raises session_bringup_failed."""
        began = time.monotonic()
        fork = self._fork(template, b"once")
        fork_ms = (time.monotonic() - began) * 1000
        try:
            running = Running(fork, request, self._frame(request), self._limits, own_reports=False)
            try:
                running.send()
                report = running.report()
                fork.kill()
                if not running.collector.until_closed(time.monotonic() + self._limits.kill_timeout_s):
                    log.error("a fork's processes hold its output after its end")
                return running.outcome(report, fork_ms)
            finally:
                running.close()
        finally:
            self._dispose(fork)

    def create(self, template: Template) -> Box:
        """A fork that stays."""
        began = time.monotonic()
        fork = self._fork(template, b"session")
        try:
            send_request(fork.channel, {"begin": True})
            if not select.select([fork.channel], [], [], self._limits.bringup_timeout_s)[0]:
                raise bringup_failed("the session's fork did not come up in time")
            answer = receive_report(fork.channel)[0]
            if "error" in answer:
                raise bringup_failed(f"the session's fork failed: {answer['error']}")
        except (ChannelClosed, OSError) as exc:
            self._dispose(fork)
            raise bringup_failed("the session's fork died while it came up") from exc
        except CollimateError:
            self._dispose(fork)
            raise
        return NamespaceBox(fork, (time.monotonic() - began) * 1000, self._limits, self._frame)

    def _fork(self, template: Template, kind: bytes) -> Fork:
        assert self._keeper is not None
        try:
            group = self._cgroups.create(
                memory_bytes=template.memory_mb * MIB, pids=template.pids + (kind == b"session")
            )
        except OSError as exc:
            raise bringup_failed(f"no control group for the fork: {exc}") from exc
        try:
            zygote, channel, first, limited = self._keeper.fork(template, kind, self._limits.bringup_timeout_s)
        except CollimateError:
            group.remove()
            raise
        fork = Fork(zygote, channel, first, group, out_of_reach=kind == b"once")
        try:
            group.add(pid_of(limited))
        except OSError as exc:
            self._dispose(fork)
            raise bringup_failed(f"the fork could not be put under its limits: {exc}") from exc
        finally:
            os.close(limited)
        return fork

    def _frame(self, request: Exec) -> dict[str, Any]:
        frame: dict[str, Any] = {
            "seed": request.seed,
            "files": [(path, len(content)) for path, content in request.files],
        }
        if request.command is not None:
            frame.update(kind="command", command=request.command)
        elif request.commands is not None:
            frame.update(kind="commands", commands=request.commands)
        else:
            assert request.code is not None
            program = self._programs.name_of(request.code)
            if program is None:
                frame.update(kind="code", code=request.code)
            else:
                frame.update(kind="program", program=program)
        return frame

    def _dispose(self, fork: Fork) -> None:
        if not fork.dispose(self._limits.kill_timeout_s):
            self._unclean += 1
            log.error("a fork could not be killed within %s s", self._limits.kill_timeout_s)

    def facts(self) -> dict[str, Any]:
        """What health tells about the isolation."""
        notes = []
        if self._cgroups.kind == "none":
            notes.append(
                "no control groups: memory is limited per process, and the process limit is shared by all forks"
            )
        return {"cgroups": self._cgroups.kind, "zygotes": self._count, "unclean_forks": self._unclean, "notes": notes}

    def close(self) -> None:
        """End the zygotes and all forks with them; remove groups and files."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        self._cgroups.close()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


def pid_of(pidfd: int) -> int:
    """The process's pid as seen from here; -1 once it is reaped."""
    fd = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY)
    try:
        text = os.read(fd, 1024)
    finally:
        os.close(fd)
    return int(text.partition(b"Pid:")[2].split(None, 1)[0])
