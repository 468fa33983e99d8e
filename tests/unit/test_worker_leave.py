"""How a worker's processes begin, and end: with their code, and with all that they said and still had to do."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from worker.process import importing


def ended(text: str) -> tuple[int, str, str]:
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, "-c", text], env=buffered, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("code", [0, 75])
def test_what_was_said_is_written_and_the_code_is_given(code: int) -> None:
    text = f"""
import logging, logging.handlers, sys
from worker.process import leave
later = logging.handlers.MemoryHandler(99, target=logging.StreamHandler(sys.stderr))
later.emit(logging.makeLogRecord({{"msg": "logged", "levelno": 20}}))
print("said", end="")
leave({code})
"""
    assert ended(text) == (code, "said", "logged\n")


def test_a_thread_that_has_to_be_waited_for_is() -> None:
    text = """
import threading, time
from worker.process import leave
threading.Thread(target=lambda: (time.sleep(0.3), print("done"))).start()
leave(3)
"""
    assert ended(text) == (3, "done\n", "")


def test_others_end_with_it() -> None:
    text = """
import threading, time
from worker.process import leave
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
leave(0)
"""
    assert ended(text) == (0, "", "")


def test_a_reader_that_is_gone_changes_no_code() -> None:
    text = """
import gc
import os
from worker.process import leave
reader, writer = os.pipe()
os.dup2(writer, 1)
os.close(reader)
print("nobody reads this")
leave(4)
"""
    assert ended(text)[0] == 4


def test_imports_look_for_no_garbage_and_all_else_does() -> None:
    assert gc.isenabled()
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
