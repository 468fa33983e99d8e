"""A helper process of the zygote that holds the jobs of one-shot candidates, each in a thread of its own.

What a job holds (later calls, the mark of its report) never enters the fork then, the fork is one process instead of
two, and nothing of the holder's has to be copied for it. The helper is sealed as an exec is. Every request comes on a
socket of its own, with the daemon's ends of the fork.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
import threading
import traceback
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from . import syscalls
from .channel import (
    ChannelClosed,
    receive_packet,
    receive_report,
    receive_request,
    send_report,
    send_request,
    wait_readable,
)
from .execs import exit_code

Hold = Callable[..., Tuple[str, Optional[int]]]
_BEGUN_BYTES = 8
_FDS = 3
_NAME_BYTES = 16
_PIECE = 1 << 20
_IDLE = 4
"""Threads that wait for a job, at most; each keeps a stack."""
_SWITCH_S = 0.0005
"""How long a thread may have the interpreter while others want it: what they hold waits for them meanwhile."""


def start_holders(
    control: socket.socket, hold: Hold, seal: syscalls.SeccompFilter, not_its_own: Sequence[socket.socket]
) -> socket.socket:
    """Fork the process that serves `control`; what is returned becomes readable when it has ended."""
    alive, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            for other in (alive, *not_its_own):
                other.close()
            syscalls.drop_capabilities()
            seal.install()
            syscalls.keep_no_heap()
            gc.enable()
            sys.setswitchinterval(_SWITCH_S)
            _Crew(control, hold).serve()
        finally:
            os._exit(1)
    theirs.close()
    return alive


class _Crew:
    """As many threads as there are jobs at once, and one that waits for the next."""

    def __init__(self, control: socket.socket, hold: Hold) -> None:
        self._control = control
        self._hold = hold
        self._lock = threading.Lock()
        self._waiting = 1

    def serve(self, *, leaves: bool = False) -> None:
        """Until the daemon closes the control socket; one that `leaves`, until enough others wait for the next job."""
        while True:
            word, fd = receive_packet(self._control, 1)
            if not word:
                os._exit(0)
            self._see_to_the_next()
            try:
                if fd >= 0:
                    with socket.socket(fileno=fd) as reports:
                        _serve_one(reports, self._hold)
            except (ChannelClosed, OSError):
                # The fork is gone, or the daemon has given up on it: it sees the socket end without a report.
                pass
            except Exception:
                # As above: one job's failure is none of the others'.
                traceback.print_exc()
            with self._lock:
                if leaves and self._waiting >= _IDLE:
                    return
                self._waiting += 1

    def _see_to_the_next(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting:
                return
            self._waiting = 1
        try:
            threading.Thread(target=self.serve, kwargs={"leaves": True}, daemon=True).start()
        except RuntimeError:
            # No room for a thread: the next job waits until one of those that are here is done.
            with self._lock:
                self._waiting -= 1


def _serve_one(reports: socket.socket, hold: Hold) -> None:
    """Hand the exec to its fork, wait until it begins, hold its job, report. What the fork itself reports goes on.

    A report's `output` says how many bytes of output follow it.
    """
    request, fds = receive_request(reports)
    try:
        if len(fds) < _FDS:
            # The kernel drops what this process has no room for.
            raise ChannelClosed
        begun, pidfd, _ = fds
        with socket.socket(fileno=fds.pop()) as channel:
            report, text = _hold_one(request, channel, begun, pidfd, hold)
    finally:
        for fd in fds:
            os.close(fd)
    if wait_readable(reports, timeout_s=0):
        # The exec's time is over, as the daemon counts it.
        return
    if text:
        report["output"] = len(text)
    send_report(reports, report, payload=(text[:_PIECE].encode("ascii"),))
    for at in range(_PIECE, len(text), _PIECE):
        reports.sendall(text[at : at + _PIECE].encode("ascii"))


def _hold_one(
    request: Dict[str, Any], channel: socket.socket, begun: int, pidfd: int, hold: Hold
) -> Tuple[Dict[str, Any], str]:
    """The report on the exec, and its output. ChannelClosed or OSError when the fork is gone."""
    frames, theirs = socket.socketpair()
    out, printed = os.pipe()
    try:
        try:
            with theirs:
                # The ends of all candidates are in this process's network. One that has a name gets no other, which
                # the next candidate would find taken.
                theirs.bind(b"\0" + os.urandom(_NAME_BYTES))
                send_request(channel, request["frame"], (theirs.fileno(), printed))
        finally:
            os.close(printed)
        began = _beginning(frames, channel)
        if began is None:
            return receive_report(channel)[0], ""
        os.write(begun, began)
        places = (
            channel,
            request["pid"],
            frames,
            out,
            lambda: _ending(channel),
            lambda: syscalls.kill_by_pidfd(pidfd),
            int.from_bytes(began, sys.byteorder) / 1e9,
        )
        report: Dict[str, Any] = {"exit_code": 0}
        try:
            text, ended = hold(request["job"], *places)
        except ProcessLookupError:
            raise
        except Exception as exc:
            # A job that is none, a fault of ours, or something that is short: nothing that the candidate did.
            return {"error": f"its holder failed: {type(exc).__name__}: {exc}"}, ""
        if ended is not None:
            report["ended"] = exit_code(ended)
        return report, text
    finally:
        frames.close()
        os.close(out)


def _ending(channel: socket.socket) -> bytes:
    """The line that tells a candidate's end. OSError where there is none."""
    try:
        status, peak_kib, ran_ms = receive_report(channel)[0]["usage"]
    except (ChannelClosed, KeyError) as exc:
        raise OSError("the fork ended without a report") from exc
    return b"%d %d %d\n" % (status, peak_kib, ran_ms)


def _beginning(frames: socket.socket, channel: socket.socket) -> Optional[bytes]:
    """What the fork writes when the exec begins; None when it reports, or ends, without."""
    poll = select.poll()
    poll.register(frames, select.POLLIN)
    poll.register(channel, select.POLLIN)
    if any(fd == frames.fileno() for fd, _ in poll.poll()):
        return frames.recv(_BEGUN_BYTES, socket.MSG_WAITALL) or None
    return None
