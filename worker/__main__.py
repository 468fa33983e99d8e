"""`python -m worker`: run a node, show its settings or what the queue holds, or run the janitors alone."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

from collimate_rl._output import printing
from collimate_rl._variables import warn_once
from collimate_rl.protocol.bounds import mask_secrets
from worker import logs
from worker.options import SERVING, read
from worker.process import importing, leave
from worker.settings import Loaded, WorkerSettings, load, parse_timing
from worker.signals import STOP_SIGNALS

EXIT_REFUSED = 2
LOGGING = ("run", "janitor")
"""Commands whose words for people are events of a log."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 after an orderly end, 2 when the configuration or the set-up is refused."""
    try:
        arguments = read(argv)
    except ValueError as error:
        print(f"worker: {error}", file=sys.stderr)
        return EXIT_REFUSED
    options = vars(arguments)
    try:
        loaded = load(
            {item.name: options[item.name] for item in dataclasses.fields(WorkerSettings)}, config=arguments.config
        )
    except ValueError as error:
        print(f"worker: {error}", file=sys.stderr)
        return EXIT_REFUSED
    settings = loaded.settings
    if arguments.command not in LOGGING:
        warn_once(lambda told: print(f"worker: {told}", file=sys.stderr))
    if arguments.command == "config":
        print_config(loaded)
        return 0
    try:
        importlib.import_module("collimate_rl.queue")
    except ModuleNotFoundError as error:
        print(f"worker: {error}", file=sys.stderr)
        return EXIT_REFUSED
    with importing():
        from collimate_rl.queue.clients import connect_commands

    try:
        connect_commands(settings.redis_url).close()
    except ValueError as error:
        print(f"worker: redis_url: {error}", file=sys.stderr)
        return EXIT_REFUSED
    if arguments.command in ("status", "quarantine"):
        return look(settings, arguments.command, arguments.words, as_json=arguments.json)
    if arguments.command == "dashboard":
        return show_dashboard(settings, {name: options[name] for name in SERVING})
    from worker.backend import client_for

    try:
        client_for(settings.backend)
    except ValueError as error:  # an address that cannot be, or a gateway without a key
        print(f"worker: backend: {error}", file=sys.stderr)
        return EXIT_REFUSED
    logs.configure(settings.log_format, settings.log_level, node=settings.node)
    logs.take_uncaught()
    warn_once()
    if arguments.command == "janitor":
        return run_janitor(settings, once=arguments.once, dry_run=arguments.dry_run)
    with importing():
        from worker.supervisor import Supervisor

    return Supervisor(settings).run()


def print_config(loaded: Loaded) -> None:
    """A line per setting, fit to be pasted into `[worker]`, with its source as a comment."""
    print("[worker]")
    for item in dataclasses.fields(WorkerSettings):
        value = getattr(loaded.settings, item.name)
        shown = str(value).lower() if isinstance(value, bool) else value
        if isinstance(value, str):
            shown = '"' + mask_secrets(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
        print(f"{f'{item.name} = {shown}':60} # {loaded.sources[item.name]}")


def look(settings: WorkerSettings, command: str, words: Sequence[str], *, as_json: bool) -> int:
    """The commands `status` and `quarantine`."""
    from collimate_rl.errors import QueueError
    from collimate_rl.queue.batches import BatchQueue
    from collimate_rl.queue.clients import connect_commands
    from collimate_rl.queue.overview import look_at
    from collimate_rl.queue.server_check import check_server
    from worker import quarantine, status

    queue = BatchQueue(connect_commands(settings.redis_url), settings.queue, timing=parse_timing(settings.timing))
    try:
        server = check_server(queue.client)
        if command == "quarantine":
            print(quarantine.run(queue, words, as_json=as_json))
        else:
            print((status.as_json if as_json else status.as_text)(look_at(queue), server))
    except (QueueError, ValueError) as error:
        print(f"worker: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


def show_dashboard(settings: WorkerSettings, serving: Mapping[str, str | None]) -> int:
    """The command `dashboard`, until SIGTERM or SIGINT."""
    try:
        from worker.dashboard.command import serve
    except ModuleNotFoundError as error:
        print(f"worker: the dashboard needs {error.name}: pip install 'collimate-rl[dashboard]'", file=sys.stderr)
        return EXIT_REFUSED
    logs.configure(settings.log_format, settings.log_level, rq=False)
    logs.take_uncaught()
    try:
        return serve(
            settings, host=serving["host"], port=serving["port"], token=serving["token"], file=serving["token_file"]
        )
    except ValueError as error:
        print(f"worker: {error}", file=sys.stderr)
        return EXIT_REFUSED


def run_janitor(settings: WorkerSettings, *, once: bool, dry_run: bool) -> int:
    """The queue's janitor and the node's session janitor, without workers."""
    from collimate_rl.errors import QueueError
    from collimate_rl.queue.batches import BatchQueue
    from collimate_rl.queue.clients import connect_commands, connect_rq
    from collimate_rl.queue.server_check import check_server
    from worker.backend import is_this_nodes
    from worker.janitor import JanitorRounds, forecast, run_alone, session_forecast
    from worker.plain import bury_dead
    from worker.process import ProcessId
    from worker.session_janitor import SessionJanitor

    queue = BatchQueue(connect_commands(settings.redis_url), settings.queue, timing=parse_timing(settings.timing))
    rq_client = connect_rq(settings.redis_url)
    token = str(ProcessId.own())
    sessions = SessionJanitor.for_node(settings, queue, token)
    home = is_this_nodes(settings.backend)
    try:
        check_server(queue.client)
        if dry_run:
            print("\n".join(forecast(queue)) or "nothing is due")
            print("\n".join(session_forecast(sessions)) or "no session is to be deleted")
            return 0
        if once:
            rounds = JanitorRounds(queue, token)
            queue.beat()
            bury_dead(queue, rq_client, settings.node, home=home)
            done = {**rounds.round(), **({"sessions deleted": count} if (count := sessions.round()) else {})}
            print(", ".join(f"{word.lower()}: {count}" for word, count in done.items()) or "nothing was due")
            rounds.resign()
            sessions.resign()
            return 0
        stop = threading.Event()
        for number in STOP_SIGNALS:
            signal.signal(number, lambda _number, _frame: stop.set())
        run_alone(queue, token, stop.wait, lambda: bury_dead(queue, rq_client, settings.node, home=home), sessions)
    except QueueError as error:
        logs.emit(logs.REFUSED, logging.ERROR, reason=error.message)
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    with printing("worker"):
        exit_code = main()
    leave(exit_code)
