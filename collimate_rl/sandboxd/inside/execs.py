"""The start of one exec, in a process forked from the warm interpreter: lose every right, then run what was asked."""

from __future__ import annotations

import atexit
import gc
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
import types
from base64 import b64decode
from collections.abc import Callable
from typing import Any, NoReturn

from . import syscalls
from .forkhooks import DeferredHooks

_FRAMES = 3
"""The descriptor of a held candidate's socket."""
_PROGRAM_FDS = 4096
"""RLIMIT_NOFILE of the guest programs. The kernel lets a process pass no descriptors on while those in flight of its
user, and so of all forks of all zygotes, are more than this: what other execs have must not be enough to get there."""


class Execs:
    """What every exec of a zygote shares: the last filter, the guest programs, the working directory."""

    def __init__(self, settings: dict[str, Any], hooks: DeferredHooks) -> None:
        self._hooks = hooks
        self.workdir = settings["workdir"]
        self._programs = {name: _load_program(name, text) for name, text in settings["programs"].items()}
        self._held = self._programs["runner"]
        # What the zygote may have, and so what a fork of it has, whatever limits its session's init was given since.
        self._max_fd, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._rlimits = {getattr(resource, name): value for name, value in settings["exec_rlimits"].items()}
        self._language: list[str] | None = settings["language"]
        self._entry = _find_entry(settings["entry"])
        self.seal = syscalls.SeccompFilter(b64decode(settings["seal_filter"]))

    @property
    def hold(self) -> Callable[..., tuple[str, int | None]]:
        """What holds a candidate from outside."""
        hold: Callable[..., tuple[str, int | None]] = self._held["hold"]
        return hold

    def rehearse(self) -> None:
        """Have the guest program go through what candidates do, in the working folder."""
        self._held["rehearse"]()

    def run(
        self, request: dict[str, Any], output: int, problem: str | None, *, frames: int = -1, oom_score: int = 0
    ) -> NoReturn:
        """Turn this process into the exec, with `output` as stdout and stderr; stdin is /dev/null already.

        `problem` is why its files could not be written: then that is all its output, and it fails. A candidate that is
        held from outside has its holder at the other end of `frames`.
        """
        try:
            os.dup2(output, 1)
            os.dup2(output, 2)
            if request["kind"] == "held":
                syscalls.keep_one(frames, _FRAMES, self._max_fd)
            else:
                syscalls.close_from(3, self._max_fd)
            if problem is not None:
                _complain(f"files were not written: {problem}")
                os._exit(1)
            self._lose_all_rights(oom_score, trusted=request["kind"] == "program")
            self._run(request)
        except BaseException as exc:
            _complain(f"the exec could not be started: {exc!r}")
        finally:
            # Nothing may unwind from here into the loops of the zygote or the init.
            os._exit(126)

    def _lose_all_rights(self, oom_score: int, *, trusted: bool) -> None:
        for name, value in self._rlimits.items():
            lower_limit(name, _PROGRAM_FDS if trusted and name == resource.RLIMIT_NOFILE else value)
        syscalls.drop_capabilities()
        # /proc/self belongs to root until the process is dumpable.
        syscalls.set_dumpable(True)
        if oom_score:
            with open("/proc/self/oom_score_adj", "wb", buffering=0) as score:
                score.write(b"%d" % oom_score)
        os.chdir(self.workdir)
        self.seal.install()

    def _run(self, request: dict[str, Any]) -> NoReturn:
        kind = request["kind"]
        if kind == "command":
            _become(["/bin/sh", "-c", request["command"]])
        if kind == "commands":
            _run_list(request["commands"])
        if kind == "argv":
            _become(request["argv"])
        if kind == "language":
            assert self._language is not None
            _become([*self._language, request["code"]])
        self._hooks.register()
        seed = int(request["seed"], 16)
        random.seed(seed)
        if "numpy" in sys.modules:
            words = [(seed >> shift) & 0xFFFFFFFF for shift in range(0, 256, 32)]
            sys.modules["numpy"].random.seed(words)
        if kind == "held":
            # What fails before this is nothing that a candidate did.
            os.write(_FRAMES, now())
            self._held["alone"](_FRAMES)
        if kind == "entry":
            run_python(self._entry, None)
        run_python(self._programs[request["program"]]["main"] if kind == "program" else None, request.get("code"))


