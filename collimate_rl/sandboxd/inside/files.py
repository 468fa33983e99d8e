"""An exec's `files`, written inside the fork before the exec runs.

The contents never stay in this process's memory: the exec is forked from it, and a candidate that reads its own
memory must not find them there. They pass through a private mapping that is unmapped before the fork.
No component of a path is followed when it is a symbolic link, and a file is put in place by a rename, so that
whatever lies there already (a link, a pipe, a device) is replaced and never opened.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Sequence

from .channel import ChannelClosed

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = ".collimate-partial"


def receive_files(channel: socket.socket, listing: Sequence[tuple[str, int]], workdir: str) -> str | None:
    """Read every file's bytes from the channel and put them in place; the first problem as text, else None.

    All payloads are consumed whatever happens, so that the channel stays in step.
    """
    problem = None
    for path, size in listing:
        with _private_buffer(size) as buffer, memoryview(buffer) as view, view[:size] as content:
            _fill(channel, content)
            if problem is None:
                try:
                    _put(os.path.join(workdir, path), content)
                except OSError as exc:
                    problem = f"{path}: {exc.strerror or exc}"
    return problem


def _private_buffer(size: int) -> mmap.mmap:
    return mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _fill(channel: socket.socket, content: memoryview) -> None:
    taken = 0
    while taken < len(content):
        with content[taken:] as rest:
            count = channel.recv_into(rest)
        if count == 0:
            raise ChannelClosed
        taken += count


def _put(path: str, content: memoryview) -> None:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    folder = os.open("/", _DIRECTORY)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, _DIRECTORY, dir_fd=folder)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=folder)
                below = os.open(part, _DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = below
        _replace(folder, parts[-1], content)
    finally:
        os.close(folder)


def _replace(folder: int, name: str, content: memoryview) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        target = os.open(_TEMPORARY, flags, 0o644, dir_fd=folder)
    except FileExistsError:
        os.unlink(_TEMPORARY, dir_fd=folder)
        target = os.open(_TEMPORARY, flags, 0o644, dir_fd=folder)
    try:
        try:
            written = 0
            while written < len(content):
                written += os.write(target, content[written:])
        finally:
            os.close(target)
        os.rename(_TEMPORARY, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(_TEMPORARY, dir_fd=folder)
        raise
