"""What an agent left in its session, as a candidate for a `CommandReward`: never graded there, only carried away."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any, Final

from collimate_rl.errors import GuestFileError, TransferError
from collimate_rl.sandbox import Sandbox
from collimate_rl.specs.command import CommandReward
from collimate_rl.transport import SessionClient

MAX_WORK_BYTES: Final = 700 << 10
"""Of contents: as base64 in JSON they are a candidate that a batch takes."""

_LIST: Final = """\
import base64, hashlib, json, os, sys
root, base, known, most, mark = json.loads({job!r})
def below(top):
    found = {{}}
    for folder, folders, names in os.walk(top):
        folders[:] = [n for n in folders if n not in (".git", "__pycache__", ".pytest_cache", "node_modules")]
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                found[os.path.relpath(path, top)] = path
    return found
def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
if not os.path.isdir(root):
    sys.exit("there is no directory " + root)
mine = below(root)
if base is not None and os.path.realpath(base) != os.path.realpath(root):
    for name, path in below(base).items():
        known.setdefault(name, "" if name not in mine else digest(path))
files, size = {{}}, 0
for name, path in sorted(mine.items()):
    if known.get(name) is not None and known[name] == digest(path):
        continue
    size += os.path.getsize(path)
    if size > most:
        sys.exit("what changed below %s is more than %d bytes" % (root, most))
    with open(path, "rb") as file:
        files[name] = base64.b64encode(file.read()).decode()
gone = sorted(name for name in known if name not in mine)
print("\\n%s %s\\n" % (mark, json.dumps([files, gone])))
"""


def work_from_session(
    client: SessionClient,
    session_id: str,
    spec: CommandReward,
    *,
    root: str | None = None,
    max_bytes: int = MAX_WORK_BYTES,
) -> str:
    """The files below `root` (the spec's own by default) that differ from the spec's base, as a candidate's text.

    Regular files only, at most `max_bytes` of contents (GuestFileError above that, and where there is no such
    directory); deleted ones are named. What the session tells is the agent's word, as any completion is. The session is
    left alive. A spec whose tree is in place (`base` is `root`) has nothing to compare with: use a patch (`git diff`).
    """
    place = spec.root if root is None else root
    if spec.base is not None and spec.base.rstrip("/") == place.rstrip("/"):
        raise ValueError(f"{place} is base and tree in one, so that no change shows: run git diff there")
    known = {path: _digest(content) for path, content in spec.files.items()}
    mark = secrets.token_hex(16)
    job = json.dumps([place, spec.base, known, max_bytes, mark])
    sandbox = Sandbox.adopt(client, session_id)
    result = sandbox.exec(code=_LIST.format(job=job), timeout_seconds=60)
    if result.exit_code != 0:
        raise GuestFileError(f"the work can't be had: {result.stdout.strip()[-500:]}", result.exit_code, result.stdout)
    found = [line for line in result.stdout.split("\n") if line.startswith(mark + " ")]
    try:
        files, gone = json.loads(found[-1][len(mark) + 1 :])
        work: dict[str, Any] = {
            "files": {path: {"base64": text} for path, text in files.items()},
            "deleted": list(gone),
        }
    except (ValueError, IndexError, TypeError, AttributeError) as fault:
        raise TransferError("the session's answer did not arrive whole") from fault
    return json.dumps(work)


def _digest(content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()
