"""The runner as a plain process: what it reports for calls, for programs, and for candidates that misbehave."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from collimate_rl import guest
from collimate_rl.grading.calls import runner_job
from collimate_rl.grading.frames import Report, compose, read_report
from collimate_rl.guest.codec import Decoder, Encoder, decode, encode, loads


class Ran:
    """One run: the report, or what came instead of one."""

    def __init__(self, folder: Path, code: str, ops: list[Any], python: str = sys.executable, **fields: Any) -> None:
        timeout = fields.pop("timeout_seconds", 20)
        job = runner_job(code, ops, timeout_seconds=timeout, **{"case_s": 10.0, "entry": None, **fields})
        framed = compose("runner", job, timeout_seconds=timeout, seed=None)
        for path, content in framed.request.files:
            (folder / path).write_text(content)
        (folder / "runner.py").write_text(framed.request.code)
        done = subprocess.run(
            [python, "runner.py"], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=120
        )
        self.stdout, self.stderr, self.returncode = done.stdout.decode(), done.stderr.decode(), done.returncode
        self.report: Report | None = read_report(self.stdout, framed.mark, len(ops))
        self.job_left = (folder / "collimate-job.json").exists()
        self.how = self.stdout.rpartition(f"{framed.mark} end ")[2].strip()

    @property
    def kinds(self) -> str:
        assert self.report is not None, self.stderr
        return self.report.load.kind + ":" + "".join(case.kind for case in self.report.cases)

    def value(self, n: int) -> Any:
        assert self.report is not None
        return decode(json.loads(self.report.cases[n].line)["v"])


def call(*arguments: Any, entry: str = "solve") -> dict[str, Any]:
    return {"f": ["n", entry], "a": encode(arguments)}


def test_calls_in_order_in_one_process(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "seen = []\ndef solve(x):\n    seen.append(x)\n    return seen\n", [call(1), call("a")])
    assert ran.kinds == "v:vv"
    assert ran.value(1) == [1, "a"]
    assert (ran.returncode, ran.stderr, ran.job_left) == (0, "", False)


def test_the_runner_is_small_and_plain() -> None:
    text = guest.programs()["runner"]
    assert len(text.encode()) <= 24 * 1024
    assert text.isascii()
    assert "collimate_rl" not in text
    assert set(guest.programs()) >= {"runner", "cases"}


@pytest.mark.parametrize("minor", [8, 9, 10, 12, 13])
def test_other_pythons(tmp_path: Path, minor: int) -> None:
    python = find_python(minor)
    if python is None:
        pytest.skip(f"no python3.{minor} on this machine")
    code = """
from dataclasses import dataclass
@dataclass
class Item:
    x: int
def solve(n):
    def down(k): return k and 1 + down(k - 1)
    return [Item(n), {n: (down(5000),)}, {1, 2}, 2.5, 1 << 100]
