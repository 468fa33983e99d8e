"""Carries a candidate's work into a fresh tree, writes the tests after it, runs a command there and brings the results.

Everything up to the command is done by this process with files alone: no code of the candidate runs before it does. The
command's processes are of the same user. They can neither trace this process nor read its memory or descriptors (it is
not dumpable), and are all dead when their results are read. What they write themselves, the results file included, is
theirs to choose: see the documents for what that means.

The job (the file `JOB`, JSON): `mark`; `root`, `base` or null; `files`, `tests`, `decoys`: `[path, base64]` each;
`test_patch` or null; `setup` or null, `command`: a shell's text or an argv; `env`; `patch`, or `work` (`files`,
`deleted`); `rules` (see tree.Rules); `results`: whether the command leaves a file; `total_s`, `case_s`; `out_bytes`,
`results_bytes`.

The answer: `mark` + " begin"; a header `{"stage", "fault", "dropped", …}`; the results' base64 or a blank line; `mark`
+ " end ran". `stage` is where it ended: "base", "setup", "work", or "ran".
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import stat
import sys
import time
from base64 import b64decode, b64encode
from typing import Any, Dict, List, Optional, Tuple

from collimate_rl.guest.diff import BadPatch, FilePatch, read_patch
from collimate_rl.guest.nursery import DUMPABLE, SUBREAPER, end_orphans, prctl, slurp
from collimate_rl.guest.tree import Escape, Rules, Tree
from collimate_rl.guest.waits import waited
from collimate_rl.guest.watch import changed, watched

JOB = "collimate-job.json"
AGAIN = 75  # exit code: nothing ran here, send the same exec again
TAIL_BYTES = 4096
LARGE_RSS = 96 << 10  # KiB; a process killed by others above that is taken for one that ran out of memory
STEP_MS = 20
OPEN_FILES = 1024

Changes = Dict[str, Tuple[Optional[bytes], Optional[int]]]


class Failed(Exception):
    """`stage` could not be gone through."""

    def __init__(self, stage: str, fault: str, timeout: bool = False) -> None:
        Exception.__init__(self, fault)
        self.stage, self.fault, self.timeout = stage, fault, timeout


def make_base(job: Dict[str, Any]) -> Tree:
    """The tree as every candidate finds it."""
    root = job["root"]
    if job["base"] is not None and not os.path.isdir(job["base"]):
        raise Failed("base", "there is no directory %s in this template" % job["base"])
    try:
        if job["base"] is not None and os.path.realpath(job["base"]) != os.path.realpath(root):
            shutil.copytree(job["base"], root, symlinks=True)
            for folder, _, _ in os.walk(root):
                os.chmod(folder, 0o700)
        os.makedirs(root, exist_ok=True)
        tree = Tree(os.path.realpath(root))
        for path, data in job["files"]:
            tree.put(path, b64decode(data))
    except (OSError, shutil.Error, Escape) as fault:
        raise Failed("base", "%s" % fault) from fault
    return tree


def patched(tree: Tree, patches: List[FilePatch]) -> Changes:
    """What the patches make of the tree's files: content (None: it goes) and mode."""
    changes: Changes = {}
    for patch in patches:
        before = None
        if patch.old is not None:
            before = changes[patch.old][0] if patch.old in changes else tree.get(patch.old)
        elif patch.new is not None:
            before = changes[patch.new][0] if patch.new in changes else tree.get(patch.new)
        after = patch.apply(before)
        mode = None if patch.mode is None else int(patch.mode, 8) & 0o777
        if patch.new is not None:
            if patch.new != patch.old and patch.old is not None and tree.has(patch.new):
                raise BadPatch("%s: it is there already" % patch.new)
            changes[patch.new] = after, mode
        if patch.old is not None and patch.old != patch.new and not patch.copied:
            changes[patch.old] = None, None
    return changes


