"""A fork's steps, gone through in the warm interpreter before the first fork, on things that stand in for real ones.

What Python does once (it rewrites code for what that meets, fills its caches, makes what is made at the first use) is
done for all forks then; each would otherwise do it again, and copy the pages that it writes to. None of these steps
changes what the zygote is or has. Those that can't be taken back are left out: losing rights, the filters.
"""

from __future__ import annotations

import os
import random
import resource
import socket

from . import syscalls
from .channel import pass_descriptor, receive_packet, receive_request, send_request
from .execs import Execs, lower_limit, now
from .files import receive_files
from .init import Layout

ROUNDS = 12
"""More than the calls after which Python (3.11 and later) rewrites a function."""
_FD, _CEILING = 240, 256
"""A descriptor above all that the zygote has open."""
_FOLDER = "/tmp"
"""Of the zygote's own, which no fork sees."""


def rehearse(execs: Execs) -> None:
    """Go through them."""
    layout = Layout.that_changes_nothing()
    for _ in range(ROUNDS):
        layout.lay_out()
        _take_request()
        lower_limit(resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)[0])
        syscalls.set_dumpable(False)
        random.seed(1)
    try:
        os.register_at_fork(after_in_child=None)
    except TypeError:
        # No hook was wanted: the words of the call are known now.
        pass
    folder = os.getcwd()
    os.chdir(_FOLDER)
    try:
        execs.rehearse()
    finally:
        os.chdir(folder)


def _take_request() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        pass_descriptor(ours, b"c", ours.fileno())
        os.close(receive_packet(theirs, 1)[1])
        send_request(ours, {"kind": "held", "seed": "0", "files": []}, (ours.fileno(), ours.fileno()))
        request, fds = receive_request(theirs)
        receive_files(theirs, request["files"], _FOLDER)
        syscalls.keep_one(fds[0], _FD, _CEILING)
        os.write(_FD, now())
        for fd in (*fds, _FD, theirs.detach()):
            os.close(fd)
