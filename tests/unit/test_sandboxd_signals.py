"""Waiting for the signals that stop a daemon."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
from collections.abc import Iterator

import pytest

from collimate_rl.sandboxd.signals import StopSignals

HIGH = 1500


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Skips where this process may have no descriptor above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= HIGH:
        pytest.skip("needs root or a higher limit on open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 1), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_what_is_waited_for_may_have_any_number() -> None:
    """A daemon with a thousand sessions drains as any other."""
    over, drained = os.pipe()
    high = fcntl.fcntl(over, fcntl.F_DUPFD, HIGH)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            signals.wait(high)
            os.close(drained)
            signals.wait(high)
    finally:
        os.close(over)
        os.close(high)


def test_each_signal_is_counted() -> None:
    with StopSignals() as signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        signals.wait()
        signals.wait()
