"""Waiting until an environment's server says that it is healthy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from collimate_rl._connection import Endpoint
from collimate_rl._http import HttpPool
from collimate_rl.errors import CollimateError

ASK_S: Final = 5.0
_FIRST_PAUSE_S, _PAUSE_S = 0.02, 0.5
_ANSWER_BYTES = 1 << 20


def wait_until_healthy(
    base_url: str,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ask `GET {base_url}/health` until it is answered with 200; `TimeoutError` after `timeout_s` seconds.

    One question takes at most `ASK_S` seconds. `ValueError` for an address that cannot be.
    """
    deadline = clock() + timeout_s
    pool = HttpPool(Endpoint.parse(base_url), max_answer_bytes=_ANSWER_BYTES)
    pause = _FIRST_PAUSE_S
    try:
        while True:
            remaining = deadline - clock()
            try:
                status = pool.request("GET", "/health", timeout_s=max(0.001, min(ASK_S, remaining))).status
                if status == 200:
                    return
                last = f"it answered with status {status}"
            except CollimateError as error:
                last = str(error)
            if deadline - clock() <= pause:
                raise TimeoutError(
                    f"the environment's server was not healthy within {timeout_s:g} s: GET {base_url}/health: {last}. "
                    "Look at what the template's entry prints, or give it longer (ready_timeout)"
                )
            sleep(pause)
            pause = min(2 * pause, _PAUSE_S)
    finally:
        pool.close()
