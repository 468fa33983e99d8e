"""`python -m benchmarks.daemon_load`: fork latency by template and kind of host, a burst, memory per session, layers.

Percentiles of single events, with the machine's load beside them. As root it measures the daemon as root and, with
setpriv, as an unprivileged user without control groups; as anybody else what that user can have.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import layers
from benchmarks.measure import median, percentile
from collimate_rl import CollimateClient
from collimate_rl.sandboxd.config import Template
from tests.fixtures.resources import groups_memory_kib
from tests.fixtures.sandbox_daemon import NOBODY, RunningDaemon, copy_of_the_packages, start_daemon
from tests.fixtures.sandboxd_wire import descendants

THREADS = 16
AHEAD_S = 2.0
SERVER = """
import socket
def main():
    listener = socket.create_server(("127.0.0.1", 8000))
    while True:
        listener.accept()[0].close()
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon_load", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="events per latency (default 300)")
    parser.add_argument("--sessions", type=int, default=1000, help="sessions at once (default 1000)")
    parser.add_argument("--burst", type=int, default=64, help="callers at the same moment (default 64)")
    parser.add_argument("--interpreter", default=_interpreter(), help="of daemons and templates (default: %(default)s)")
    parser.add_argument("--numpy", metavar="PYTHON", help="a Python with numpy, for a template that preloads it")
    parser.add_argument("--layers", action="store_true", help="the layers alone")
    parser.add_argument("--out", type=Path, help="where the figures go, too, as JSON")
    options = parser.parse_args()
    print(f"{options.interpreter}, {len(os.sched_getaffinity(0))} cores, kernel {platform.release()}")
    told: dict[str, Any] = {"interpreter": options.interpreter, "kernel": platform.release(), "load": os.getloadavg()}
    for kind, command in ({} if options.layers else _hosts()).items():
        with _daemon(options, command) as (daemon, templates):
            client = CollimateClient(unix_socket=daemon.socket_path, retries=0)
            _head(f"{kind}, control groups {client.health()['cgroups']}")
            told[kind] = {
                "latency": latency(client, templates, options.rounds),
                "burst": burst(client, options.burst, rounds=5),
                "sessions": sessions(daemon, client, options.sessions),
            }
            client.close()
    _head("layers")
    taken = layers.measure(Template(interpreter=options.interpreter), 2 * options.rounds)
    layers.show(taken)
    told["layers"] = {name: asdict(one) for name, one in taken.items()}
    if options.out is not None:
        options.out.write_text(json.dumps(told, indent=2) + "\n")
    return 0


def _head(what: str) -> None:
    print(f"\n== {what} (load {os.getloadavg()[0]:.1f})", flush=True)


def _interpreter() -> str:
    """One that an unprivileged user may run, too, where there is one."""
    places = [f"/usr/bin/python3.{minor}" for minor in (14, 13, 12, 11, 10)]
    return next((place for place in places if os.path.exists(place)), sys.executable)


def _hosts() -> dict[str, Sequence[str]]:
    if os.geteuid() != 0:
        return {"unprivileged": ()}
    if shutil.which("setpriv") is None:
        return {"root": ()}
    return {"root": (), "unprivileged": NOBODY}


@contextmanager
def _daemon(options: argparse.Namespace, command: Sequence[str]) -> Iterator[tuple[RunningDaemon, list[str]]]:
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        packages = copy_of_the_packages(folder / "packages")
        (folder / "data").mkdir(mode=0o755)
        (folder / "data" / "server.py").write_text(SERVER)
        templates = {"plain": "", "serving": _serving(folder / "data")}
        if options.numpy:
            templates["numpy"] = 'preload = ["numpy"]\n'
        python = {"numpy": options.numpy}
        config = folder / "collimate.toml"
        config.write_text(
            "".join(
                f'[templates.{one}]\ninterpreter = "{python.get(one, options.interpreter)}"\n{text}'
                for one, text in templates.items()
            )
        )
        daemon = start_daemon(
            "--config",
            str(config),
            command=command,
            python=options.interpreter,
            env={"PYTHONPATH": str(packages), "TMPDIR": "/tmp"},
        )
        try:
            yield daemon, list(templates)
        finally:
            daemon.stop()
            shutil.rmtree(daemon.folder, ignore_errors=True)


