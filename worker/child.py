"""One worker process of a supervisor: `python -m worker.child NAME PARENT DESCRIPTOR`, the settings in the environment.

The descriptor is of the supervisor's `worker.tally.Board`."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence

from collimate_rl import guest
from worker import logs, metrics
from worker.names import place_of
from worker.process import die_with_parent, importing, leave
from worker.settings import load
from worker.tally import Tally

EXIT_REFUSED = 2
"""This worker must not work here at all; the supervisor stops too."""
EXIT_CUT_OFF = 75
"""The server was away for longer than rq bears. No candidate brings that about: it is not counted against any."""
QUIET_S = 2.0
"""How long a start is left alone before the rarer programs are assembled."""


def prepare_programs() -> None:
    """Assemble what travels to sandboxes, while the main thread waits: a batch whose worker died needn't."""
    guest.program("runner")
    time.sleep(QUIET_S)
    guest.programs()


def main(arguments: Sequence[str]) -> int:
    """Take jobs until told to stop. Returns the exit code."""
    name, parent, descriptor = arguments
    die_with_parent(int(parent))
    settings = load({}).settings
    logs.configure(settings.log_format, settings.log_level, node=settings.node, worker=name)
    logs.take_uncaught()
    # Late, so that a parent's death during the slow imports is noticed first.
    with importing():
        from redis.exceptions import ConnectionError as RedisConnectionError
        from redis.exceptions import TimeoutError as RedisTimeoutError

        from worker.node_worker import NodeWorker

    threading.Thread(target=prepare_programs, name="programs", daemon=True).start()
    tally = Tally.attach(int(descriptor), place_of(name))
    worker = NodeWorker(settings.queue, name, settings=settings, supervised=True, tally=tally)
    tally.set(metrics.PROCESSES_READY, 1.0)
    logs.emit(logs.WORKER_READY, queue=settings.queue)
    try:
        worker.work(logging_level="WARNING")
    except (RedisConnectionError, RedisTimeoutError) as error:
        logs.emit(logs.REDIS_DOWN, logging.WARNING, error=str(error))
        return EXIT_CUT_OFF
    logs.emit(logs.WORKER_STOPPED, stopped_by="signal" if worker.stop_signals else "loop")
    if worker.refused is not None:
        logs.emit(logs.REFUSED, logging.ERROR, reason=worker.refused)
        return EXIT_REFUSED
    return 0 if worker.stop_signals else EXIT_CUT_OFF


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
