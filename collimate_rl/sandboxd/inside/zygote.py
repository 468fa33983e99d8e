"""The warm interpreter: imports what templates ask for once, then clones itself on request.

Single-threaded by design. Each request arrives as one packet with one end of a channel. For a one-shot exec the
clone runs it itself, as the first process of a pid namespace behind a placeholder; the zygote, its parent, reports
its exit code on the channel. For a session the clone is the init of its pid namespace and serves the channel.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import socket
import struct
import sys
from base64 import b64decode
from typing import Any, NoReturn

from . import init, syscalls
from .channel import receive_frame, send_frame
from .execs import Execs, exit_code
from .files import receive_files
from .placeholders import PlaceholderSource


def main(control_fd: int, settings_fd: int) -> NoReturn:
    """Warm up, say so, then serve until the daemon closes the control socket."""
    control = socket.socket(fileno=control_fd)
    try:
        with open(settings_fd, "rb") as stream:
            settings: dict[str, Any] = json.load(stream)
        zygote = Zygote(control, settings)
    except BaseException as exc:
        control.send(json.dumps({"error": f"{type(exc).__name__}: {exc}"}).encode())
        os._exit(1)
    control.send(json.dumps({"ready": True, "python": sys.version.split()[0]}).encode())
    zygote.serve()


class Zygote:
    """The interpreter, warm, and the forks it has to report on."""

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self._control = control
        self._workdir = settings["workdir"]
        self._layout = (settings["tmpfs_bytes"], settings["workdir"], settings["rebinds"])
        self._waiting: dict[int, socket.socket] = {}
        """pid of a one-shot fork -> its channel"""
        for name in settings["preload"]:
            importlib.import_module(name)
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("a preloaded module started threads: a warm interpreter must be single-threaded")
        for name, value in settings["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        os.umask(0o022)
        syscalls.make_mounts_private()
        syscalls.forbid_new_privileges()
        syscalls.set_dumpable(False)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._execs = Execs(settings)
        self._placeholders = PlaceholderSource()
        # Every fork inherits this filter; what the zygote itself still needs is refused by a second one, per exec.
        syscalls.SeccompFilter(b64decode(settings["base_filter"])).install()
        self._wake = init.wake_on_children()
        sys.argv = ["-c"]
        # Candidates import by name from their own folder, and none of this package.
        sys.path[0:1] = [""]
        for name in [name for name in sys.modules if name.split(".")[0] == __name__.split(".")[0]]:
            del sys.modules[name]
        gc.collect()
        gc.freeze()
        gc.disable()

    def serve(self) -> NoReturn:
        """Fork and report, until the control socket ends."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake:
                    init.empty(self._wake)
                    self._reap()
                else:
                    self._take_request()

    def _take_request(self) -> None:
        kind, ancillary, _, _ = self._control.recvmsg(64, socket.CMSG_SPACE(4))
        if not kind:
            os._exit(0)
        (fd,) = struct.unpack("i", ancillary[0][2][:4])
        channel = socket.socket(fileno=fd)
        try:
            if kind == b"session":
                self._fork_session(channel)
            else:
                self._fork_once(channel)
        except OSError as exc:
            # The daemon hears of it, or has given up on this fork already.
            _say(channel, {"error": str(exc)})
            channel.close()

    def _fork_once(self, channel: socket.socket) -> None:
        first = self._placeholders.take()
        try:
            syscalls.setns(first, syscalls.CLONE_NEWPID)
            try:
                pid, pidfd = syscalls.clone(init.FORK_FLAGS)
            except OSError:
                syscalls.setns(self._own_pids, syscalls.CLONE_NEWPID)
                raise
            if pid == 0:
                self._become_exec(channel)
            syscalls.setns(self._own_pids, syscalls.CLONE_NEWPID)
            self._waiting[pid] = channel
            send_frame(channel, {"forked": True}, (first, pidfd))
            os.close(pidfd)
        except OSError:
            # Its death is that of whatever was forked behind it.
            syscalls.kill_by_pidfd(first)
            raise
        finally:
            os.close(first)

    def _fork_session(self, channel: socket.socket) -> None:
        pid, pidfd = syscalls.clone(init.FORK_FLAGS | syscalls.CLONE_NEWPID)
        if pid == 0:
            self._become_init(channel)
        try:
            send_frame(channel, {"forked": True}, (pidfd, pidfd))
        finally:
            os.close(pidfd)
        channel.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            channel = self._waiting.pop(pid, None)
            if channel is not None:
                _say(channel, {"exit_code": exit_code(status)})
                channel.close()

    def _become_exec(self, channel: socket.socket) -> NoReturn:
        try:
            os.setsid()
            init.lay_out(*self._layout)
            request, fds = receive_frame(channel)
            output, begun = fds
            problem = receive_files(channel, request["files"], self._workdir)
            os.write(begun, init.BEGUN)
        except BaseException as exc:
            _say(channel, {"error": f"{type(exc).__name__}: {exc}"})
            os._exit(1)
        self._execs.run(request, output, problem)

    def _become_init(self, channel: socket.socket) -> NoReturn:
        try:
            self._control.close()
            os.setsid()
            init.lay_out(*self._layout)
            init.SessionInit(channel, self._execs).serve()
        except BaseException as exc:
            _say(channel, {"error": f"{type(exc).__name__}: {exc}"})
        os._exit(1)


def _say(channel: socket.socket, header: dict[str, Any]) -> None:
    try:
        send_frame(channel, header)
    except OSError:
        # The daemon gave up on this fork.
        pass
