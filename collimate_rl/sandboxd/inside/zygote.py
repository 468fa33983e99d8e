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
import sys
from base64 import b64decode
from typing import Any, Callable, NoReturn

from . import init, syscalls
from .ahead import ForksAhead
from .channel import receive_packet, receive_request, send_made_report, send_report, wait_readable
from .execs import Execs, exit_code, now
from .files import receive_files
from .forkhooks import DeferredHooks
from .gaps import close_gaps
from .holders import start_holders
from .largepages import use_large_pages
from .networks import Networks
from .placeholders import PlaceholderSource
from .rehearsal import rehearse

_CONFESSION_S = 10
_IN_FLIGHT = 16384
_CHANNEL = 3
"""The one descriptor that a session's init keeps."""
_ONCE_FLAGS = init.FORK_FLAGS & ~syscalls.CLONE_NEWNET
"""A one-shot fork finds its network made."""
_ALWAYS = {
    # Not 0: a host's core_pattern that names a program has that started for a crash all the same, but for this 1
    # (core(5), fs/coredump.c). No file is written for it, and the filter lets nobody change it.
    resource.RLIMIT_CORE: 1,
    resource.RLIMIT_RTPRIO: 0,
    resource.RLIMIT_NICE: 0,
}
"""What no template changes, whatever the daemon was started with."""


def main(control_fd: int, settings_fd: int, hooks: DeferredHooks) -> NoReturn:
    """Warm up, say so, then serve until the daemon closes the control socket.

    `hooks` were deferred before this module, and so the modules that have them, were imported.
    """
    control = socket.socket(fileno=control_fd)
    try:
        with open(settings_fd, "rb") as stream:
            settings: dict[str, Any] = json.load(stream)
        zygote = Zygote(control, settings, hooks)
    except BaseException as exc:
        control.send(json.dumps({"error": f"{type(exc).__name__}: {exc}"}).encode())
        os._exit(1)
    control.send(json.dumps({"ready": True, "python": sys.version.split()[0]}).encode())
    zygote.serve()


class _Fork:
    """What the zygote keeps of one until it has ended.

    `channel` is where the exit code of a one-shot fork is to be reported, None as long as it waits for that. `first` is
    the pidfd of its placeholder and `network` a descriptor of its network, both -1 for a session's.
    """

    __slots__ = ("channel", "first", "network", "pid")

    def __init__(self, pid: int, first: int = -1, network: int = -1) -> None:
        self.pid, self.first, self.network = pid, first, network
        self.channel: socket.socket | None = None