"""
    ran = Ran(tmp_path, code, [call(3), call("a")], python=python)
    assert ran.kinds == "v:vv", ran.stderr
    assert ran.value(0)[1:] == [{3: (5000,)}, {1, 2}, 2.5, 1 << 100]
    program = Ran(tmp_path, "print(int(input()) + 1)\n", [{"stdin": "4\n"}], python=python, program=True)
    assert program.kinds == "v:p", program.stderr


def find_python(minor: int) -> str | None:
    homes = [str(path) for path in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin")]
    return shutil.which(f"python3.{minor}", path=":".join(homes)) or shutil.which(f"python3.{minor}")


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("def solve(x) return x", "x:"),
        ("1 / 0", "x:"),
        ("raise SystemExit", "x:"),
        ("import os; os._exit(0)", "d:"),
        ("x = 1", "e:"),
        ("while True: pass", "t:"),
        ("def solve(x): return 1 / x", "v:xv"),
        ("def solve(x): raise SystemExit(0)", "v:xx"),
        ("def solve(x):\n    if x: return 1\n    import os; os._exit(0)", "v:dv"),
        ("def solve(x):\n    if x: return 1\n    while True: pass", "v:tv"),
        ("def solve(x): return object() if x else 1", "v:vo"),
        ("def solve(x): return 'a' * (1 << 21) if x else 1", "v:vl"),
        ("def solve(x): raise MemoryError", "v:xx"),
        ("import os, signal, time\ndef solve(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(9)", "v:b"),
        ("import os\ndef solve(x):\n    for fd in range(3, 30):\n        try: os.write(fd, b'x\\n')\n"
         "        except OSError: pass", "v:bb"),
        ("import os, signal\ndef solve(x): os.kill(os.getpid(), signal.SIGSEGV)", "v:dd"),
    ],
)  # fmt: skip
def test_what_calls_come_to(tmp_path: Path, code: str, kinds: str) -> None:
    ran = Ran(tmp_path, code, [call(0), call(1)], entry="solve", case_s=1.0 if "t" in kinds else 10.0)
    assert ran.kinds == kinds, ran.stderr


def test_exceptions_carry_their_line_and_no_text(tmp_path: Path) -> None:
    code = "class Mine(ValueError):\n    def __str__(self): return 'secret'\ndef solve(x):\n    raise Mine(x)\n"
    ran = Ran(tmp_path, code, [call(5)])
    assert ran.report is not None
    frame = json.loads(ran.report.cases[0].line)
    assert frame["at"] == 4
    assert frame["x"] == ["x", ["*Mine", "ValueError", "Exception", "BaseException"], ["t", 5]]
    assert "secret" not in ran.stdout


def test_methods_of_a_solution_get_an_object_per_call(tmp_path: Path) -> None:
    code = "class Solution:\n    n = 0\n    def solve(self, x):\n        self.n += x\n        return self.n\n"
    ran = Ran(tmp_path, code, [call(1), call(1), call(1, entry="Solution.solve")], entry="solve")
    assert [ran.value(n) for n in range(3)] == [1, 1, 1]
    both = Ran(tmp_path, code + "def solve(x): return -x\n", [call(1)], entry="solve")
    assert both.value(0) == -1
    assert Ran(tmp_path, "class Solution: pass\n", [call(1)], entry="solve").kinds == "e:"


def test_changed_arguments_and_identity(tmp_path: Path) -> None:
    code = "def solve(a, b, c=None):\n    a.append([7])\n    b['k'] = a\n    return b\n"
    mine: tuple[Any, ...] = ([1, [2]], {})
    encoder = Encoder()
    op = {"f": ["n", "solve"], "a": encoder.encode(mine), "k": encoder.encode({"c": 1})}
    ran = Ran(tmp_path, code, [op, call([1], {}, entry="other")], arguments=True)
    assert ran.kinds == "v:vx"
    assert ran.report is not None
    frame = loads(ran.report.cases[0].line)
    decoder = Decoder(objects=encoder.objects, sizes=encoder.sizes)
    bodies = [decoder.body(body) for body in frame["u"]]
    assert bodies[0] == [1, [2], [7]]
    assert bodies[0][1] is mine[0][1]
    assert bodies[2]["k"] is mine[0]
    assert decoder.decode(frame["v"]) is mine[1]
    assert "u" not in json.loads(ran.report.cases[1].line)


def test_arguments_that_did_not_change_are_not_sent_and_iterators_stay_whole(tmp_path: Path) -> None:
    op = {"f": ["n", "solve"], "a": encode(([3, 1], iter([1, 2])))}
    ran = Ran(tmp_path, "def solve(a, b): return sorted(a) + list(b)\n", [op], arguments=True)
    assert ran.report is not None
    assert json.loads(ran.report.cases[0].line) == {"v": ["l", 1, 3, 1, 2]}


def test_opaque_results_can_be_asked_for_later(tmp_path: Path) -> None:
    code = """
class Tree:
    def __init__(self, v): self.v, self.left = v, None
    def total(self, k=0): return self.v + k + (self.left.total() if self.left else 0)
    def __len__(self): return 5
    def __iter__(self): return iter([self.v, self])
def solve(v): return Tree(v)
"""
    ops = [
        call(3),
        {"f": ["h", 0], "do": "get", "a": ["t", "v"]},
        {"f": ["h", 0], "do": "get", "a": ["t", "total"]},
        {"f": ["h", 1], "a": ["t"], "k": ["m", "", "k", 4]},
        call(9),
        {"f": ["p", 0], "do": "set", "a": ["t", "left", ["p", 4]]},
        {"f": ["p", 2], "a": ["t"]},
        {"f": ["h", 0], "do": "len", "a": ["t"]},
        {"f": ["h", 0], "do": "iter", "a": ["t"]},
        {"f": ["h", 0], "do": "eval", "a": ["t"]},
        {"f": ["h", 77], "do": "len", "a": ["t"]},
    ]
    ran = Ran(tmp_path, code, ops, handles=True)
    assert ran.kinds == "v:vvvvvvvvvxx"
    assert ran.report is not None
    lines = [json.loads(case.line) for case in ran.report.cases]
    assert lines[0]["v"] == ["h", 0, "*Tree"]
    assert [lines[n]["v"] for n in (1, 3, 5, 6, 7)] == [3, 7, None, 12, 5]
    assert lines[8]["v"] == ["g", 0, None, 3, ["h", 0, "*Tree"]]


def test_prints_are_kept_apart_and_reported_per_op_when_asked_for(tmp_path: Path) -> None:
    code = (
        "import os\nprint('load')\ndef solve(x):\n    print(x, flush=True)\n    os.write(2, b'err')\n    print('!')\n"
    )
    ran = Ran(tmp_path, code, [call("a"), call("b")], prints=True)
    assert ran.report is not None
    assert [case.printed for case in ran.report.cases] == ["a\nerr!\n", "b\nerr!\n"]
    assert ran.report.tail.startswith(b"load\na\nerr!")
    assert Ran(tmp_path, code, [call("a")]).report.cases[0].printed is None  # type: ignore[union-attr]


def test_what_a_candidate_leaves_running_dies_with_it(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    code = f"""
import os, subprocess, sys
def solve(x):
    if os.fork() == 0:
        os.setsid()
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(100)", "{mark}"])
    return x
