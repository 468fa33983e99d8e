"""What remembering costs and what it saves: sessions with the ledger against one-shot execs that run again.

Everything with the default timing. A worker process is killed with SIGKILL; its supervisor lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from benchmarks.measure import Contender, rates
from benchmarks.nodes import Site, until
from collimate_rl import UnitTestReward
from producer import BatchHandle, Producer

TEMPLATE = "py"
SPEC = UnitTestReward(tests=[{"input": [3, 4], "expected": 12}])
GROUPS, WIDTH = 4, 12
SHORT_S = 0.1
LONG_S, KILLED_AFTER_S = 3.0, 2.0
LONG_WIDTH = 2 * len(os.sched_getaffinity(0))
"""As many as daemon and worker run at a time by default."""
FORMS = {"attach": "in sessions", "rerun": "one-shot"}
ANSWER_S = 120.0


def sleeping(count: int, seconds: float) -> list[str]:
    """Candidates that wait: for a file, a service, another process."""
    body = "import time\ndef solve(a, b):\n    # {n}\n    time.sleep({s})\n    return a * b\n"
    return [body.format(n=n, s=seconds) for n in range(count)]


def computing(count: int, seconds: float) -> list[str]:
    """Candidates that use so much CPU time of their own, however many others run beside them."""
    body = (
        "import time\ndef solve(a, b):\n    # {n}\n    end = time.thread_time() + {s}\n"
        "    while time.thread_time() < end:\n        pass\n    return a * b\n"
    )
    return [body.format(n=n, s=seconds) for n in range(count)]


KINDS = {"sleeping": sleeping, "computing": computing}


def ledger_cost(site: Site, rounds: int) -> dict[str, list[float]]:
    """Candidates of 100 ms per second, by kind of work and form."""
    contenders = {}
    with site.workers(2), site.producer() as producer:
        for kind, make in KINDS.items():
            for recovery, form in FORMS.items():

                def run(recovery: str = recovery, codes: Sequence[str] = make(WIDTH, SHORT_S)) -> None:
                    for handle in [_submit(producer, codes, recovery) for _ in range(GROUPS)]:
                        _check(handle)

                contenders[f"{kind} 100 ms, {form}"] = Contender(run=run, units=GROUPS * WIDTH)
        return rates(contenders, rounds)


@dataclass
class Kills:
    """What came of one kill per entry."""

    answer_s: list[float] = field(default_factory=list)
    """From the kill to the answer."""
    run_again: list[int] = field(default_factory=list)
    """Candidates that were running at the kill and ran a second time."""
    seconds_twice: list[float] = field(default_factory=list)
    """What had been executed of these by then, in seconds, all together."""


def long_candidates(site: Site, rounds: int) -> dict[str, Kills]:
    """A group of candidates of 3 s, all running, whose worker dies after 2 s; by form."""
    found = {f"{LONG_WIDTH} of 3 s, {form}": Kills() for form in FORMS.values()}
    for number in range(rounds):
        for recovery, form in sorted(FORMS.items(), reverse=number % 2 == 1):
            with site.workers(2), site.producer() as producer:
                _kill(
                    site,
                    producer,
                    sleeping(LONG_WIDTH, LONG_S),
                    recovery,
                    KILLED_AFTER_S,
                    found[f"{LONG_WIDTH} of 3 s, {form}"],
                )
    return found


def short_candidates(site: Site, kills: int) -> dict[str, Kills]:
    """A group of eight candidates of 100 ms whose worker dies in the middle of it; by form, and by who is left.

    Each kill is of a fresh node's first process: a place that is killed again and again is refilled after a pause.
    """
    found = {
        f"8 of 100 ms, {form}, {left}": Kills()
        for form in FORMS.values()
        for left in ("another waits", "the only process")
    }
    for number in range(kills):
        for recovery, form in sorted(FORMS.items(), reverse=number % 2 == 1):
            for processes, left in ((2, "another waits"), (1, "the only process")):
                with site.workers(processes), site.producer() as producer:
                    _kill(
                        site, producer, sleeping(8, SHORT_S), recovery, SHORT_S, found[f"8 of 100 ms, {form}, {left}"]
                    )
    return found


def show(killed: Mapping[str, Kills]) -> None:
    """Print a table."""
    print("\nseconds from SIGKILL to the answer (median, 95 %, highest); run twice: candidates, their seconds")
    for name, kills in killed.items():
        took = sorted(kills.answer_s)
        late = took[min(len(took) - 1, round(0.95 * len(took)))]
        print(
            f"  {name:<42}{median(took):8.2f}{late:10.2f}{took[-1]:10.2f}"
            f"{mean(kills.run_again):10.1f}{mean(kills.seconds_twice):10.1f}"
        )


def _kill(site: Site, producer: Producer, codes: Sequence[str], recovery: str, after_s: float, found: Kills) -> None:
    _check(_submit(producer, sleeping(1, 0.0), recovery))  # connections
    handle = _submit(producer, codes, recovery)
    until(lambda: site.is_owned(handle.k), "nobody took the batch")
    time.sleep(after_s)
    killed_at = site.kill_owner(handle.k)
    _check(handle)
    found.answer_s.append(time.perf_counter() - killed_at)
    again = sum(verdict.recovered == "rerun" for verdict in handle.result(0).results)
    found.run_again.append(again)
    found.seconds_twice.append(again * after_s)


def _submit(producer: Producer, codes: Sequence[str], recovery: str) -> BatchHandle:
    return producer.submit(template=TEMPLATE, candidates=codes, spec=SPEC, timeout_seconds=30, recovery=recovery)


def _check(handle: BatchHandle) -> None:
    result = handle.result(timeout=ANSWER_S)
    if result.rewards() != [1.0] * len(result.results):
        raise RuntimeError(f"a right candidate did not pass: {result.results}")
