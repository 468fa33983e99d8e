"""A template's entry server in one session: started like an exec, waited for, and its output drained while it lives."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.admission import no_descriptors
from collimate_rl.sandboxd.forks import Fork
from collimate_rl.sandboxd.inside import ports as helper
from collimate_rl.sandboxd.inside.channel import ChannelClosed, receive_report, send_request
from collimate_rl.sandboxd.portloop import READ, PortLoop
from collimate_rl.sandboxd.zygotes import bringup_failed

log = logging.getLogger(__name__)
ENTRY_ID = "entry"
_TAIL = 4096
_ANSWER_S = 10.0
_FIRST_LOOK_S, _LOOK_S = 0.002, 0.02


class EntryServer:
    """Started when built. `watch` hands its output over to the loop; `close` gives the descriptors back.

    CollimateError: session_bringup_failed when the fork does not take it, at_capacity for want of descriptors.
    """

    def __init__(self, fork: Fork, frame: dict[str, Any]) -> None:
        self._fork = fork
        self._tail = b""
        with ExitStack() as ours, ExitStack() as passed:
            try:
                self._output, output = os.pipe()
                ours.callback(os.close, self._output)
                passed.callback(os.close, output)
                begun = os.eventfd(0, os.EFD_CLOEXEC)
                passed.callback(os.close, begun)
                self._reports, theirs = socket.socketpair()
                ours.callback(self._reports.close)
                passed.callback(theirs.close)
            except OSError as exc:
                raise no_descriptors(exc) from exc
            os.set_blocking(self._output, False)
            try:
                send_request(fork.channel, {**frame, "id": ENTRY_ID, "files": []}, (begun, output, theirs.fileno()))
            except OSError as exc:
                raise bringup_failed(f"the fork died before its entry server was started: {exc}") from exc
            ours.pop_all()

    def wait_listening(self, asking: socket.socket, ports: Sequence[int], timeout_s: float) -> None:
        """Until it listens on all of the ports, as the session's init sees on `asking`.

        CollimateError session_bringup_failed, with the end of its output, when it ends before or takes longer.
        """
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_LOOK_S
        poll = select.poll()
        for fd in (self._output, self._reports.fileno(), self._fork.pidfd):
            poll.register(fd, select.POLLIN)
        while True:
            missing = _not_listening(asking, ports)
            if not missing:
                return
            looked = time.monotonic()
            if looked >= deadline:
                names = ", ".join(str(port) for port in missing)
                raise self._failed(f"the entry server does not listen on {names} after {timeout_s:g} s")
            for fd, _ in poll.poll(min(pause, deadline - looked) * 1000 + 1):
                if fd == self._output:
                    if not self._drain():
                        poll.unregister(fd)
                else:
                    raise self._failed(f"the entry server ended {self._how()} before it listened")
            pause = min(2 * pause, _LOOK_S)

    def _how(self) -> str:
        try:
            return f"with exit code {receive_report(self._reports)[0]['exit_code']}"
        except (ChannelClosed, OSError, ValueError, KeyError):
            return "with its sandbox"

    def _failed(self, what: str) -> CollimateError:
        self._drain()
        said = self._tail.decode("utf-8", "replace").strip()
        return bringup_failed(f"{what}; " + (f"the end of its output:\n{said}" if said else "it said nothing"))

    def watch(self, loop: PortLoop) -> None:
        """In the loop: read what it says from now on, so that it never waits for a reader."""
        loop.watch(self._output, READ, lambda: self._read_on(loop))
        loop.watch(self._reports.fileno(), READ, lambda: self._ended(loop))

    def _read_on(self, loop: PortLoop) -> None:
        if not self._drain():
            loop.forget(self._output)

    def _ended(self, loop: PortLoop) -> None:
        loop.forget(self._reports.fileno())
        if not self._fork.is_dead():
            self._drain()
            log.warning("an entry server ended %s; its last words: %r", self._how(), self._tail[-500:])

    def _drain(self) -> bool:
        """Read what is there, at most a pipe's fill; False at its end."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return True
        self._tail = (self._tail + data)[-_TAIL:]
        return bool(data)

    def forget(self, loop: PortLoop) -> None:
        """In the loop: the opposite of `watch`."""
        loop.forget(self._output)
        loop.forget(self._reports.fileno())

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._output)
        self._reports.close()


def _not_listening(asking: socket.socket, ports: Sequence[int]) -> list[int]:
    asking.settimeout(_ANSWER_S)
    try:
        asking.send(helper.LISTENING + struct.pack(f">{len(ports)}H", *ports))
        answer = asking.recv(64)
    except OSError as exc:
        raise bringup_failed(f"the session's init does not say what listens: {exc}") from exc
    if len(answer) != len(ports):
        raise bringup_failed("the session ended before its entry server listened")
    return [port for port, heard in zip(ports, answer, strict=True) if not heard]