"""
    assert Ran(tmp_path, code, [call(1)]).kinds == "v:v"
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert mark not in listing


def test_the_total_time_ends_the_report_where_it_strikes(tmp_path: Path) -> None:
    code = "import time\ndef solve(x): time.sleep(0.6)\n"
    ran = Ran(tmp_path, code, [call(n) for n in range(50)], timeout_seconds=2, case_s=5.0)
    assert ran.report is not None
    assert 1 <= len(ran.report.cases) < 50
    assert ran.report.cases[-1].kind in "tv"


def test_all_results_together_are_capped(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "def solve(x): return 'a' * 100_000\n", [call(n) for n in range(5)], all_bytes=250_000)
    assert ran.kinds == "v:vvlll"


def test_programs(tmp_path: Path) -> None:
    code = (
        "import sys\nprint(sys.stdin.read().upper(), end='')\nsys.exit(__name__ != '__main__' or len(sys.argv) - 1)\n"
    )
    ran = Ran(tmp_path, code, [{"stdin": "a\n"}, {"stdin": "é\ud800"}], program=True)
    assert ran.kinds == "v:pp"
    assert ran.report is not None
    assert json.loads(ran.report.cases[0].line) == "A\n"
    assert json.loads(ran.report.cases[1].line).startswith("É")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise SystemExit", "p"),
        ("raise SystemExit(0)", "p"),
        ("raise SystemExit(False)", "p"),
        ("raise SystemExit(True)", "x"),
        ("raise SystemExit(2)", "x"),
        ("raise SystemExit('words')", "x"),
        ("1 / 0", "x"),
        ("import os; os._exit(0)", "p"),
        ("import os; os._exit(7)", "d"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "d"),
        ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "b"),
        ("while True: pass", "t"),
        ("while True: print('a' * 4096)", "l"),
        ("import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'0 v null\\n')\n    except OSError: pass", "b"),
        ("print(\xff", "x"),
    ],
)
def test_what_programs_come_to(tmp_path: Path, code: str, kind: str) -> None:
    ran = Ran(tmp_path, code, [{"stdin": ""}], program=True, case_s=1.0 if kind == "t" else 10.0)
    assert ran.kinds == "v:" + kind, ran.stderr


FORKS = """
import os, sys
if os.fork() == 0:
    %s
else:
    os.wait()
    print("parent")
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit()", "1 / 0", "os._exit(0)"])
def test_a_forked_child_may_end_as_it_likes(tmp_path: Path, end: str) -> None:
    ran = Ran(tmp_path, FORKS % end, [{"stdin": ""}], program=True)
    assert ran.kinds == "v:p"
    assert json.loads(ran.report.cases[0].line) == "parent\n"  # type: ignore[union-attr]
    code = "def solve(x):\n" + "".join("    " + line + "\n" for line in (FORKS % end).splitlines()) + "    return x\n"
    calls = Ran(tmp_path, code, [call(1), call(2)])
    assert calls.kinds == "v:vv"
    assert [calls.value(n) for n in range(2)] == [1, 2]


def test_what_a_program_leaves_in_its_files_is_written(tmp_path: Path) -> None:
    code = """
import io, os, sys
class Buffered(io.StringIO):
    def flush(self):
        os.write(1, self.getvalue().encode())
        self.truncate(0)
        self.seek(0)
sys.stdout = Buffered()
print("first")
own = open(os.dup(1), "w")
own.write("own\\n")
"""
    ran = Ran(tmp_path, code, [{"stdin": ""}], program=True)
    assert sorted(json.loads(ran.report.cases[0].line).split()) == ["first", "own"]  # type: ignore[union-attr]