class Zygote:
    """The interpreter, warm, and the forks it has to report on."""

    def __init__(self, control: socket.socket, settings: dict[str, Any], hooks: DeferredHooks) -> None:
        self._control = control
        self._workdir = settings["workdir"]
        self._layout = init.Layout(settings["tmpfs_bytes"], settings["workdir"], settings["rebinds"])
        self._forks: dict[int, _Fork] = {}
        """by their pidfds"""
        self._poll = select.poll()
        for name in settings["preload"]:
            importlib.import_module(name)
        if "numpy" in sys.modules:
            # Every exec seeds its generator, and numpy itself would load it only then.
            importlib.import_module("numpy.random")
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("a preloaded module started threads: a warm interpreter must be single-threaded")
        for limit, value in _ALWAYS.items():
            resource.setrlimit(limit, (value, value))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # More than it ever has open: see what is said of the guest programs' limit.
        wanted = max(settings["max_fd"], _IN_FLIGHT)
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        self._max_fd = wanted
        os.umask(0o022)
        syscalls.make_mounts_private()
        syscalls.forbid_new_privileges()
        syscalls.set_dumpable(False)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._networks = Networks()
        self._execs = Execs(settings, hooks)
        self._ahead = ForksAhead(
            make=self._fork_behind_placeholder, lay_out=self._lay_out, become=self._run_request, max_fd=wanted
        )
        # Every fork inherits this filter; what the zygote itself still needs is refused by a second one, per exec.
        syscalls.SeccompFilter(b64decode(settings["base_filter"])).install()
        if settings["language"] is None:
            rehearse(self._execs)
        sys.argv = ["-c"]
        # Candidates import by name from their own folder, and none of this package.
        sys.path[0:1] = [""]
        for name in [name for name in sys.modules if name.split(".")[0] == __name__.split(".")[0]]:
            del sys.modules[name]
        gc.collect()
        syscalls.trim_heap()
        close_gaps()
        use_large_pages()
        gc.freeze()
        gc.disable()
        # After that: what it shares with this process stays shared.
        self._placeholders = PlaceholderSource()
        self._holders = self._start_holders(settings)

    def _start_holders(self, settings: dict[str, Any]) -> socket.socket | None:
        """None where nothing is graded in Python."""
        with socket.socket(fileno=settings["holders_fd"]) as requests:
            if settings["language"] is not None:
                return None
            return start_holders(requests, self._execs.hold, self._execs.seal, (self._control,))

    def serve(self) -> NoReturn:
        """Fork and report, until the control socket ends."""
        control = self._control.fileno()
        self._poll.register(control, select.POLLIN)
        holders = -1
        if self._holders is not None:
            holders = self._holders.fileno()
            self._poll.register(holders, select.POLLIN)
        while True:
            events = self._poll.poll(self._ahead.quiet_ms())
            if not events:
                self._ahead.add()
            for fd, _ in events:
                if fd == control:
                    self._take_request()
                elif fd == holders:
                    # It never ends while the zygote lives, and what it held is lost.
                    os._exit(1)
                else:
                    self._report(fd)

    def _take_request(self) -> None:
        kind, fd = receive_packet(self._control, 64)
        if not kind:
            os._exit(0)
        if fd < 0:
            # There was no room for the channel's descriptor; the daemon sees its end of the channel end.
            return
        channel = socket.socket(fileno=fd)
        try:
            if kind == b"session":
                self._fork_session(channel)
            else:
                self._fork_once(channel)
        except OSError as exc:
            # The daemon hears of it, or has given up on this fork already.
            _say(channel, {"error": str(exc)})
            if all(fork.channel is not channel for fork in self._forks.values()):
                channel.close()

    def _fork_once(self, channel: socket.socket) -> None:
        waiting = self._ahead.take()
        if waiting is None:
            pid, pidfd, first = self._fork_behind_placeholder(lambda: self._become_exec(channel))
        else:
            pid, pidfd, first = waiting.pid, waiting.pidfd, waiting.first
        self._forks[pidfd].channel = channel
        try:
            if waiting is not None:
                waiting.begin(channel)
            send_made_report(channel, b'{"forked":%d}' % pid, (first, pidfd))
        except OSError:
            # Its death is that of whatever was forked behind it.
            syscalls.kill_by_pidfd(first)
            raise

    def _fork_behind_placeholder(self, become: Callable[[], NoReturn]) -> tuple[int, int, int]:
        """A fork in fresh namespaces, its process 1 a placeholder: its pid, its pidfd, the placeholder's pidfd."""
        first = self._placeholders.take()
        network = -1
        try:
            network = self._networks.enter()
            pid, pidfd = self._clone_behind(first, become)
        except OSError:
            syscalls.kill_by_pidfd(first)
            os.close(first)
            if network >= 0:
                os.close(network)
            raise
        self._watch(pidfd, _Fork(pid, first, network))
        return pid, pidfd, first

    def _clone_behind(self, first: int, become: Callable[[], NoReturn]) -> tuple[int, int]:
        """Clone in the network that this process has entered, and leave that."""
        try:
            syscalls.setns(first, syscalls.CLONE_NEWPID)
            pid, pidfd = syscalls.clone(_ONCE_FLAGS)
        except OSError:
            self._go_home()
            raise
        if pid == 0:
            become()
        self._go_home()
        return pid, pidfd

    def _go_home(self) -> None:
        try:
            syscalls.setns(self._own_pids, syscalls.CLONE_NEWPID)
        except OSError:
            # What it forks next would be a candidate's neighbour. The daemon replaces a zygote that ends.
            os._exit(1)
        self._networks.leave()

    def _fork_session(self, channel: socket.socket) -> None:
        pid, pidfd = syscalls.clone(init.FORK_FLAGS | syscalls.CLONE_NEWPID)
        if pid == 0:
            self._become_init(channel)
        self._watch(pidfd, _Fork(pid))
        send_report(channel, {"forked": pid}, (pidfd, pidfd))
        channel.close()

    def _watch(self, pidfd: int, fork: _Fork) -> None:
        self._forks[pidfd] = fork
        self._poll.register(pidfd, select.POLLIN)

    def _report(self, pidfd: int) -> None:
        fork = self._forks.pop(pidfd)
        self._poll.unregister(pidfd)
        self._ahead.lost(pidfd)
        os.close(pidfd)
        _, status, used = os.wait4(fork.pid, 0)
        if fork.channel is not None:
            usage = (exit_code(status), status, used.ru_maxrss, int((used.ru_utime + used.ru_stime) * 1000))
            if not _say_made(fork.channel, b'{"exit_code":%d,"usage":[%d,%d,%d]}' % usage):
                # Nor does the daemon know of its placeholder, maybe: it had no room for the descriptors, or no time.
                syscalls.kill_by_pidfd(fork.first)
            fork.channel.close()
        if fork.network >= 0:
            self._networks.give_back(fork.network, fork.first)

    def _lay_out(self) -> None:
        os.setsid()
        self._layout.lay_out()

    def _become_exec(self, channel: socket.socket) -> NoReturn:
        try:
            self._lay_out()
        except BaseException as exc:
            _confess(channel, exc)
        self._run_request(channel)

    def _run_request(self, channel: socket.socket) -> NoReturn:
        try:
            request, fds = receive_request(channel)
            begun, output = fds
            problem = receive_files(channel, request["files"], self._workdir)
            if request["kind"] != "held":
                os.write(begun, now())
        except BaseException as exc:
            _say(channel, {"error": f"{type(exc).__name__}: {exc}"})
            os._exit(1)
        # It is closed there, and a candidate is to find no socket that is none.
        channel.detach()
        self._execs.run(request, output, problem, frames=begun)

    def _become_init(self, channel: socket.socket) -> NoReturn:
        try:
            # Of all that the zygote has open nothing may live on here.
            syscalls.keep_one(channel.detach(), _CHANNEL, self._max_fd)
            channel = socket.socket(fileno=_CHANNEL)
            self._lay_out()
            syscalls.bring_loopback_up()
        except BaseException as exc:
            _confess(channel, exc)
        try:
            init.SessionInit(channel, self._execs).serve()
        finally:
            # Nothing may unwind from here into the zygote's own loop.
            os._exit(1)


def _confess(channel: socket.socket, exc: BaseException) -> NoReturn:
    """Say why a fork could not be laid out, and end it; not before the daemon, having heard the zygote, spoke."""
    wait_readable(channel, timeout_s=_CONFESSION_S)
    _say(channel, {"error": f"{type(exc).__name__}: {exc}"})
    os._exit(1)


def _say(channel: socket.socket, header: dict[str, Any]) -> bool:
    """False when the daemon gave up on this fork."""
    return _say_made(channel, json.dumps(header).encode())


def _say_made(channel: socket.socket, header: bytes) -> bool:
    try:
        send_made_report(channel, header)
    except OSError:
        return False
    return True
