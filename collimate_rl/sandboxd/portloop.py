"""One thread that serves all exposed ports: handlers by descriptor, timers, and work handed over by other threads."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

log = logging.getLogger(__name__)
READ, WRITE = select.EPOLLIN, select.EPOLLOUT
_CALL_S = 30.0


class LoopClosed(RuntimeError):
    """The daemon is going away: nothing is served any more."""


class PortLoop:
    """Started by its first `call`. Handlers may be woken for nothing, and must only ever try what does not block.

    A descriptor is watched while it has an interest, and only then: one that was hung up would wake the loop for ever.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, READ)
        self._handlers: dict[int, tuple[int, Callable[[], None]]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._work: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None

    def call(self, action: Callable[[], None]) -> None:
        """Run it in the loop's thread and wait for that. LoopClosed when there is no loop any more."""
        result: Future[None] = Future()

        def work() -> None:
            try:
                action()
            except Exception as exc:  # noqa: BLE001  (it is raised where the work came from)
                result.set_exception(exc)
            else:
                result.set_result(None)

        with self._lock:
            if self._closing:
                raise LoopClosed("the daemon is going away")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="exposed-ports", daemon=True)
                self._thread.start()
            self._work.append(work)
        os.eventfd_write(self._wake, 1)
        try:
            result.result(_CALL_S)
        except FutureTimeout as exc:
            raise LoopClosed("the thread that serves exposed ports does not answer") from exc

    def watch(self, fd: int, interest: int, handler: Callable[[], None]) -> None:
        """Call the handler whenever the descriptor is ready for one of READ and WRITE; 0 ends that."""
        before = self._handlers.get(fd)
        if interest == 0:
            self.forget(fd)
            return
        self._handlers[fd] = (interest, handler)
        if before is None:
            self._epoll.register(fd, interest)
        elif before[0] != interest:
            self._epoll.modify(fd, interest)

    def forget(self, fd: int) -> None:
        """Watch it no longer; to be called before it is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run it once, after a while; it must be harmless when it is no longer needed."""
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._count), action))

    def _run(self) -> None:
        while True:
            pause = max(self._timers[0][0] - self._clock(), 0.0) if self._timers else None
            for fd, _ in self._epoll.poll(pause):
                if fd == self._wake:
                    os.eventfd_read(self._wake)
                elif fd in self._handlers:
                    self._guarded(self._handlers[fd][1])
            while self._timers and self._timers[0][0] <= self._clock():
                self._guarded(heapq.heappop(self._timers)[2])
            while True:
                with self._lock:
                    if not self._work:
                        if self._closing:
                            return
                        break
                    work = self._work.popleft()
                work()

    def _guarded(self, handler: Callable[[], None]) -> None:
        try:
            handler()
        except Exception:
            # One connection's trouble is not that of the others.
            log.exception("a connection to an exposed port failed")

    def close(self) -> None:
        """End the thread; whatever it served is to be closed by then. Without effect a second time."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        self._epoll.close()
        os.close(self._wake)