def test_code_finds_its_own_source(tmp_path: Path) -> None:
    code = "import inspect\ndef solve(x):\n    return inspect.getsource(solve), open(__file__).read().count('solve')\n"
    assert Ran(tmp_path, code, [call(1)]).value(0) == ("".join(code.splitlines(True)[1:]), 3)
    program = "print(len(open(__file__).read()))"
    ran = Ran(tmp_path, program, [{"stdin": ""}], program=True)
    assert json.loads(ran.report.cases[0].line) == f"{len(program)}\n"  # type: ignore[union-attr]
    assert Ran(tmp_path, "def solve(x): return '\ud800'\n", [call(1)]).kinds == "x:"


def test_programs_wait_for_their_threads_and_run_their_exit_handlers(tmp_path: Path) -> None:
    code = """
import atexit, threading, time
atexit.register(lambda: print("bye"))
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("main")
"""
    ran = Ran(tmp_path, code, [{"stdin": ""}], program=True)
    assert ran.report is not None
    assert json.loads(ran.report.cases[0].line) == "main\nthread\nbye\n"


@pytest.fixture
def name() -> Iterator[str]:
    """The name of an exec, whose results are removed afterwards."""
    name = "test-" + uuid.uuid4().hex
    yield name
    for folder in Path("/tmp/.collimate").glob(name + "*"):
        shutil.rmtree(folder)


def test_an_exec_with_a_name_runs_once(tmp_path: Path, name: str) -> None:
    code = "import os\ndef solve(x): return os.urandom(8)\n"
    first = Ran(tmp_path, code, [call(1)], id=name)
    again = Ran(tmp_path, code, [call(1)], id=name)
    assert first.value(0) == again.value(0)
    assert (first.how, again.how) == ("ran", "read")
    anew = Ran(tmp_path, code, [call(1)])
    assert anew.value(0) != first.value(0)
    assert anew.how == "ran"


def test_the_same_exec_waits_for_the_one_that_runs(tmp_path: Path, name: str) -> None:
    code = "import os, time\ndef solve(x):\n    time.sleep(0.5)\n    return os.urandom(8)\n"
    folders = [tmp_path / str(n) for n in range(3)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda folder: Ran(folder, code, [call(1)], id=name), folders))
    assert len({run.value(0) for run in runs}) == 1
    # "rerun" where another one had just come, made the folder, and not yet locked it.
    assert sum(run.how in ("ran", "rerun") for run in runs) == 1
    assert {run.how for run in runs} <= {"ran", "rerun", "waited", "read"}


def test_an_exec_whose_runner_died_runs_again(tmp_path: Path, name: str) -> None:
    started = tmp_path / "started"
    code = f"""
import os, pathlib, signal, time
def solve(x):
    started = pathlib.Path({str(started)!r})
    if not started.exists():
        started.write_text("")
        time.sleep(60)
    return 1
"""
    job = runner_job(code, [call(1)], timeout_seconds=20, case_s=10.0, id=name)
    framed = compose("runner", job, timeout_seconds=20, seed=None)
    (tmp_path / "collimate-job.json").write_text(framed.request.files[0][1])
    (tmp_path / "runner.py").write_text(framed.request.code)
    dying = subprocess.Popen([sys.executable, "runner.py"], cwd=tmp_path, stdin=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    beside = tmp_path / "beside"
    beside.mkdir()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Ran, beside, code, [call(1)], id=name, timeout_seconds=20)
        until = time.monotonic() + 60
        while not (beside / "runner.py").exists() or (beside / "collimate-job.json").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.2)  # for it to find the lock held; should it come too late, it runs the exec itself
        dying.kill()
        dying.wait()
        waited = waiting.result(60)
    assert (waited.returncode, waited.how) in ((75, ""), (0, "rerun"))
    again = Ran(tmp_path, code, [call(1)], id=name)
    assert again.how == ("rerun" if waited.returncode else "read")
    assert again.value(0) == 1


def test_a_runner_whose_job_is_gone_asks_for_it_again(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", guest.programs()["runner"]], cwd=tmp_path, capture_output=True)
    assert (ran.returncode, ran.stdout) == (75, b"")


def test_a_report_that_is_none(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "def solve(x): return 1\n", [call(1)])
    begin = ran.stdout.index("begin")
    mark = ran.stdout[:begin].strip()
    assert read_report(ran.stdout, mark, 1) is not None
    assert read_report("noise" + ran.stdout + "noise\n1.0\n", mark, 1) is not None
    assert read_report(ran.stdout, mark, 0) is None
    assert read_report(ran.stdout, "0" * 32, 1) is None
    assert read_report(ran.stdout[:-20], mark, 1) is None
    for old, new in (('["v",', '["q",'), ('"cases"', '"cakes"'), ('{"v":1}\n', "")):
        assert read_report(ran.stdout.replace(old, new), mark, 1) is None
