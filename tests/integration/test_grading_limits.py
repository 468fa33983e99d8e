"""Limits are the candidate's, case by case: what finished counts, what broke one leaves the others alone."""

from __future__ import annotations

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.rewards import GradeResult, StdioReward, UnitTestReward, grade


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


def unit(client: CollimateClient, code: str, tests: list[tuple[object, object]], **options: object) -> GradeResult:
    timeout = options.pop("timeout_seconds", 20)
    spec = UnitTestReward([{"input": given, "expected": wanted} for given, wanted in tests], **options)  # type: ignore[arg-type]
    return grade(client, "py", code, spec, timeout_seconds=timeout)  # type: ignore[arg-type]


def test_five_slow_but_correct_cases_all_pass(client: CollimateClient) -> None:
    code = "import time\ndef solve(x):\n    time.sleep(1.5)\n    return x\n"
    result = unit(client, code, [(n, n) for n in range(5)])
    assert (result.reward, result.cases_passed) == (1.0, 5)


def test_an_endless_case_costs_only_itself(client: CollimateClient) -> None:
    code = "def solve(x):\n    while x == 1:\n        pass\n    return x\n"
    result = unit(client, code, [(n, n) for n in range(4)], case_timeout_s=1.0)
    assert [case.outcome for case in result.cases] == ["passed", "timeout", "passed", "passed"]
    assert (result.reward, result.outcome) == (0.75, "timeout")


def test_finished_cases_count_when_the_total_time_is_up(client: CollimateClient) -> None:
    code = "import time\ndef solve(x):\n    time.sleep(100 * (x == 2))\n    return x\n"
    result = unit(client, code, [(n, n) for n in range(4)], timeout_seconds=2, case_timeout_s=30)
    assert [case.outcome for case in result.cases] == ["passed", "passed", "timeout", "timeout"]
    assert result.exit_code == 0


def test_memory_is_the_cases_own(client: CollimateClient) -> None:
    code = "def solve(x):\n    return len('a' * (4 << 30)) if x == 1 else x\n"
    result = unit(client, code, [(n, n) for n in range(3)])
    assert [case.outcome for case in result.cases] == ["passed", "memory_limit", "passed"]


def test_memory_that_is_eaten_bit_by_bit(client: CollimateClient) -> None:
    code = "def solve(x):\n    kept = []\n    while x == 1:\n        kept.append(bytearray(1 << 20))\n    return x\n"
    result = unit(client, code, [(n, n) for n in range(3)])
    assert [case.outcome for case in result.cases] == ["passed", "memory_limit", "passed"]


def test_a_result_that_is_too_large(client: CollimateClient) -> None:
    result = unit(client, "def solve(x): return 'a' * (2 << 20) if x else x\n", [(0, 0), (1, 1)])
    assert [case.outcome for case in result.cases] == ["passed", "output_limit"]


def test_printing_is_no_fault(client: CollimateClient) -> None:
    code = "def solve(x):\n    print('noise' * 1_000_000)\n    print('last words')\n    return x\n"
    result = unit(client, code, [(n, n) for n in range(3)])
    assert result.reward == 1.0
    assert result.output_tail.endswith(b"last words\n")
    assert len(result.output_tail) == 4096
    assert result.truncated


def test_deep_recursion_without_asking_for_it(client: CollimateClient) -> None:
    result = unit(client, "def solve(n): return 0 if n == 0 else 1 + solve(n - 1)\n", [(30_000, 30_000)])
    assert result.reward == 1.0


def test_endless_recursion_is_a_runtime_error(client: CollimateClient) -> None:
    result = unit(client, "def solve(n): return solve(n)\n", [(1, 1)])
    assert (result.reward, result.outcome) == (0.0, "runtime_error")
    assert "RecursionError" in str(result.detail)


def test_long_integers_as_text(client: CollimateClient) -> None:
    code = "def solve(n): return sum(map(int, str(7 ** n)))\n"
    assert unit(client, code, [(10_000, sum(map(int, str_of(7**10_000))))]).reward == 1.0


def str_of(n: int) -> str:
    digits = []
    while n:
        n, rest = divmod(n, 10**18)
        digits.append(f"{rest:018d}")
    return "".join(reversed(digits)).lstrip("0")