def tests_of(tree: Tree, job: Dict[str, Any]) -> Changes:
    """The spec's own test files, which are written last."""
    tests: Changes = {path: (b64decode(data), None) for path, data in job["tests"]}
    try:
        if job["test_patch"] is not None:
            tests.update(patched(tree, read_patch(job["test_patch"].encode("utf-8", "surrogatepass"))))
        for path in tests:
            tree.get(path)
    except (ValueError, OSError) as fault:
        raise Failed("base", "the tests: %s" % fault) from fault
    return tests


def carry_over(tree: Tree, job: Dict[str, Any], own: List[str]) -> List[str]:
    """Write the candidate's work; the paths of what was kept out."""
    rules = Rules(tree, job["rules"], own)
    dropped: List[str] = []
    try:
        if job["patch"] is not None:
            patches = read_patch(job["patch"].encode("utf-8", "surrogatepass"))
            kept = []
            for patch in patches:
                out = [path for path in (patch.old, patch.new) if path is not None and rules.keeps_out(path)]
                dropped += out[:1]
                kept += [patch] * (not out)
            changes = patched(tree, kept)
        else:
            work = job["work"]
            changes = {path: (b64decode(data), None) for path, data in work["files"]}
            changes.update((path, (None, None)) for path in work["deleted"])
            dropped = [path for path in changes if rules.keeps_out(path)]
            for path in dropped:
                del changes[path]
        for path, (content, mode) in changes.items():
            if content is None:
                tree.drop(path)
            else:
                tree.put(path, content, mode)
    except (ValueError, OSError) as fault:
        raise Failed("escape" if type(fault) is Escape else "work", "%s" % fault) from fault
    return dropped


def environment(job: Dict[str, Any], home: str) -> Dict[str, str]:
    """What the command finds in its environment: nothing of what this process has, and no place that it can change."""
    interpreter = os.path.dirname(sys.executable or "")
    path = ":".join([interpreter] * (interpreter[:1] == "/") + ["/usr/local/bin", "/usr/bin", "/bin"])
    return dict(
        {
            "PATH": path,
            "HOME": home,
            "TMPDIR": "/tmp",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        **job["env"],
    )


class Child:
    """A command in a session of its own: `how` it ended ("e" by itself, "t" time, "l" output, "m" memory), and its
    exit code, minus a signal's number where that killed it."""

    def __init__(self, command: Any, root: str, env: Dict[str, str]) -> None:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        self.tail, self.seen, self.how, self.code, self.waits = b"", 0, "e", 0, -1
        self.begun, self.spent = time.monotonic(), reaped_ms()
        self.out, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                become(argv, root, env, theirs)
            finally:
                os._exit(126)
        os.close(theirs)
        os.set_blocking(self.out, False)

    def watch(self, until: float, most: int) -> None:
        """Until it has ended, or is to."""
        poll = select.poll()
        poll.register(self.out, select.POLLIN)
        waiting = True
        while True:
            if waiting:
                poll.poll(STEP_MS)
                waiting = self.take()
            else:
                time.sleep(STEP_MS / 1000)
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                if self.code in (-9, 137) and usage.ru_maxrss > LARGE_RSS:
                    self.how = "m"
                return
            if self.seen > most:
                self.how = "l"
                return
            if time.monotonic() >= until:
                self.how, self.waits = "t", waited(self.pid)
                return

    def take(self) -> bool:
        """Read what there is now; False at the end."""
        try:
            piece = os.read(self.out, 1 << 16)
        except BlockingIOError:
            return True
        self.seen += len(piece)
        self.tail = (self.tail + piece)[-TAIL_BYTES:]
        return bool(piece)

    def end(self) -> None:
        """Kill it with all that it left running, wherever that went, and wait until they are dead."""
        self.ms = round((time.monotonic() - self.begun) * 1000, 3)
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except OSError:
                pass  # gone already
        end_orphans()
        self.spent = reaped_ms() - self.spent
        for _ in range(256):
            if not self.take() or not select.select([self.out], [], [], 0)[0]:
                break
        os.close(self.out)


def reaped_ms() -> int:
    """Milliseconds on a processor of all that has been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((usage.ru_utime + usage.ru_stime) * 1000)


def become(argv: List[str], root: str, env: Dict[str, str], out: int) -> None:
    """Turn this process into the command."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, at in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, at)
    os.closerange(3, 4096)
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
        fds = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (fds, fds))
    except (OSError, ValueError):
        pass  # no Linux
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(root)
        os.execvpe(argv[0], argv, env)
    except OSError as fault:
        os.write(2, ("%s: %s\n" % (argv[0], fault.strerror)).encode("utf-8", "replace"))
        os._exit(127)


