"""Waiting for the signals that stop a daemon."""

from __future__ import annotations

import os
import signal
import threading

from collimate_rl.sandboxd.signals import StopSignals


def test_each_signal_ends_one_wait() -> None:
    with StopSignals() as signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        signals.wait()
        signals.wait()


def test_another_thread_ends_a_wait() -> None:
    with StopSignals() as signals:
        waker = threading.Thread(target=signals.wake)
        waker.start()
        signals.wait()
        waker.join(60)


def test_whoever_wakes_too_late_harms_nothing() -> None:
    with StopSignals() as signals:
        pass
    signals.wake()