def test_classes_of_the_candidates_own(client: CollimateClient) -> None:
    code = """
import pickle
from dataclasses import dataclass
from typing import NamedTuple
@dataclass(order=True)
class Item:
    weight: int
    name: str = ""
class Pair(NamedTuple):
    a: int
    b: int
def solve(n):
    items = pickle.loads(pickle.dumps(sorted(Item(w) for w in range(n, 0, -1))))
    return Pair(items[0].weight, len(items))
"""
    assert unit(client, code, [(3, (1, 3))]).reward == 1.0
    assert unit(client, code, [(3, [1, 3])]).reward == 0.0
    assert unit(client, code, [(3, [1, 3])], compare="json").reward == 1.0


@pytest.mark.parametrize(
    "code",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\ndef solve(x): return x\n",
        "import atexit, time\natexit.register(time.sleep, 1000)\ndef solve(x): return x\n",
        "import signal\nfor n in range(1, 32):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\ndef solve(x): return x\n",
        "import subprocess\nsubprocess.Popen(['sleep', '1000'])\ndef solve(x): return x\n",
        "import sys\nsys.stdout = None\nsys.stderr.close()\ndef solve(x): return x\n",
        "import random\nfrom typing import *\ndef solve(x: List[int]) -> int: return x\n",
        "import sys\ndef solve(x):\n    sys.setrecursionlimit(10**6)\n    return x\n",
        "from __future__ import annotations\ndef solve(x: Undefined) -> Undefined: return x\n",
        "class Solution:\n    def __init__(self): self.seen = []\n    def solve(self, x):\n"
        "        self.seen.append(x)\n        return self.seen[0]\n",
        "if __name__ == '__main__':\n    raise SystemExit(1)\ndef solve(x): return x\n",
        "import asyncio\nasync def f(x): return x\ndef solve(x): return asyncio.run(f(x))\n",
        "from multiprocessing import Pool\ndef solve(x):\n    with Pool(1) as pool: return pool.map(abs, [x])[0]\n",
    ],
)
def test_honest_code_with_habits_passes(client: CollimateClient, code: str) -> None:
    result = unit(client, code, [(n, n) for n in range(3)])
    assert (result.reward, result.outcome) == (1.0, "passed"), result.detail


def test_ending_the_process_costs_the_case(client: CollimateClient) -> None:
    code = "import os\ndef solve(x):\n    if x == 1:\n        os._exit(0)\n    return x\n"
    result = unit(client, code, [(n, n) for n in range(3)])
    assert [case.outcome for case in result.cases] == ["passed", "runtime_error", "passed"]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("", "no_code"),
        (" \n\t\n", "no_code"),
        ("x = 1\n", "no_entry_point"),
        ("def solve(x) return x\n", "runtime_error"),
        ("1 / 0\n", "runtime_error"),
        ("while True: pass\n", "timeout"),
        ("def solve(x): return lambda: x\n", "unencodable"),
        ("def solve(x): return x + 1\n", "wrong_answer"),
        ("\ud800 = 1\n", "runtime_error"),
        ("def solve(x): return 1\0\n", "runtime_error"),
        ("(" * 5000, "runtime_error"),
    ],
)
def test_every_fault_has_its_outcome(client: CollimateClient, code: str, outcome: str) -> None:
    result = unit(client, code, [(1, 1), (2, 2)], timeout_seconds=2)
    assert (result.reward, result.outcome) == (0.0, outcome), result.detail


def test_a_program_that_prints_without_end(client: CollimateClient) -> None:
    spec = StdioReward(cases=[{"stdin": "", "stdout": "1\n"}])
    result = grade(client, "py", "while True: print('1' * 1000)\n", spec)
    assert (result.reward, result.outcome) == (0.0, "output_limit")


def test_an_endless_program(client: CollimateClient) -> None:
    spec = StdioReward(cases=[{"stdin": "1", "stdout": ""}, {"stdin": "0", "stdout": "ok"}], case_timeout_s=1.0)
    result = grade(client, "py", "n = int(input())\nwhile n: pass\nprint('ok')\n", spec)
    assert [case.outcome for case in result.cases][1] == "passed"
    assert (result.reward, result.outcome) == (0.5, "timeout")
