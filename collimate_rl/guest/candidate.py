"""The candidate's own process: loads its code, answers calls or runs as a program, and never comes back.

Whatever is here the candidate may replace: it can only change which plain values it sends.
"""

from __future__ import annotations

import atexit
import builtins
import io
import json
import marshal
import os
import sys
import types
from typing import Any, Dict, List, Tuple

from collimate_rl.guest.builder import Builder
from collimate_rl.guest.encoder import Encoder
from collimate_rl.guest.plain import Tree, Unencodable, dumps, type_names

SOURCE = "solution.py"
MESSAGE = 1 << 13  # bytes, of nearly all
loads, unpack, read, write = json.loads, marshal.loads, os.read, os.write  # as before the candidate's code
UNARY = ("len", "bool", "str", "repr", "int", "float", "hash", "list")

Frame = Tuple[str, Tree]


class Candidate:
    """Loads the code once and answers ops, keeping the objects that later ops may name."""

    def __init__(self, job: Dict[str, Any], name: str) -> None:
        self._job = job
        self._kept: List[Any] = []
        self._results: List[Any] = [None] * job["first"]
        module = types.ModuleType(name)
        module.__file__ = SOURCE
        self._names = module.__dict__
        sys.modules["solution"] = sys.modules["__main__"] = module

    def load(self) -> Frame:
        try:
            fd = os.open(SOURCE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            write(fd, self._job["code"].encode())
            os.close(fd)
        except (OSError, ValueError):
            pass  # no room, or no text: most code never looks
        space, prelude = self._names, self._job.get("prelude")
        if prelude:
            lent: Dict[str, Any] = {}
            try:
                exec(prelude, lent)
            except Exception:
                pass  # what it defined before is there; that this template lacks the rest is not the candidate's fault
            space["__builtins__"] = {**lent, **vars(builtins)}  # behind the code's own names
        try:
            exec(compile(self._job["code"], SOURCE, "exec", 0, True), space)
        except BaseException as error:
            return "x", {"x": Encoder().encode(error), "at": line_of(error)}
        entry = self._job["entry"]
        if entry and not self._has(entry):
            return "e", entry
        return "v", None

    def _place(self, name: str) -> Tuple[str, str]:
        """A name as (global, method): a method of `Solution` where no global of that name is."""
        first, _, rest = name.partition(".")
        if not rest and first not in self._names and "Solution" in self._names:
            return "Solution", name
        return first, rest

    def _has(self, name: str) -> bool:
        first, rest = self._place(name)
        owner = self._names.get(first)
        return first in self._names and (not rest or hasattr(owner, rest))

    def _target(self, node: List[Any]) -> Any:
        if node[0] != "n":
            return self._known(node)
        first, rest = self._place(node[1])
        if first not in self._names:
            raise NameError("name %r is not defined" % first)
        owner = self._names[first]
        return getattr(owner(), rest) if rest else owner

    def _known(self, node: List[Any]) -> Any:
        return (self._kept if node[0] == "h" else self._results)[node[1]]

    def _opaque(self, x: Any) -> Tree:
        n = next((n for n, y in enumerate(self._kept) if y is x), len(self._kept))
        if n == len(self._kept):
            self._kept.append(x)
        return ["h", n, *type_names(type(x))]

    def answer(self, op: Dict[str, Any]) -> Frame:
        """What one op did; Unencodable when that is no plain data."""
        self._results.append(None)
        builder = Builder(self._known, True)
        args = builder.build(op["a"])
        kwargs = builder.build(op["k"]) if "k" in op else {}
        watched = self._job["arguments"]
        given = self._peek(args, kwargs)[1] if watched else None
        out: Dict[str, Any] = {}
        failure = value = None
        try:
            value = self._perform(op.get("do", "call"), self._target(op["f"]), args, kwargs)
        except BaseException as error:
            failure = error
        self._results[-1] = value
        writer = self._encoder()
        if watched:
            sizes, left = self._peek(args, kwargs)
            writer.adopt(builder.objects, [sizes.get(id(x), 1) for x in builder.objects])
            if left != given:
                out["u"] = [writer.body(k) for k in range(len(builder.objects))]
        if failure is not None:
            out["x"], out["at"] = writer.encode(failure), line_of(failure)
            return "x", out
        out["v"] = tree = writer.encode(value)
        if type(tree) is list and tree[0] == "g":
            self._results[-1] = Builder(self._known).build(tree)  # encoding has drained it
        return "v", out

    def _perform(self, how: str, target: Any, args: Any, kwargs: Any) -> Any:
        if how == "call":
            return target(*args, **kwargs)
        if how == "get":
            return getattr(target, *args)
        if how == "set":
            return setattr(target, *args)
        if how == "iter":
            return (y for y in target)
        return getattr(builtins, UNARY[UNARY.index(how)])(target)

    def _encoder(self, peek: bool = False) -> Encoder:
        return Encoder(self._opaque if self._job["handles"] else None, self._job["value_bytes"], peek)

    def _peek(self, args: Any, kwargs: Any) -> Tuple[Dict[int, int], Tree]:
        """The sizes of the containers in a call's arguments, and trees to tell by whether they have changed."""
        writer = self._encoder(True)
        trees = [writer.encode(args), writer.encode(kwargs)]
        return {id(x): size for x, size in zip(writer.objects, writer.sizes)}, trees

    def last_rites(self) -> None:
        """A program's end as the interpreter's: threads are waited for, exit handlers run, files among its global names
        are written."""
        threading = sys.modules.get("threading")
        for last in (getattr(threading, "_shutdown", flush), atexit._run_exitfuncs):
            try:
                last()
            except BaseException:
                pass  # as the interpreter itself, which goes on ending
        flush(*[x for x in self._names.values() if isinstance(x, io.IOBase)])


def line_of(error: BaseException) -> int:
    """The candidate's own line that an exception passed last; 0 for none."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == SOURCE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def framed(index: int, most: int, step: Any, *args: Any) -> bytes:
    """What a step gave, or why it gave nothing, as the line that the holder waits for."""
    try:
        kind, tree = step(*args)
        text = dumps(tree)
        if len(text) > most:
            kind, text = "l", '"the value is too large"'
    except Unencodable as fault:
        kind, text = "l" if fault.limit else "o", dumps(fault.reason)
    except (RecursionError, MemoryError) as error:
        kind, text = "l" if type(error) is RecursionError else "m", '"while the result was encoded"'
    except Exception as error:
        kind, text = "o", dumps("a value that fails when read: " + type_names(type(error))[0])
    return ("%d %s %s\n" % (index, kind, text)).encode()


def flush(*more: Any) -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, *more):
        try:
            stream.flush()
        except BaseException:
            pass  # the candidate may have put anything there, or closed it


def candidate(link: int) -> int:
    """A candidate's whole life; gives its exit code.

    It is to end without the interpreter's last rites: threads and exit handlers are its own.
    """
    me = os.getpid()

    def say(frame: bytes) -> None:
        flush()
        if os.getpid() != me:
            os._exit(exit_code(frame))  # a process that the candidate forked is at its end: it has nothing to say here
        while frame:
            frame = frame[write(link, frame) :]

    job = heard(link)
    most = job["value_bytes"]
    if job["program"]:
        this = Candidate(job, "__main__")
        frame = framed(0, most, this.load)
        this.last_rites()
        say(frame)
        return exit_code(frame)
    this = Candidate(job, "solution")
    say(framed(-1, most, this.load))
    index, op = job["first"], heard(link)
    while op:
        say(framed(index, most, this.answer, op))
        index, op = index + 1, heard(link)
    return 0


def heard(link: int) -> Any:
    """The holder's next message; None when there will be none."""
    size, _, first = read(link, MESSAGE).partition(b"\n")
    told = bytearray(first)
    while len(told) < int(size or 0):
        piece = read(link, MESSAGE)
        if not piece:
            return None
        told += piece
    return unpack(told) if told else None


def exit_code(frame: bytes) -> int:
    """What the interpreter would end with after what a frame tells: an exception that nobody caught, or none."""
    code, tree = 0, loads(frame.split(b" ", 2)[2])
    if type(tree) is dict and "x" in tree:
        args = tree["x"][2][1:]
        code = 1
        if tree["x"][1][0] == "SystemExit":
            given: Any = args[0] if args else None
            code = given & 255 if type(given) in (int, bool) else given is not None
    return code
