"""Children of a command are stopped for certain, and signals are a flag."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collimate_rl.cli.interrupt import Interrupt, Interrupted, unwinding
from collimate_rl.cli.processes import Child

STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"
)
PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\ntime.sleep(600)"
)


def started(tmp_path: Path, code: str) -> tuple[Child, str]:
    child = Child.start("thing", [sys.executable, "-c", code], tmp_path / "log")
    end = time.monotonic() + 30
    while not (text := child.log.read_text().strip()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return child, text


def test_a_child_that_listens_leaves_by_itself(tmp_path: Path) -> None:
    child, _ = started(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(600)")
    assert child.exit_code is None
    assert child.stop(30) is True
    assert child.exit_code == -signal.SIGTERM
    assert child.stop(30) is True


def test_a_child_that_does_not_is_killed(tmp_path: Path) -> None:
    child, _ = started(tmp_path, STUBBORN)
    assert child.stop(0.05) is False
    assert child.exit_code == -signal.SIGKILL


def test_what_a_child_started_goes_with_it(tmp_path: Path) -> None:
    child, text = started(tmp_path, PARENT)
    grandchild = int(text)
    child.stop(30)
    end = time.monotonic() + 30
    while Path(f"/proc/{grandchild}").exists() and "Z" not in Path(f"/proc/{grandchild}/stat").read_text().split()[2]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_last_words_are_the_end_of_the_log(tmp_path: Path) -> None:
    child, _ = started(tmp_path, "import sys\nfor n in range(40): print('line', n)\nsys.exit('the reason')")
    child.process.wait(30)
    assert child.exit_code == 1
    assert child.last_words(2) == "line 39\nthe reason"


def test_a_signal_sets_a_flag_that_check_raises() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        interrupt.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM") as caught:
            interrupt.check()
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_unwinds_a_command_that_only_has_to_clean_up(signum: signal.Signals) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(SystemExit) as caught, unwinding():
        signal.raise_signal(signum)
    assert caught.value.code == 128 + signum
    assert signal.getsignal(signum) is before


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_main_names_the_extra_that_is_missing(missing: str) -> None:
    code = (
        "import importlib.util as u\nreal = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {missing!r} else real(name, *rest)\n"
        "from collimate_rl.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert missing in done.stderr
    assert "pip install 'collimate-rl[cli]'" in done.stderr