def now() -> bytes:
    """The monotonic clock in nanoseconds, as it is added to the eventfd that comes with an exec when the exec begins.

    The clock is the host's own: no fork has a time namespace.
    """
    return time.monotonic_ns().to_bytes(8, sys.byteorder)


def lower_limit(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def _load_program(name: str, text: str) -> dict[str, Any]:
    """A trusted program's names, its body run once here: every fork would pay for that again in page faults."""
    space: dict[str, Any] = {"__name__": f"collimate_{name}"}
    exec(compile(text, f"<collimate {name}>", "exec", dont_inherit=True), space)
    return space


def _find_entry(entry: str | None) -> Callable[[], object] | None:
    """The function that `module:function` names, in a module that was imported before."""
    if entry is None:
        return None
    module, _, name = entry.partition(":")
    found = getattr(sys.modules[module], name, None)
    if not callable(found):
        raise TypeError(f"the entry {entry} is no function: {module} has no such name that can be called")
    function: Callable[[], object] = found
    return function


def run_python(program: Callable[[], object] | None, text: str | None) -> NoReturn:
    """Run as `python -c` would: a fresh `__main__`, a traceback on stderr, the exit status of SystemExit.

    `program` is run instead of `text` where there is one.
    """
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    gc.enable()
    status = 0
    try:
        if program is not None:
            program()
        else:
            assert text is not None
            exec(compile(text, "<string>", "exec", dont_inherit=True), main.__dict__)
    except SystemExit as exc:
        status = _exit_status(exc)
    except BaseException as exc:
        status = 130 if isinstance(exc, KeyboardInterrupt) else 1
        # The first frame is this function's.
        below = exc.__traceback__.tb_next if exc.__traceback__ is not None else None
        _report(exc.with_traceback(below))
    _finish(status)


def _report(exc: BaseException) -> None:
    try:
        sys.excepthook(type(exc), exc, exc.__traceback__)
    except BaseException:
        # The candidate replaced the hook, or its exception can't be shown.
        try:
            traceback.print_exc()
        except BaseException:
            pass


def _exit_status(exc: SystemExit) -> int:
    if exc.code is None:
        return 0
    if isinstance(exc.code, int):
        return exc.code & 0xFF
    try:
        print(exc.code, file=sys.stderr)
    except BaseException:
        # stderr is the candidate's to break; the status says enough.
        pass
    return 1


def _finish(status: int) -> NoReturn:
    """The interpreter's own order of leaving, without its teardown: threads, atexit, flush."""
    try:
        for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
            try:
                step()
            except SystemExit:
                pass
            except BaseException as exc:
                _report(exc)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                status = status or 120
    finally:
        os._exit(status)


def _become(argv: list[str]) -> NoReturn:
    # Python ignores these, and what is ignored stays so across an exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError as exc:
        _complain(f"{argv[0]}: {exc.strerror}")
        os._exit(127)
    except (OSError, ValueError) as exc:
        _complain(f"{argv[0]}: {exc}")
        os._exit(126)


def _run_list(commands: list[list[str]]) -> NoReturn:
    for argv in commands:
        pid = os.fork()
        if pid == 0:
            _become(argv)
        status = exit_code(os.waitpid(pid, 0)[1])
        if status:
            os._exit(status)
    os._exit(0)


def exit_code(status: int) -> int:
    """A wait status as a shell shows it: 128 + n for a death by signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _complain(text: str) -> None:
    try:
        os.write(2, f"[collimate] {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        # Nobody reads; the exit status says enough.
        pass