def _serving(data: Path) -> str:
    return (
        f'entry = "server:main"\nexpose_ports = [8000]\ndata = {{ "/srv/env" = "{data}" }}\n'
        'env = { PYTHONPATH = "/srv/env" }\n'
    )


def latency(client: CollimateClient, templates: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds, one after the other: a one-shot exec's fork and whole, as the daemon tells them; a session's
    creation (for a template that serves, until it listens) and its deletion, as the caller sees them."""
    print("milliseconds (p50, p99)")
    told: dict[str, dict[str, list[float]]] = {}
    for name in templates:
        found: dict[str, list[float]] = {"fork of an exec": [], "exec of `pass`": [], "create": [], "delete": []}
        for number in range(-10, rounds):
            answer = client.exec_once(name, code="pass")
            created, create_ms = _timed(lambda name=name: client.create_session(name))  # type: ignore[misc]
            _, delete_ms = _timed(lambda created=created: client.delete_session(created["session_id"]))  # type: ignore[misc]
            if number >= 0:
                for key, value in zip(
                    found, (answer["fork_time_ms"], answer["total_time_ms"], create_ms, delete_ms), strict=True
                ):
                    found[key].append(value)
        _show(name, found)
        told[name] = found
    return told


def burst(client: CollimateClient, width: int, *, rounds: int) -> dict[str, list[float]]:
    """Milliseconds until each of so many callers, who ask at the same moment, has its answer."""
    found: dict[str, list[float]] = {f"{width} execs at once": [], f"{width} creates at once": []}
    execs, creates = found.values()
    for _ in range(rounds):
        execs += [ms for _, ms in _at_once(width, lambda: client.exec_once("plain", code="pass"))]
        made = _at_once(width, lambda: client.create_session("plain"))
        creates += [ms for _, ms in made]
        for created, _ in made:
            client.delete_session(created["session_id"])
    _show("burst", found)
    return found


def sessions(daemon: RunningDaemon, client: CollimateClient, count: int) -> dict[str, float]:
    """KiB per session, of `count` that live at once and have run one exec each."""
    for _ in range(client.health()["zygotes"]):
        client.exec_once("plain", code="pass")
    time.sleep(AHEAD_S)  # the forks that wait are there before the first session, and stay
    before = descendants(daemon.pid)
    charged = groups_memory_kib(daemon.pid)
    own = _private_kib(daemon.pid)
    available = _available_kib()
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        ids = [one["session_id"] for one in pool.map(lambda _: client.create_session("plain"), range(count))]
        created_s = time.perf_counter() - began
        list(pool.map(lambda one: client.session_exec(one, code="pass"), ids))
        inits = sorted(descendants(daemon.pid) - before)
        told = {
            "private memory of its processes": statistics.median(_private_kib(pid) for pid in inits),
            "charged to its control group": (groups_memory_kib(daemon.pid) - charged) / count,
            "in the daemon": (_private_kib(daemon.pid) - own) / count,
            "less available on the machine": (available - _available_kib()) / count,
        }
        live = client.health()["sessions"]
        list(pool.map(client.delete_session, ids))
    print(f"{live} sessions at once ({len(inits)} processes), created in {created_s:.1f} s; KiB per session")
    for name, value in told.items():
        print(f"  {name:<42}{value:8.0f}")
    if (live, len(inits), client.health()["sessions"]) != (count, count, 0):
        raise RuntimeError("not every session was there, or one is left")
    return told


def _at_once(width: int, ask: Callable[[], dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    ready = threading.Barrier(width)

    def one(_: int) -> tuple[dict[str, Any], float]:
        ready.wait()
        return _timed(ask)

    with ThreadPoolExecutor(width) as pool:
        return list(pool.map(one, range(width)))


def _timed(ask: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], float]:
    began = time.perf_counter()
    answer = ask()
    return answer, (time.perf_counter() - began) * 1000


def _private_kib(pid: int) -> int:
    """Private_Clean and Private_Dirty of smaps_rollup: what nobody else has a share in."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _available_kib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def _show(name: str, found: dict[str, list[float]]) -> None:
    for what, values in found.items():
        print(f"  {name + ', ' + what:<42}{median(values):8.2f}{percentile(values, 99):8.2f}")


if __name__ == "__main__":
    sys.exit(main())
