"""Runs a candidate's calls, or whole programs, and reports what each did: as plain data, with no answers at hand.

Three kinds of process. The *holder* is the started one: it reads and removes the job, keeps the ops, limits and
results, and hands out one op at a time. The *nursery* is forked before the job is read and never sees it; it forks the
*candidates*, one alive at a time, so that each starts clean; or it becomes the only one. What a candidate sends is a
line of text that the holder passes on unread: it is decoded where no candidate runs.

The job (the file `JOB`, JSON): `mark`, random text that frames the result; `id`, the exec's name, or null; `code`;
`prelude`: Python or "", whose names the code finds where it defines none such; `program`: candidates are whole
programs; `entry`: a name that must be there, or null; `ops`; `total_s`, `case_s`;
`value_bytes`, `all_bytes`; `arguments`: report containers that a call changed; `handles`: keep opaque results for later
ops; `prints`: report what each op printed; `stop`: run nothing after an op without a result; `sole`: nor after the end
of the first candidate (calls only), which saves a fork; `from`: the op to begin with, 0 where it isn't there. An op is
`{"stdin": text}`, or `{"f": target, "do": what, "a": tree, "k": tree}`: target `["n", name]`, `["h", handle]` or
`["p", op]` (that op's result); `do` is "call" (the default), "get", "set", "iter" or one of UNARY.

The result: a line `mark` + " begin"; a header `{"load": [kind, ms], "cases": [[kind, ms], …], "tail", "seen", "lost",
"touched", "py"}` with an entry per op reached (and, with `prints`, its output as a third item), "lost" when no further
candidate could be had, "touched" when our places in the sandbox changed meanwhile, "py" the interpreter's version; a
line of JSON for the load and one for each of those; `mark` + " end " and how it came (see `kept`). Kinds: "v"
value `{"v": tree, "u"?: bodies}`; "x" exception `{"x": tree, "at": line, "u"?}`; "o" opaque, "l" beyond a limit
(reasons); "e" no entry; "p" program done (its output); "t" timeout; "d" died (exit code, or minus a signal); "m" out of
memory; "b" no frame of ours.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

from collimate_rl.guest.candidate import candidate
from collimate_rl.guest.holder import TAIL, Holder
from collimate_rl.guest.nursery import DUMPABLE, nursery, prctl, slurp
from collimate_rl.guest.plain import dumps

JOB = "collimate-job.json"
KEPT = "/tmp/.collimate"
AGAIN = 75  # exit code: nothing ran here, send the same exec again


def stamps(job: Dict[str, Any]) -> List[int]:
    """When our places last changed; 0 for what isn't there."""
    found = []
    for path in (JOB, KEPT, "%s/%s" % (KEPT, job["id"])):
        try:
            found.append(os.stat(path).st_mtime_ns)
        except OSError:
            found.append(0)
    return found


def perform(holder: Holder, job: Dict[str, Any], look: Callable[[Any], Any] = stamps) -> str:
    """Run the ops as far as the time allows; the result, but for its frame. `look` sees whether a place was touched."""
    ops, program, first = job.pop("ops"), job["program"], job.get("from", 0)
    cases: List[List[Any]] = []
    load: List[Any] = ["v", 0.0]
    lines = ["null"]
    room = job["all_bytes"]
    before = look(job)
    for index, op in enumerate(ops[first:], first):
        if not left(job):
            holder.end(True)
            break
        if program:
            holder.spawn(op["stdin"])
            kind, line, ms = timed(holder, job, 0, {**job, "first": 0})
            if kind in "vxd":
                status = holder.death()
                if status[1] == "0":
                    kind, line = "p", dumps(holder.printed.decode("utf-8", "replace"))
                elif kind != "x":
                    kind, line = status
            holder.end(kind == "t")
            cases.append([kind, ms])
        else:
            kind = "v"
            if holder.pid <= 0:
                if index > first and job["sole"]:
                    break
                kind, line, ms = loaded(holder, job, index)
                if index == first:
                    load, lines = [kind, ms], [line]
                    if kind != "v":
                        break
            if kind == "v":
                kind, line, ms = timed(holder, job, index, op)
            cases.append([kind, ms])
            if job["prints"]:
                printed = drained(holder)[: min(job["value_bytes"], max(room, 0))]
                room -= len(printed)
                cases[-1].append(printed.decode("utf-8", "replace"))
            if kind in "tdmb" or line == "null":
                holder.end(kind == "t")
        room -= len(line)
        if room < 0:
            cases[-1][0], line = "l", "null"
        lines.append(line)
        if holder.lost or (job["stop"] and kind not in "vp"):
            break
    if not ops and not program:
        kind, line, ms = loaded(holder, job, 0)
        load, lines = [kind, ms], [line]
    holder.kill()
    header = {
        "load": load,
        "cases": cases,
        "tail": holder.tail.hex(),
        "seen": holder.seen,
        "lost": holder.lost,
        "late": holder.late,
        "touched": look(job) != before,
        "py": sys.version.split()[0],
    }
    return "\n".join([dumps(header), *lines, ""])


