"""What specs share whose tests are code: the code itself, and how completions become programs."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, ClassVar, Final

from collimate_rl.guest.prompt import Prompt, read_prompt
from collimate_rl.specs.base import RewardSpec, check_entry, check_limits, last_number
from collimate_rl.specs.options import check_python, wire_options

INTEGRITIES: Final = ("any", "split")
MODULE: Final = "solution"
"""The name under which a candidate's module is there for whoever imports it."""


class TestCodeReward(RewardSpec):
    """The base of `AssertReward` and `TestFileReward`: Python that calls the candidate.

    `setup` runs before the test. `prompt` is what the candidate completes: its imports and its helpers with a full body
    are the test's too, and stand in front of every candidate. `reference`, a completion like any other, has to pass
    before anybody is graded. `module` is the name under which the test imports the candidate.

    The test runs in a sandbox of its own, on the plain values that the candidate's calls gave. What needs the
    candidate's live objects runs beside it instead, with integrity "shared"; with `integrity="split"` it is a
    `ValueError` when grading starts.
    """

    __test__ = False

    test: str
    entry: str | None
    prompt: str
    setup: str
    reference: str | None
    case_timeout_s: float | None
    max_cases: int | None
    module: str
    integrity: str

    is_file: ClassVar[bool] = False
    digest_fields: ClassVar[tuple[str, ...]] = ()
    later_fields: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in ("test", "prompt", "setup"):
            source: object = getattr(self, name)
            if not isinstance(source, str):
                raise ValueError(f"{name} is text, not {type(source).__name__}")
        reference: object = self.reference
        if reference is not None and not isinstance(reference, str):
            raise ValueError(f"reference is text, not {type(reference).__name__}")
        if not self.test.strip():
            raise ValueError("test is empty: every candidate would pass")
        check_python("test", self.test)
        check_python("setup", self.setup)
        if self.entry is not None and "." in check_entry(self.entry):
            raise ValueError(f"entry is a function's name, not {self.entry!r}")
        if self.integrity not in INTEGRITIES:
            raise ValueError(f"integrity is one of {', '.join(INTEGRITIES)}, not {self.integrity!r}")
        module: object = self.module
        if not isinstance(module, str) or not module.isidentifier():
            raise ValueError(f"module is a module's name, not {self.module!r:.100}")
        check_limits(self.case_timeout_s, self.max_cases)

    def program(self, completion: str) -> str:
        """The candidate's whole module: the completion behind the prompt, or, where it defines the entry itself, behind
        the prompt's imports and helpers."""
        prompt = read_prompt(self.prompt, self.entry)
        shape = _Completion(completion, self.entry)
        if shape.whole:
            return _in_front(prompt, completion)
        opens = rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(self.entry or '')}\b"
        if not prompt.stubs and not re.search(opens, self.prompt, re.MULTILINE):
            return completion
        return self.prompt.rstrip("\n") + "\n" + shape.body

    def parse(self, stdout: str) -> float:
        return last_number(stdout)

    @property
    def digest(self) -> str:
        """64 hex digits, equal for specs that plan and judge alike."""
        content: list[Any] = [getattr(self, name) for name in self.digest_fields]
        content += [[name, value] for name, value in wire_options(self, (), self.later_fields).items()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()

    @property
    def random_seed(self) -> int:
        """What `random` is seeded with before the test runs, in every judge."""
        return int(self.digest[:16], 16)


class _Completion:
    """What a completion is, told from its text alone: a candidate's code is never parsed in this process.

    `whole` when it defines the entry itself (or can't be a body); else `body` is it as the body of the prompt's last
    function, with the indentation that its first line lost when the completion was stripped.
    """

    def __init__(self, completion: str, entry: str | None) -> None:
        lines = [line for line in completion.splitlines() if line.strip()]
        self.body = completion
        if not lines or entry is None:
            self.whole = entry is None
            return
        name = re.escape(entry)
        if lines[0][0] in " \t":
            self.whole = False
            return
        defines = rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{name}\b|^class[ \t]+{name}\b|^{name}[ \t]*[:=]"
        starts = r"(?:def|class|import|from|async)\b|@|if __name__|#"
        widths = [len(line) - len(line.lstrip()) for line in lines[1:]]
        # What follows a header is its block; where the rest goes on less deep, yet indented, so did the header.
        above_rest = bool(widths) and 0 < min(widths) < widths[0]
        goes_on = lines[0].rstrip().endswith(_GOES_ON)
        lost_first = bool(widths) and widths[0] > 0 and (above_rest or not goes_on)
        self.whole = bool(re.search(defines, completion, re.MULTILINE))
        self.whole = self.whole or (not lost_first and bool(re.match(starts, lines[0])))
        if lost_first or len(lines) == 1:
            self.body = "    " + completion.lstrip()
        else:
            self.body = "".join("    " + line for line in completion.splitlines(keepends=True))


_GOES_ON = (":", ",", "(", "[", "{", "\\")
"""How a line ends after which an indented one may follow in a module."""


def _in_front(prompt: Prompt, completion: str) -> str:
    """The prompt's imports and helpers before the completion; its `from __future__` lines stay first."""
    if not prompt.preamble.strip():
        return completion
    future = [" ".join(found[1].split()).strip("(), ") for found in _FUTURE.finditer(completion)]
    if not future:
        return prompt.preamble.rstrip("\n") + "\n\n\n" + completion
    rest = _FUTURE.sub("", completion)
    return f"from __future__ import {', '.join(future)}\n{prompt.preamble.rstrip()}\n\n\n{rest}"


_FUTURE = re.compile(
    r"^from[ \t]+__future__[ \t]+import\b([ \t]*\([^()]{1,500}\)|[^\n#;\\]{1,500})(?:;[ \t]*)?", re.MULTILINE
)
