"""What a session serves, as one thing to open and to close: its entry server and its exposed ports."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence

from collimate_rl.sandboxd.config import Limits, Template
from collimate_rl.sandboxd.entry import EntryServer
from collimate_rl.sandboxd.exposed import ExposedPorts, Places
from collimate_rl.sandboxd.forks import Fork
from collimate_rl.sandboxd.portloop import LoopClosed, PortLoop
from collimate_rl.sandboxd.zygotes import bringup_failed


def entry_frame(template: Template, seed: str) -> dict[str, object]:
    """How the fork is told to start the template's entry server."""
    if isinstance(template.entry, str):
        return {"kind": "entry", "seed": seed}
    return {"kind": "argv", "seed": seed, "argv": template.entry}


class Serving:
    """One session's entry server and exposed ports; `endpoints` are `{port inside: "host:port"}`. `close` ends both."""

    def __init__(self, loop: PortLoop, entry: EntryServer | None, exposed: ExposedPorts | None) -> None:
        self._loop = loop
        self._entry = entry
        self._exposed = exposed
        self._lock = threading.Lock()
        self._open = True
        self.endpoints: Mapping[int, str] = exposed.endpoints if exposed is not None else {}

    @property
    def served_at(self) -> float:
        """When a connection to a port was last open; 0.0 for never."""
        return self._exposed.served_at if self._exposed is not None else 0.0

    def begin(self) -> None:
        """In the loop."""
        if self._entry is not None:
            self._entry.watch(self._loop)
        if self._exposed is not None:
            self._exposed.open()

    def end(self) -> None:
        """In the loop, or when there is none any more."""
        with self._lock:
            if not self._open:
                return
            self._open = False
        if self._exposed is not None:
            self._exposed.close()
        if self._entry is not None:
            self._entry.forget(self._loop)
            self._entry.close()


class PortService:
    """What all sessions of a daemon that serve something share."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._loop = PortLoop()
        self._places = Places(limits.port_connections)
        self._lock = threading.Lock()
        self._servings: set[Serving] = set()

    def serve(
        self, template: Template, fork: Fork, asking: socket.socket | None, seed: str, *, expose: bool
    ) -> Serving | None:
        """Start the entry server, wait until it listens, and expose the ports. None when there is nothing to serve.

        `asking` leads to the session's init and is taken over. CollimateError session_bringup_failed otherwise.
        """
        if asking is None:
            return None
        entry = None
        exposed = None
        try:
            if template.entry is not None:
                entry = EntryServer(fork, entry_frame(template, seed))
                entry.wait_listening(asking, template.expose_ports, template.entry_timeout_s)
            ports: Sequence[int] = template.expose_ports if expose else ()
            exposed = self._expose(asking, ports)
            serving = Serving(self._loop, entry, exposed)
            try:
                self._loop.call(serving.begin)
            except LoopClosed as exc:
                raise bringup_failed(str(exc)) from exc
            with self._lock:
                self._servings.add(serving)
        except BaseException:
            asking.close()
            if exposed is not None:
                exposed.close()
            if entry is not None:
                entry.close()
            raise
        return serving

    def _expose(self, asking: socket.socket, ports: Sequence[int]) -> ExposedPorts:
        try:
            return ExposedPorts(
                self._loop, asking, ports, limit=self._limits.session_port_connections, places=self._places
            )
        except OSError as exc:
            raise bringup_failed(f"no port to expose the session's on: {exc}") from exc

    def end(self, serving: Serving) -> None:
        """Close what it serves; without effect a second time."""
        with self._lock:
            self._servings.discard(serving)
        try:
            self._loop.call(serving.end)
        except LoopClosed:
            # The loop ended everything before it went.
            pass

    def close(self) -> None:
        """End everything that is still served, and the thread."""
        with self._lock:
            servings = list(self._servings)
            self._servings.clear()
        for serving in servings:
            self._loop.call(serving.end)
        self._loop.close()
