"""The last steps before bubblewrap, as a program of its own: `launch.py JSON`, which ends by becoming bubblewrap.

As root: where it may mount, bind what the jail needs to places that an unprivileged user can reach (an interpreter
below a closed home, for one) in a private mount namespace; then become that user. As anyone: no_new_privs, so that a
setuid bwrap is run as what it is asked to be. It imports nothing of the package: the daemon runs it by path.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_NO_NEW_PRIVS = 38


def main(instructions: str) -> None:
    """`{"uid", "gid", "moves": [[source, place]], "argv"}`; uid null means: stay who you are; without moves, nothing
    is staged."""
    wanted = json.loads(instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if wanted["moves"]:
        _stage(libc, wanted["moves"])
    if wanted["uid"] is not None:
        os.setgroups([])
        os.setresgid(wanted["gid"], wanted["gid"], wanted["gid"])
        os.setresuid(wanted["uid"], wanted["uid"], wanted["uid"])
    libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    os.chdir("/")
    try:
        os.execv(wanted["argv"][0], wanted["argv"])
    except OSError as exc:
        raise SystemExit(f"{wanted['argv'][0]} can't be run as uid {os.geteuid()}: {exc.strerror}") from exc


def _stage(libc: ctypes.CDLL, moves: list[list[str]]) -> None:
    if libc.unshare(ctypes.c_int(_CLONE_NEWNS)) != 0:
        raise SystemExit(f"a private mount namespace can't be had: {os.strerror(ctypes.get_errno())}")
    _mount(libc, "none", "/", _MS_REC | _MS_PRIVATE)
    for source, place in moves:
        os.makedirs(place, 0o755, exist_ok=True)
        _mount(libc, source, place, _MS_BIND | _MS_REC)


def _mount(libc: ctypes.CDLL, source: str, target: str, flags: int) -> None:
    if libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        raise SystemExit(f"{source} can't be bound to {target}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1])
