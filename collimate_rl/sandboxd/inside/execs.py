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
import traceback
import types
from typing import Any, NoReturn

from . import syscalls

_OOM_SCORE = b"400"
"""Above the init's 0, so that the init outlives the exec; a runner may raise its own child's further."""


class ExecStart:
    """What every exec of a zygote shares: the filter, the guest programs, the working directory."""

    def __init__(self, settings: dict[str, Any], seccomp: syscalls.SeccompFilter) -> None:
        self.workdir = settings["workdir"]
        self.programs = {
            name: compile(text, f"<collimate {name}>", "exec", dont_inherit=True)
            for name, text in settings["programs"].items()
        }
        self._rlimits = settings["exec_rlimits"]
        self._seccomp = seccomp

    def start(self, request: dict[str, Any], output: int) -> int:
        """Fork; the child runs the request with `output` as stdout and stderr. Returns the child's pid."""
        pid = os.fork()
        if pid == 0:
            self._be(request, output)
        return pid

    def _be(self, request: dict[str, Any], output: int) -> NoReturn:
        try:
            for fd in (1, 2):
                os.dup2(output, fd)
            self._enter()
        except BaseException as exc:
            _complain(2, f"the sandbox could not be entered: {exc!r}")
            os._exit(126)
        self._run(request)

    def _enter(self) -> None:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for name, value in self._rlimits.items():
            resource.setrlimit(getattr(resource, name), (value, value))
        syscalls.drop_capabilities()
        # /proc/self belongs to root until the process is dumpable.
        syscalls.set_dumpable(True)
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, _OOM_SCORE)
        os.close(score)
        os.chdir(self.workdir)
        self._seccomp.install()

    def _run(self, request: dict[str, Any]) -> NoReturn:
        kind = request["kind"]
        if kind == "command":
            _become(["/bin/sh", "-c", request["command"]])
        if kind == "commands":
            _run_list(request["commands"])
        seed = int(request["seed"], 16)
        random.seed(seed)
        if "numpy" in sys.modules:
            words = [(seed >> shift) & 0xFFFFFFFF for shift in range(0, 256, 32)]
            sys.modules["numpy"].random.seed(words)
        code = self.programs[request["program"]] if kind == "program" else None
        run_python(code, request.get("code"))


def run_python(code: types.CodeType | None, text: str | None) -> NoReturn:
    """Run as `python -c` would: a fresh `__main__`, a traceback on stderr, the exit status of SystemExit."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    gc.enable()
    status = 0
    try:
        if code is None:
            assert text is not None
            code = compile(text, "<string>", "exec", dont_inherit=True)
        exec(code, main.__dict__)
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
    # Python ignores it, and what is ignored stays so across an exec.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError as exc:
        _complain(2, f"{argv[0]}: {exc.strerror}")
        os._exit(127)
    except (OSError, ValueError) as exc:
        _complain(2, f"{argv[0]}: {exc}")
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


def _complain(fd: int, text: str) -> None:
    try:
        os.write(fd, f"collimate: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        # Nobody reads; the exit status says enough.
        pass
