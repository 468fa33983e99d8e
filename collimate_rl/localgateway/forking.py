"""Forking a live sandbox: a fresh fork of its template, with the parent's files.

A process tree of namespaces can't be cloned, so none of the parent's processes and nothing of its memory comes along,
and the answer says so (`fork_kind: "files"`). What comes along is the working directory and, where sandboxes are
isolated (else it is the machine's own), /tmp. Files that are written while they are copied may come half.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from collimate_rl._transfer import MAX_DOWNLOAD_BYTES, download, upload
from collimate_rl.errors import CollimateError, TransferError
from collimate_rl.localgateway.keys import Key
from collimate_rl.localgateway.nodes import Node
from collimate_rl.localgateway.refusals import Refusal, bad_request, number_field
from collimate_rl.localgateway.sandboxes import GatewaySandbox, Sandboxes

FORK_KIND: Final = "files"
_STEP_S = 60
_MOUNTED = r"sed -n 's#^\([^ ]* \)\{4\}/\(tmp/[^ ]*\|box/[^ ]*\) .*#\2#p' /proc/self/mountinfo"
"""Names what is mounted below /tmp and the box: an interpreter that lies there is shown, and no file of the session."""
_TAR_FAILED = 3


def parse_fork(key: Key, body: dict[str, Any]) -> tuple[int, list[str | None]]:
    """(how many children, a label for each). Above the tier's fan-out it is refused, in the tier's words."""
    count = number_field(body, "count", 1, 1 << 20, 1)
    if count > key.tier.fan_out:
        code = "quota_exceeded" if key.tier.pro else "demo_tier_limit"
        raise Refusal(403, code, f"The {key.tier.name} tier forks {key.tier.fan_out} children per call, not {count}.")
    labels = body.get("labels")
    if labels is None:
        return count, [None] * count
    if not isinstance(labels, list) or len(labels) != count:
        raise bad_request("labels must be a list with one label for each child")
    if not all(label is None or (isinstance(label, str) and len(label) <= 256) for label in labels):
        raise bad_request("each of labels must be a string of at most 256 characters")
    return count, labels


def fork(sandboxes: Sandboxes, key: Key, parent: GatewaySandbox, labels: list[str | None]) -> list[GatewaySandbox]:
    """The children, all or none. Refused while the parent is suspended, and where its files are too many."""
    with sandboxes.places(key, len(labels)) as places, sandboxes.in_use(parent):
        isolated = parent.node.health().get("isolation") != "none"
        archive = _pack(parent.node, parent.session_id, with_tmp=isolated)
        children: list[GatewaySandbox] = []
        try:
            for label in labels:
                created = parent.node.create(parent.template.node_template, label)
                kept = {} if label is None else {"label": label}
                children.append(sandboxes.enter(places, parent.template, parent.node, created, kept))
                _unpack(parent.node, created["session_id"], archive, with_tmp=isolated)
        except BaseException:
            for child in children:
                sandboxes.delete(child)
            raise
        return children


def _pack(node: Node, session_id: str, *, with_tmp: bool) -> bytes:
    place = _archive_place(with_tmp=with_tmp)
    # --ignore-failed-read: a file that its owner closed to itself doesn't come along, as nothing may read it.
    # Exit code 1 is a file that changed meanwhile.
    pack = f"{_MOUNTED} | tar --no-wildcards --anchored -X - --ignore-failed-read -czf {place} {_what(with_tmp)}"
    script = f"{pack}; s=$?; [ $s -le 1 ] || exit {_TAR_FAILED}"
    shell = _shell(node, session_id)
    try:
        exit_code, output = shell(script)
        if exit_code != 0:
            raise Refusal(
                507, "fork_failed", f"the parent's files could not be packed (is its memory full?): {output[-300:]}"
            )
        return download(shell, place)
    except TransferError as exc:
        raise Refusal(
            413, "fork_too_large", f"the parent's files come to more than {MAX_DOWNLOAD_BYTES} bytes packed: {exc}"
        ) from exc
    finally:
        _remove(shell, place)


def _unpack(node: Node, session_id: str, archive: bytes, *, with_tmp: bool) -> None:
    place = _archive_place(with_tmp=with_tmp)
    shell = _shell(node, session_id)
    upload(shell, place, archive)
    exit_code, output = shell(f"tar --no-overwrite-dir -xpzf {place} {_where(with_tmp)}")
    if exit_code != 0:
        raise Refusal(507, "fork_failed", f"the parent's files could not be unpacked: {output[-300:]}")
    _remove(shell, place)


def _archive_place(*, with_tmp: bool) -> str:
    """Beside what is packed, in memory of its own where there is some."""
    name = f".collimate-fork-{secrets.token_hex(8)}.tgz"
    return f"/dev/shm/{name}" if with_tmp else f"../{name}"


def _what(with_tmp: bool) -> str:
    return "-C / box tmp" if with_tmp else "-C . ."


def _where(with_tmp: bool) -> str:
    return "-C /" if with_tmp else "-C ."


def _shell(node: Node, session_id: str) -> Callable[[str], tuple[int, str]]:
    def run(command: str) -> tuple[int, str]:
        answer = node.exec(session_id, {"command": command, "timeout_seconds": _STEP_S})
        return answer["exit_code"], answer["stdout"]

    return run


def _remove(shell: Callable[[str], tuple[int, str]], place: str) -> None:
    try:
        shell(f"rm -f {place}")
    except CollimateError:
        # The sandbox is gone, and the file with it.
        pass