def filled(command: Any, names: Dict[str, str]) -> Any:
    """The command with our own words in the places that it leaves for them."""
    if not isinstance(command, str):
        return [filled(part, names) for part in command]
    for name, value in names.items():
        command = command.replace(name, value)
    return command


def results_of(path: str, most: int) -> Tuple[str, bytes]:
    """The results file: how that went ("ok", "missing", "large"), and its bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return "missing", b""
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return "missing", b""
        data = file.read(most + 1)
    return ("large", b"") if len(data) > most else ("ok", data)


def perform_command(job: Dict[str, Any], until: float) -> Tuple[Dict[str, Any], bytes]:
    """All of it, in a place of its own for the results and an empty home."""
    place = "/tmp/collimate-%s" % os.urandom(16).hex()
    for folder in (place, place + "/home"):
        os.mkdir(folder, 0o700)
    try:
        return perform_in(job, until, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def perform_in(job: Dict[str, Any], until: float, place: str) -> Tuple[Dict[str, Any], bytes]:
    tree = make_base(job)
    results = place + "/results.xml"
    names = {"{python}": sys.executable or "python3", "{root}": tree.root, "{results}": results}
    names["{decoys}"] = " ".join(path for path, _ in job["decoys"])
    env = environment(job, place + "/home")
    if job["setup"] is not None:
        setup = Child(filled(job["setup"], names), tree.root, env)
        setup.watch(until, job["out_bytes"])
        if setup.how != "e" or setup.code:
            setup.end()
            words = "exit code %d: %s" % (setup.code, setup.tail.decode("utf-8", "replace")[-2000:])
            raise Failed("setup", words, setup.how == "t")
    tests = tests_of(tree, job)
    dropped = carry_over(tree, job, list(tests))
    for path, data in job["decoys"]:
        tests[path] = b64decode(data), None
    try:
        for path, (content, mode) in tests.items():
            if content is None:
                tree.drop(path)
            else:
                tree.put(path, content, mode, True)
    except (OSError, Escape) as fault:
        raise Failed("work", "the tests can't be written over it: %s" % fault) from fault
    before = watched(tree.root, set(tests))
    child = Child(filled(job["command"], names), tree.root, env)
    child.watch(min(until, child.begun + job["case_s"]), job["out_bytes"])
    child.end()
    touched = changed(before, watched(tree.root, set(tests)))
    state, data = results_of(results, job["results_bytes"]) if job["results"] else ("none", b"")
    header = {"stage": "ran", "how": child.how, "code": child.code, "ms": child.ms, "dropped": dropped[:100]}
    header.update(
        {
            "tail": child.tail.hex(),
            "seen": child.seen,
            "results": state,
            "touched": touched[:20],
            "late": [child.spent, child.waits / 1e6],
        }
    )
    return header, data


def main() -> None:
    started = time.monotonic()
    prctl(DUMPABLE, 0, 0, 0, 0)
    prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        job = json.loads(slurp(JOB))
        os.unlink(JOB)
    except FileNotFoundError:
        sys.exit(AGAIN)  # the same exec, sent twice at once, has taken it
    mark = job.pop("mark")
    data = b""
    try:
        header, data = perform_command(job, started + job["total_s"])
    except Failed as failed:
        header = {"stage": failed.stage, "fault": failed.fault[:2000], "timeout": failed.timeout}
    header["py"] = sys.version.split()[0]
    words = "\n%s begin\n%s\n%s\n%s end ran\n" % (mark, json.dumps(header), b64encode(data).decode(), mark)
    left = memoryview(words.encode("ascii"))
    while left:
        left = left[os.write(1, left) :]


if __name__ == "__main__":
    main()
