"""Plain processes of this user, with no isolation at all: `--isolation none`, for tests on a laptop.

Files, network, memory and other processes of the host are open to what runs here. Time limits, exit codes, output cap
and the rest of the API are as with namespaces. Works wherever Python does.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from collimate_rl.sandboxd.backend import Box, Outcome, Turn, timeout_notice
from collimate_rl.sandboxd.config import Limits, Template
from collimate_rl.sandboxd.forks import session_gone
from collimate_rl.sandboxd.inside.channel import ChannelClosed, send_report
from collimate_rl.sandboxd.jail import environment
from collimate_rl.sandboxd.output import Collector
from collimate_rl.sandboxd.rundir import RunFolder
from collimate_rl.sandboxd.wire import WORKDIR, Exec
from collimate_rl.sandboxd.zygotes import bringup_failed

log = logging.getLogger(__name__)
_BOOT = (
    "import random, sys; random.seed(int(sys.argv[2], 16)); "
    "text = open(sys.argv[1], encoding='utf-8', newline='').read(); sys.argv[:] = ['-c']; "
    "exec(compile(text, '<string>', 'exec'), {'__name__': '__main__', '__builtins__': __builtins__})"
)
_RUN_LIST = """
import json, os, sys
for argv in json.loads(sys.argv[1]):
    status = os.spawnvp(os.P_WAIT, argv[0], argv)
    if status:
        sys.exit(128 - status if status < 0 else status)
"""
_SANDBOX_MARK, _EXEC_MARK = "COLLIMATE_SANDBOX", "COLLIMATE_EXEC"
_KILL_ROUNDS = 50


class PlainBackend:
    """See the module."""

    name = "none"
    codes = ()

    def __init__(self, templates: Mapping[str, Template], limits: Limits) -> None:
        self._templates = templates
        self._limits = limits
        self._folder: RunFolder | None = None

    def start(self) -> None:
        """Make a folder, and say loudly what this is."""
        self._folder = RunFolder.create()
        log.warning(
            "ISOLATION IS OFF: candidates run as plain processes of this user, with this machine's files and network"
        )

    def run_once(self, template: Template, request: Exec, turn: Turn = nullcontext) -> Outcome:
        """A fresh folder, one exec, and both are gone."""
        box = self.create(template)
        try:
            with turn():
                return box.run(request)
        finally:
            box.destroy()

    def create(self, template: Template) -> Box:
        """A folder that stays."""
        assert self._folder is not None
        began = time.monotonic()
        mark = secrets.token_hex(8)
        try:
            box = PlainBox(template, self._folder.path(mark), mark, self._limits)
        except OSError as exc:
            raise bringup_failed(f"no folder for the sandbox: {exc}") from exc
        box.fork_ms = (time.monotonic() - began) * 1000
        return box

    def failure(self, template: Template) -> str | None:  # noqa: ARG002
        """None: nothing is kept warm."""
        return None

    def facts(self) -> dict[str, Any]:
        """What health tells about the isolation."""
        return {"cgroups": "none", "notes": ["no isolation: no limit on memory, processes, files or network"]}

    def close(self) -> None:
        """Remove the folder with all boxes' files; sessions are destroyed before."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


