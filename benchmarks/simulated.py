"""A stand-in for a sandbox daemon: speaks the wire over a unix socket, runs nothing, and answers each exec after a time
drawn from a distribution, with a whole result in which every case came to `VALUE`.

`python -m benchmarks.simulated SOCKET --median 0.2 --spread 0.5 --slow 0.02 --slow-s 5` serves until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

VALUE = 1
"""What every call returns here; specs that are measured with this expect it."""
MAX_INFLIGHT = 4096
_SEED = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds of an exec: lognormal with a median, and a share that takes `slow_s` instead."""

    median_s: float = 0.2
    spread: float = 0.5
    slow: float = 0.02
    slow_s: float = 2.0

    def __post_init__(self) -> None:
        if self.median_s <= 0 or self.spread < 0 or not 0 <= self.slow <= 1 or self.slow_s < 0:
            raise ValueError(f"no distribution of latencies: {self}")

    def draw(self, source: random.Random) -> float:
        if source.random() < self.slow:
            return self.slow_s
        return source.lognormvariate(math.log(self.median_s), self.spread)

    @property
    def mean_s(self) -> float:
        body = self.median_s * math.exp(self.spread**2 / 2)
        return (1 - self.slow) * body + self.slow * self.slow_s

    @property
    def options(self) -> list[str]:
        """As arguments of the command."""
        pairs = (
            ("--median", self.median_s),
            ("--spread", self.spread),
            ("--slow", self.slow),
            ("--slow-s", self.slow_s),
        )
        return [text for name, value in pairs for text in (name, str(value))]


def answer_to(request: dict[str, Any], took_s: float) -> dict[str, Any]:
    """An exec's answer. With the runner's job among its files it holds a report as the runner writes it."""
    stdout = ""
    for file in request.get("files") or ():
        if file["path"] == "collimate-job.json":
            job = json.loads(file["content"])
            header = {"load": ["v", 0.1], "cases": [["v", 0.1]] * len(job["ops"]), "tail": "", "seen": 0, "py": "3.11"}
            value = json.dumps({"v": VALUE}, separators=(",", ":"))
            lines = [f"{job['mark']} begin", json.dumps(header), "null", *[value] * len(job["ops"])]
            stdout = "\n".join([*lines, f"{job['mark']} end ran", ""])
    ms = took_s * 1000
    return {
        "id": "simulated",
        "stdout": stdout,
        "stderr": "",
        "exit_code": 0,
        "fork_time_ms": 1.0,
        "exec_time_ms": ms,
        "total_time_ms": ms + 1.0,
        "seed": request.get("seed") or _SEED,
        "seed_ack": "off",
    }


class Simulated:
    """The daemon's answers. Sessions are a table of names."""

    def __init__(self, latency: Latency, source: random.Random) -> None:
        self._latency = latency
        self._source = source
        self._sessions: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self.running = 0

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path in ("/v1/exec", "/exec") or path.endswith("/exec"):
            took = self._latency.draw(self._source)
            self.running += 1
            try:
                await asyncio.sleep(took)
            finally:
                self.running -= 1
            return 200, answer_to(json.loads(body), took)
        if path in ("/v1/health", "/health"):
            return 200, self._health()
        if path == "/v1/sessions" and method == "POST":
            asked = json.loads(body)
            name = f"s{next(self._numbers)}"
            self._sessions[name] = {"session_id": name, "template_id": asked["template_id"]}
            if "label" in asked:
                self._sessions[name]["label"] = asked["label"]
            return 201, {**self._sessions[name], "fork_time_ms": 1.0, "create_time_ms": 1.0}
        if path == "/v1/sessions":
            ages = {"age_secs": 0.0, "idle_secs": 0.0, "exec_count": 0}
            return 200, [{**info, **ages} for info in self._sessions.values()]
        if method == "DELETE":
            name = path.rpartition("/")[2]
            return 200, {"deleted": self._sessions.pop(name, None) is not None, "session_id": name}
        return 404, {"error": "there is no such place", "error_code": "bad_request"}

    def _health(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "sessions": len(self._sessions),
            "running": self.running,
            "max_inflight": MAX_INFLIGHT,
            "queued": 0,
            "templates": ["py"],
            "version": "simulated",
            "capabilities": ["label"],
        }


def connection_of(daemon: Simulated) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """Serves one connection, request by request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                method, path, _ = first.split(" ")
                length = 0
                for line in lines:
                    name, _, value = line.partition(":")
                    if name.lower() == "content-length":
                        length = int(value)
                body = await reader.readexactly(length) if length else b""
                status, told = await daemon.answer(method, path.partition("?")[0], body)
                sent = json.dumps(told).encode()
                kind = "Content-Type: application/json"
                writer.write(f"HTTP/1.1 {status} X\r\n{kind}\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        finally:
            writer.close()

    return serve


async def serve_on(socket: str, latency: Latency, seed: int) -> None:
    """Until cancelled."""
    daemon = Simulated(latency, random.Random(seed))
    server = await asyncio.start_unix_server(connection_of(daemon), socket, limit=4 << 20, backlog=1024)
    async with server:
        await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated", description=__doc__)
    parser.add_argument("socket")
    usual = Latency()
    parser.add_argument("--median", type=float, default=usual.median_s, help="seconds (default %(default)s)")
    parser.add_argument("--spread", type=float, default=usual.spread, help="sigma of the logarithm")
    parser.add_argument("--slow", type=float, default=usual.slow, help="share of execs that take --slow-s")
    parser.add_argument("--slow-s", type=float, default=usual.slow_s, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    latency = Latency(median_s=options.median, spread=options.spread, slow=options.slow, slow_s=options.slow_s)
    try:
        asyncio.run(serve_on(options.socket, latency, options.seed))
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
