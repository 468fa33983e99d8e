"""A trainer that forks: the child's hooks work, whatever the parent's threads were doing at that moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, os, signal, threading
from collimate_rl import syntax
from collimate_rl.hooks import blocking, policy, wiring
from collimate_rl.skyrl import registration, reuse
from collimate_rl.slime.core import RewardHook
from collimate_rl.testing import FakeGrader
from collimate_rl.trl.core import TrlHook
from collimate_rl.verl.core import VerlHook
from producer import wiring as queued

CASES = [{"input": [2], "expected": 4}]
CODE = "```python\\ndef solve(x):\\n    return x * x\\n```"
slime, trl, verl = (hook(lambda _settings: FakeGrader()) for hook in (RewardHook, TrlHook, VerlHook))


class Sample:
    prompt, response, label, metadata, group_index, index = "p", CODE, CASES, {}, 0, 0


def grade_all():
    assert asyncio.run(slime.rewards(object(), [Sample(), Sample()])) == [1.0, 1.0]
    assert trl.make()(prompts=["p"], completions=[CODE], ground_truth=[CASES]) == [1.0]
    assert asyncio.run(verl.score("d", CODE, CASES, {}, {}))["score"] == 1.0
    assert reuse._threads().submit(int, "7").result(30) == 7
    assert wiring.inline_grader(Endpoint) is wiring.inline_grader(Endpoint)


class Endpoint:
    base_url, api_key, concurrency = "http://127.0.0.1:9", None, 2


grade_all()
parents = wiring.inline_grader(Endpoint)
hooks = (slime._pace, slime._scorer, trl._scorer, verl._pace, verl._siblings, verl._siblings._scorer)
locks = [syntax._ONE_AT_A_TIME, *(one._lock for one in (blocking, policy, wiring, registration, reuse, queued, *hooks))]
held = threading.Event()


def hold():
    for lock in locks:
        lock.__enter__()
    held.set()
    threading.Event().wait()


threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    grade_all()
    assert wiring.inline_grader(Endpoint) is not parents
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


def test_a_forked_child_grades_though_every_lock_was_held() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.stdout.strip() == "7", ran.stderr
