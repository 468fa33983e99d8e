"""`python -m worker dashboard`: refuses to show candidates to strangers, then serves until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import uvicorn

from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from worker import logs
from worker.dashboard.app import Dashboard
from worker.dashboard.listening import address_of, listen
from worker.dashboard.patience import Patience
from worker.dashboard.tokens import Token
from worker.settings import WorkerSettings, parse_timing

TOKEN_VARIABLE = "COLLIMATE_DASHBOARD_TOKEN"  # noqa: S105  (the name of a variable)
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8600
TIMEOUT_S = 3.0
"""For the server to answer one command."""
MAX_CONNECTIONS = 256
STOP_S = 3


def serve(settings: WorkerSettings, *, host: str | None, port: str | None, token: str | None, file: str | None) -> int:
    """Serves; 0 after SIGTERM or SIGINT. `ValueError` for what is refused: an address that others reach without a
    token, a port that is taken, a token that is too short, a file that can't be read."""
    secret = token_of(token, file, os.environ)
    listening = listen(host or DEFAULT_HOST, _port(port), guarded=secret is not None)
    client = connect_commands(settings.redis_url, timeout_s=TIMEOUT_S, retries=1)
    queue = BatchQueue(client, settings.queue, timing=parse_timing(settings.timing))
    where = f"http://{address_of(listening)}"
    if settings.log_format == "json":
        logs.emit(logs.DASHBOARD_SERVED, url=where, token=secret is not None)
    else:
        asked = "; a token is asked for" if secret is not None else ", for this machine alone"
        print(f"dashboard of queue {queue.queue} on {where}{asked}", file=sys.stderr, flush=True)
    with listening:
        # uvicorn raises the signals that it caught once more at its end; an ordered stop is exit code 0.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        asyncio.run(_serve(queue, secret, listening))
    client.close()
    return 0


async def _serve(queue: BatchQueue, token: Token | None, listening: socket.socket) -> None:
    dashboard = Dashboard(queue, token)
    config = uvicorn.Config(
        dashboard,
        log_config=None,  # as `worker.logs` has it
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=STOP_S,
        http="h11",
        ws="none",
    )
    await _Server(config, dashboard, Patience(MAX_CONNECTIONS)).serve(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn, whose stop first ends the streams of events (it would wait for them), and which waits for nobody who
    holds a connection and asks nothing."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard, patience: Patience) -> None:
        super().__init__(config)
        self._dashboard = dashboard
        self._patience = patience

    async def on_tick(self, counter: int) -> bool:
        self._patience.look(self.server_state.connections, time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._dashboard.close()
        await super().shutdown(sockets)


def token_of(given: str | None, file: str | None, environ: Mapping[str, str]) -> Token | None:
    """From the command line, a file, the environment, in this order; None when there is none. `ValueError`."""
    if given is not None:
        return Token(given)
    if file is not None:
        try:
            return Token(Path(file).read_text(encoding="utf-8").strip())
        except (OSError, UnicodeError) as error:
            raise ValueError(f"the token's file {file} cannot be read: {error}") from error
    secret = environ.get(TOKEN_VARIABLE, "")
    return Token(secret) if secret else None


def _port(text: str | None) -> int:
    if text is None:
        return DEFAULT_PORT
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(f"--port must be a number up to 65535, not {text!r}")
    return int(text)
