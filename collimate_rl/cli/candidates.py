"""The demo's candidates: what eight rollouts of a policy might answer to one HumanEval row, right and wrong.

Three are right, in the wordings that models use; five are wrong: a wrong answer, a crash, one that never ends, a memory
hog, and a cheat. Crashes, endless ones and cheats come in kinds that are taken in turn from row to row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One completion as a model would print it, with what it must score: 1.0 when `right`, else 0.0."""

    kind: str
    completion: str
    right: bool = False


_CRASHES: tuple[tuple[str, str], ...] = (
    ("crash: raises", "def {entry}(*args, **kwargs):\n    return [][0]\n"),
    ("crash: does not parse", "def {entry}(*args, **kwargs)\n    return 1\n"),
    ("crash: at import", "import no_such_module\n\n\ndef {entry}(*args, **kwargs):\n    return 1\n"),
    ("crash: recursion", "def {entry}(*args, **kwargs):\n    return {entry}(*args, **kwargs)\n"),
    ("crash: no such function", "def something_else(*args, **kwargs):\n    return 1\n"),
)

_CHEATS: tuple[tuple[str, str], ...] = (
    ("cheat: prints a reward and exits", "import os\nprint(1.0, flush=True)\nos._exit(0)\n"),
    (
        "cheat: equals everything",
        "class Anything:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    __hash__ = object.__hash__\n\n\ndef {entry}(*args, **kwargs):\n    return Anything()\n",
    ),
    (
        "cheat: an int that equals everything",
        "class Yes(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    __hash__ = int.__hash__\n\n\ndef {entry}(*args, **kwargs):\n    return Yes(0)\n",
    ),
    (
        "cheat: looks for answers in the frames above",
        "import sys\n\n\ndef {entry}(*args, **kwargs):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):\n"
        "            if isinstance(value, dict) and 'expected' in value:\n                return value['expected']\n"
        "        frame = frame.f_back\n",
    ),
    (
        "cheat: prints a reward at exit",
        "import atexit\natexit.register(lambda: print(1.0, flush=True))\n\n\n"
        "def {entry}(*args, **kwargs):\n    return None\n",
    ),
    (
        "cheat: leaves inside the call",
        "import sys\n\n\ndef {entry}(*args, **kwargs):\n    print(1.0, flush=True)\n    sys.exit(0)\n",
    ),
    (
        "cheat: kills its parent",
        "import os, signal\n\n\ndef {entry}(*args, **kwargs):\n    print(1.0, flush=True)\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n",
    ),
    (
        "cheat: writes a verdict to every descriptor",
        "import os\n\n\ndef {entry}(*args, **kwargs):\n    for fd in range(256):\n        try:\n"
        '            os.write(fd, b\'\\n1.0\\n{{"reward": 1.0, "passed": true}}\\n\')\n'
        "        except OSError:\n            pass\n    os._exit(0)\n",
    ),
    (
        "cheat: replaces json",
        'import json\njson.dumps = lambda *a, **k: \'{{"reward": 1.0, "passed": 1, "total": 1}}\'\n'
        "json.loads = lambda *a, **k: []\n\n\ndef {entry}(*args, **kwargs):\n    return None\n",
    ),
    (
        "cheat: a process that prints later",
        "import os, time\n\n\ndef {entry}(*args, **kwargs):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        time.sleep(0.3)\n        print(1.0, flush=True)\n        os._exit(0)\n    return None\n",
    ),
)

_WRONG = "def {entry}(*args, **kwargs):\n    return None\n"
_ENDLESS: tuple[tuple[str, str], ...] = (
    ("endless: a loop", "def {entry}(*args, **kwargs):\n    while True:\n        pass\n"),
    (
        "endless: sleeps",
        "import time\n\n\ndef {entry}(*args, **kwargs):\n    while True:\n        time.sleep(0.1)\n",
    ),
    (
        "endless: waits for its own lock",
        "import threading\n\nlock = threading.Lock()\n\n\ndef {entry}(*args, **kwargs):\n    with lock:\n"
        "        return {entry}(*args, **kwargs)\n",
    ),
)
_HOG = "def {entry}(*args, **kwargs):\n    hoard = []\n    while True:\n        hoard.append(b'x' * (1 << 28))\n"


def rollouts(row: Mapping[str, str], turn: int) -> tuple[Rollout, ...]:
    """The group of eight for a row with `prompt`, `entry_point` and `canonical_solution`; `turn` picks the kinds."""
    entry = row["entry_point"]
    crash, crash_code = _CRASHES[turn % len(_CRASHES)]
    endless, endless_code = _ENDLESS[turn % len(_ENDLESS)]
    cheat, cheat_code = _CHEATS[turn % len(_CHEATS)]
    return (
        Rollout(kind="right: the body alone", completion=row["canonical_solution"], right=True),
        Rollout(kind="right: fenced, after thinking", completion=_after_thinking(row), right=True),
        Rollout(kind="right: with chatter and a helper", completion=_with_helper(row), right=True),
        Rollout(kind="wrong answer", completion=_fenced(_WRONG.format(entry=entry))),
        Rollout(kind=crash, completion=_fenced(crash_code.format(entry=entry))),
        Rollout(kind=endless, completion=_fenced(endless_code.format(entry=entry))),
        Rollout(kind="eats memory", completion=_fenced(_HOG.format(entry=entry))),
        Rollout(kind=cheat, completion=_fenced(cheat_code.format(entry=entry))),
    )


def _fenced(code: str, before: str = "", after: str = "") -> str:
    return f"{before}```python\n{code.strip()}\n```\n{after}"


def _after_thinking(row: Mapping[str, str]) -> str:
    thinking = f"<think>\nA first try:\n```python\ndef {row['entry_point']}(x): ...\n```\nNo. Better so.\n</think>\n"
    return thinking + _fenced(row["prompt"] + row["canonical_solution"])


def _with_helper(row: Mapping[str, str]) -> str:
    entry = row["entry_point"]
    helper = (row["prompt"] + row["canonical_solution"]).replace(f"def {entry}(", "def worked_out(", 1)
    code = f"{helper.rstrip()}\n\n\ndef {entry}(*args, **kwargs):\n    return worked_out(*args, **kwargs)\n"
    return _fenced(code, "Sure! I split the work off into a helper:\n\n", "\nThis runs in linear time. Good luck!\n")
