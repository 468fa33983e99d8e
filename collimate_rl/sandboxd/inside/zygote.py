"""The warm interpreter: imports what templates ask for once, then clones itself on request.

Single-threaded by design. Each request arrives as one packet with one end of a channel; the clone becomes the
init of a fork and talks to the daemon over that channel, on which the zygote itself sends one thing: the clone's
pidfd, or why there is none.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from base64 import b64decode
from typing import Any, NoReturn

from . import init, syscalls
from .channel import send_frame
from .execs import ExecStart


def main(control_fd: int, settings_fd: int) -> NoReturn:
    """Warm up, say so, then serve until the daemon closes the control socket."""
    control = socket.socket(fileno=control_fd)
    try:
        with open(settings_fd, "rb") as stream:
            settings: dict[str, Any] = json.load(stream)
        execs = _warm_up(settings)
    except BaseException as exc:
        control.send(json.dumps({"error": f"{type(exc).__name__}: {exc}"}).encode())
        os._exit(1)
    control.send(json.dumps({"ready": True, "python": sys.version.split()[0]}).encode())
    _serve(control, execs, settings)


def _warm_up(settings: dict[str, Any]) -> ExecStart:
    for name in settings["preload"]:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a preloaded module started threads: a warm interpreter must be single-threaded")
    syscalls.make_mounts_private()
    syscalls.forbid_new_privileges()
    syscalls.set_dumpable(False)
    for name, value in settings["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    # Children are reaped by the kernel: the daemon watches them by pidfd.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)
    execs = ExecStart(settings, syscalls.SeccompFilter(b64decode(settings["seccomp"])))
    sys.argv = ["-c"]
    # Candidates import by name from their own folder, and none of this package.
    sys.path[0:1] = [""]
    for name in [name for name in sys.modules if name.split(".")[0] == __name__.split(".")[0]]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    gc.disable()
    return execs


def _serve(control: socket.socket, execs: ExecStart, settings: dict[str, Any]) -> NoReturn:
    while True:
        kind, ancillary, _, _ = control.recvmsg(64, socket.CMSG_SPACE(4))
        if not kind:
            os._exit(0)
        (fd,) = struct.unpack("i", ancillary[0][2][:4])
        channel = socket.socket(fileno=fd)
        try:
            pid, pidfd = syscalls.clone(init.FORK_FLAGS)
        except OSError as exc:
            _answer(channel, {"error": str(exc)})
            continue
        if pid == 0:
            _become_init(control, channel, execs, settings, kind)
        _answer(channel, {"forked": True}, pidfd)
        os.close(pidfd)


def _answer(channel: socket.socket, header: dict[str, Any], *fds: int) -> None:
    try:
        send_frame(channel, header, fds)
    except OSError:
        # The daemon gave up on this fork; closing the channel ends it.
        pass
    channel.close()


def _become_init(
    control: socket.socket, channel: socket.socket, execs: ExecStart, settings: dict[str, Any], kind: bytes
) -> NoReturn:
    try:
        control.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        init.lay_out(settings["tmpfs_bytes"], settings["workdir"], settings["rebinds"])
        if kind == b"session":
            init.SessionInit(channel, execs).serve()
        init.run_once(channel, execs)
    except BaseException as exc:
        try:
            send_frame(channel, {"error": f"{type(exc).__name__}: {exc}"})
        except OSError:
            # The daemon gave up on this fork.
            pass
    os._exit(1)