class PlainBox:
    """A folder in which execs run; its processes are known by a mark in their environment."""

    fork_ms = 0.0
    endpoints: Mapping[int, str] = {}
    served_at = 0.0

    def __init__(self, template: Template, folder: str, mark: str, limits: Limits) -> None:
        self._interpreter = template.python or sys.executable
        self._language = template.language
        self._extra = dict(template.env)
        self._folder = folder
        self._mark = mark
        self._limits = limits
        self._gone = False
        self._first = sys.maxsize
        os.makedirs(f"{folder}/box")

    def alive(self) -> bool:
        """True until it is destroyed."""
        return not self._gone

    def freeze(self, *, stop: bool) -> bool:  # noqa: ARG002
        """False: which processes are the box's is not known for certain."""
        return False

    def run(self, request: Exec) -> Outcome:
        """Run one exec. CollimateError 410 `session_gone` when the box is destroyed, before or meanwhile."""
        if self._gone:
            raise session_gone("the session's sandbox is gone")
        problem = self._write_files(request)
        if problem is not None:
            return Outcome(exit_code=1, output=problem, truncated=False, fork_ms=0.0, exec_ms=0.0)
        output, theirs = os.pipe()
        reports, answer = socket.socketpair()
        mark = secrets.token_hex(8)
        began = time.monotonic()
        try:
            try:
                process = subprocess.Popen(
                    self._argv(request, mark),
                    cwd=f"{self._folder}/box",
                    env=self._environment(mark),
                    stdin=subprocess.DEVNULL,
                    stdout=theirs,
                    stderr=theirs,
                    start_new_session=True,
                )
            except OSError as exc:
                answer.close()
                raise bringup_failed(f"the exec could not be started: {exc}") from exc
            finally:
                os.close(theirs)
            self._first = min(self._first, process.pid)
            watcher = threading.Thread(target=_report, args=(process, answer), daemon=True)
            watcher.start()
            collector = Collector(pipe=output, reports=reports, pidfd=None, cap=self._limits.output_bytes)
            report = collector.until_report(began + request.timeout_s)
            if report is None:
                kill_marked(_EXEC_MARK, mark, since=process.pid)
            watcher.join(self._limits.kill_timeout_s)
            collector.what_is_there()
        except ChannelClosed as exc:
            raise bringup_failed("the exec's exit status was lost") from exc
        finally:
            reports.close()
            os.close(output)
        if report is not None and not self.alive():
            raise session_gone("the session was deleted while the exec ran")
        ran = (time.monotonic() - began) * 1000
        data = bytes(collector.output.data) + (timeout_notice(request.timeout_s) if report is None else b"")
        return Outcome(
            exit_code=-1 if report is None else report["exit_code"],
            output=data,
            truncated=collector.output.truncated,
            fork_ms=self.fork_ms,
            exec_ms=ran,
        )

    def _write_files(self, request: Exec) -> bytes | None:
        for path, content in request.files:
            place = f"{self._folder}/box/{path}"
            if path.startswith("/"):
                place = f"{self._folder}/box/{path[len(WORKDIR) :]}" if path.startswith(WORKDIR + "/") else path
            try:
                os.makedirs(os.path.dirname(place), exist_ok=True)
                with open(place, "wb") as stream:
                    stream.write(content)
            except OSError as exc:
                return f"[collimate] files were not written: {path}: {exc.strerror}\n".encode()
        return None

    def _argv(self, request: Exec, mark: str) -> list[str]:
        if request.command is not None:
            return ["/bin/sh", "-c", request.command]
        if request.commands is not None:
            return [self._interpreter, "-I", "-S", "-c", _RUN_LIST, json.dumps(request.commands)]
        assert request.code is not None
        if self._language is not None:
            return [*self._language, request.code]
        text = f"{self._folder}/{mark}.py"
        with open(text, "w", encoding="utf-8", newline="") as stream:
            stream.write(request.code)
        return [self._interpreter, "-s", "-B", "-c", _BOOT, text, request.seed]

    def _environment(self, mark: str) -> dict[str, str]:
        own = {"HOME": f"{self._folder}/box", _SANDBOX_MARK: self._mark, _EXEC_MARK: mark}
        program = self._language[0] if self._language is not None else self._interpreter
        return {**environment(program), **self._extra, **own}

    def destroy(self) -> bool:
        """Kill what carries the box's mark, and remove its files."""
        self._gone = True
        clean = kill_marked(_SANDBOX_MARK, self._mark, since=self._first)
        shutil.rmtree(self._folder, ignore_errors=True)
        return clean


def _report(process: subprocess.Popen[bytes], answer: socket.socket) -> None:
    status = process.wait()
    with answer:
        try:
            send_report(answer, {"exit_code": 128 - status if status < 0 else status})
        except OSError:
            # The exec's time was over first.
            pass


def kill_marked(name: str, mark: str, *, since: int) -> bool:
    """Kill the process group `since`, and every later process whose environment carries the mark.

    True when none is left. Where there is no /proc, only the group is found.
    """
    if since != sys.maxsize:
        _kill_group(since)
    wanted = f"{name}={mark}".encode()
    for _ in range(_KILL_ROUNDS):
        found = [pid for pid in _processes(since) if wanted in _environ(pid)]
        if not found:
            return True
        for pid in found:
            _kill(pid)
        time.sleep(0.001)
    return False


def _processes(since: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) >= since]
    except FileNotFoundError:
        return []


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return stream.read().split(b"\0")
    except OSError:
        # Another user's, or gone.
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It ended by itself.
        pass


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # It ended by itself; macOS answers EPERM for a group of zombies.
        pass