def left(job: Dict[str, Any]) -> float:
    """Seconds until the exec's total time is up; 0 when it is."""
    until: float = job["until"]
    return max(0.0, until - time.monotonic())


def loaded(holder: Holder, job: Dict[str, Any], first: int) -> Tuple[str, str, float]:
    """Start a candidate that answers from op `first` on."""
    holder.spawn()
    result = timed(holder, job, -1, {**job, "first": first})
    drained(holder)
    if result[0] != "v":
        holder.end(result[0] == "t")
    return result


def drained(holder: Holder) -> bytearray:
    """What the candidate has printed since this was last asked."""
    if holder.fds:
        holder.drain(holder.out, TAIL)
    printed, holder.printed = holder.printed, bytearray()
    return printed


def timed(holder: Holder, job: Dict[str, Any], index: int, message: Any) -> Tuple[str, str, float]:
    begun = time.monotonic()
    until = min(begun + job["case_s"], job["until"])
    kind, line = holder.ask(index, message, until, job["value_bytes"], job["program"])
    return kind, line, round((time.monotonic() - begun) * 1000, 3)


def kept(job: Dict[str, Any], make: Callable[[], str]) -> Tuple[str, str]:
    """The result of the exec with this id, and how it came: "read", "waited" for, "ran", or "rerun" as the first died.

    Ends the process with AGAIN where whoever was at it ended without a result, or goes on for longer than we may wait.
    """
    folder = os.path.join(KEPT, job["id"])
    path = folder + "/result"
    how = ["ran", "rerun"][os.path.exists(folder)]
    try:
        os.makedirs(folder, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError:
        return make(), how  # no room: sent again it runs again
    waited = 0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            waited = 1
            if not left(job):
                break
            time.sleep(0.02)
    try:
        return slurp(path).decode(), ["read", "waited"][waited]
    except OSError:
        if waited:
            sys.exit(AGAIN)
    body = make()
    try:
        with open(path + "-", "w") as file:
            file.write(body)
        os.rename(path + "-", path)
    except OSError:
        pass  # as above
    return body, how


def report(mark: str, body: str, how: str) -> str:
    return "\n%s begin\n%s%s end %s\n" % (mark, body, mark, how)


def main() -> None:
    started = time.monotonic()
    gc.disable()
    ours, theirs = socket.socketpair()
    draws = sys.modules["random"].getstate() if "random" in sys.modules else None
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        ours.close()
        nursery(theirs, candidate, draws)
    theirs.close()
    prctl(DUMPABLE, 0, 0, 0, 0)  # no candidate opens this process's memory or descriptors
    try:
        job = json.loads(slurp(JOB))
        os.unlink(JOB)
    except FileNotFoundError:
        sys.exit(AGAIN)  # the same exec, sent twice at once, has taken it
    mark, job["until"] = job.pop("mark"), started + job["total_s"]
    holder = Holder(ours, job["program"] or job["prints"], job["sole"] and pid)
    body, how = kept(job, lambda: perform(holder, job)) if job["id"] else (perform(holder, job), "ran")
    data = memoryview(report(mark, body, how).encode())
    while data:
        data = data[os.write(1, data) :]
    holder.end()  # the answer is out: should the time limit strike now, it counts all the same
    ours.close()
    if not (job["sole"] and holder.ended):
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
