"""Redis commands and bytes per batch: whose they are, and what the payload is of it.

Commands are read from MONITOR, bytes (in a run of their own: MONITOR is traffic, too) from INFO. What an idle node
sends in the same time is measured before, and taken off.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.nodes import Site
from benchmarks.work import SPEC, TEMPLATE, candidates
from collimate_rl.queue import codec
from collimate_rl.queue.clients import connect_commands
from producer import Producer

WIDTH, BATCHES, IDLE_S = 16, 10, 6.0
FORMS = {"rerun": "one-shot", "attach": "in sessions"}
_END = "benchmark:end"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Per batch of WIDTH candidates. Commands are what clients send; `inside` what our scripts call in the server."""

    ours: float
    rqs: float
    inside: float
    names: dict[str, float]
    """Commands by sender and name."""
    kilobytes: float
    """Both directions, requests and replies."""
    payload_kilobytes: float
    """Of these, what has to travel: the batch to the server and to the worker, the verdicts there, the result back."""


def measure(site: Site) -> tuple[dict[str, Traffic], dict[str, float]]:
    """By form; and an idle node's commands and kilobytes per second."""
    found: dict[str, Traffic] = {}
    with site.workers(1), site.producer() as producer:
        for recovery in FORMS:
            _grade(producer, recovery, 2)
        idle_commands, idle_s = _commands(site, lambda: time.sleep(IDLE_S))
        idle_bytes = _bytes(site, lambda: time.sleep(IDLE_S))
        for recovery, form in FORMS.items():
            counted, took = _commands(site, lambda recovery=recovery: _grade(producer, recovery, BATCHES))  # type: ignore[misc]
            for name, count in idle_commands.items():
                counted[name] -= round(count * took / idle_s)
            began = time.monotonic()
            sent = _bytes(site, lambda recovery=recovery: _grade(producer, recovery, BATCHES))  # type: ignore[misc]
            sent -= idle_bytes * (time.monotonic() - began) / IDLE_S
            names = {" ".join(name): count / BATCHES for name, count in counted.most_common() if count > 0}
            by = {who: sum(c for (owner, _), c in counted.items() if owner == who) for who in ("ours", "rq", "inside")}
            found[form] = Traffic(
                ours=by["ours"] / BATCHES,
                rqs=by["rq"] / BATCHES,
                inside=by["inside"] / BATCHES,
                names=names,
                kilobytes=sent / BATCHES / 1000,
                payload_kilobytes=_payload(producer, recovery) / 1000,
            )
    idle = {
        "commands": sum(count for (who, _), count in idle_commands.items() if who != "inside") / idle_s,
        "kilobytes": idle_bytes / IDLE_S / 1000,
    }
    return found, idle


def show(sent: Mapping[str, Traffic], idle: Mapping[str, float]) -> None:
    """Print a table."""
    print(f"\nRedis, per batch of {WIDTH}: commands sent (ours, rq's), called by scripts; kB in all, of it payload")
    for name, one in sent.items():
        print(
            f"  {name:<32}{one.ours + one.rqs:8.0f}{one.ours:10.0f}{one.rqs:10.0f}{one.inside:10.0f}"
            f"{one.kilobytes:10.1f}{one.payload_kilobytes:10.1f}"
        )
    print(f"  {'idle node and producer, per s':<32}{idle['commands']:8.0f}{'':30}{idle['kilobytes']:10.1f}")


def _grade(producer: Producer, recovery: str, batches: int) -> None:
    for _ in range(batches):
        handle = producer.submit(template=TEMPLATE, candidates=candidates(WIDTH), spec=SPEC, recovery=recovery)
        if handle.result(timeout=120).rewards() != [1.0] * WIDTH:
            raise RuntimeError(f"a right candidate did not pass: {handle.result(0).results}")


def _payload(producer: Producer, recovery: str) -> int:
    handle = producer.submit(template=TEMPLATE, candidates=candidates(WIDTH), spec=SPEC, recovery=recovery)
    result = handle.result(timeout=120)
    verdicts = sum(len(codec.pack_verdict(verdict)) for verdict in result.results)
    return 2 * len(codec.pack_batch(handle.batch)) + verdicts + len(codec.pack_result(result))


def _bytes(site: Site, run: Callable[[], object]) -> float:
    def total() -> int:
        info = site.queue.client.info("stats")
        return int(info["total_net_input_bytes"]) + int(info["total_net_output_bytes"])

    before = total()
    reading = total() - before
    run()
    return total() - before - 2 * reading


def _commands(site: Site, run: Callable[[], object]) -> tuple[Counter[tuple[str, str]], float]:
    """(whose, name) to how often, while `run` ran; and how long that took, in seconds."""
    with _monitored(site) as lines:
        began = time.monotonic()
        run()
        took = time.monotonic() - began
    return _attributed(lines), took


@contextmanager
def _monitored(site: Site) -> Iterator[list[str]]:
    client = connect_commands(site.redis.url, timeout_s=60.0)
    lines: list[str] = []
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]

        def read() -> None:
            while True:
                raw = monitor.connection.read_response()
                line = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
                if _END in line:
                    return
                lines.append(line)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield lines
        finally:
            site.queue.client.echo(_END)
            thread.join()
    client.close()


def _attributed(lines: list[str]) -> Counter[tuple[str, str]]:
    """MULTI and EXEC belong to whoever sent what is between them."""
    counted: Counter[tuple[str, str]] = Counter()
    fences, who = 0, "ours"
    for line in lines:
        found = re.match(r'[\d.]+ \[\d+ (\S+)\] "([^"]*)"(.*)', line)
        if found is None:
            continue
        place, name, rest = found[1], found[2].upper(), found[3]
        if place == "lua":
            counted["inside", name] += 1
            continue
        if name == "MULTI":
            fences += 1
            continue
        if name == "EXEC":
            counted[who, "MULTI/EXEC"] += fences + 1
            fences = 0
            continue
        who = "rq" if re.match(r' "(?:\d+" ")?rq:', rest) or name in ("CLIENT", "INFO") else "ours"
        counted[who, name] += 1
    return counted
