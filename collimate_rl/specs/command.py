"""Tasks that are more than a function: files, a candidate's work on them, and a command that tells what it is worth."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from collimate_rl.protocol.bounds import MAX_GROUND_TRUTH_BYTES, check_int
from collimate_rl.specs.base import RewardSpec, check_limits
from collimate_rl.specs.options import Credit, check_credit

DENIED: Final = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", ".coveragerc", "noxfile.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.egg-link"),
    *("*.pyc", "*.pyo", "*.so", "*.pyd", "*.egg", "test_*.py", "*_test.py"),
    *("Makefile", "makefile", "GNUmakefile"),
)
"""Names of files that a candidate's work can't bring, change or delete unless `allow` names them: what a test run, an
interpreter or a build reads by itself, what is no source, and tests."""
DENIED_FOLDERS: Final = (".git", "__pycache__", "site-packages", "dist-packages", ".hypothesis")
SHADOWED: Final = (
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "py"),
    *("pytest_timeout", "xdist", "pytest_cov", "coverage", "hypothesis", "unittest", "doctest", "site", "builtins"),
    *("os", "sys", "io", "re", "json", "time", "types", "typing", "functools", "collections", "contextlib", "warnings"),
    *("traceback", "inspect", "importlib", "ast", "enum", "abc", "argparse", "pathlib", "shutil", "subprocess", "xml"),
    *("string", "struct", "random", "operator", "itertools", "dataclasses", "logging", "threading", "signal", "socket"),
    *("platform", "tempfile", "textwrap", "copy", "copyreg", "codecs", "encodings", "locale", "gc", "math", "runpy"),
)
"""Modules that a file at the tree's top, or in its `src` or `lib`, would stand in for when a test run starts."""
MAX_FILES: Final = 10_000
MAX_NAMES: Final = 100_000
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Content = str | bytes
Command = str | Sequence[str]


@dataclass(frozen=True)
class CommandReward(RewardSpec):
    """Reward for a candidate's work on a tree of files, by what a command in that tree does. All or nothing by default.

    The candidate is a patch (unified diff), or a set of files; see `work_of`. It is carried into a fresh fork's tree:
    `base`, a directory of the template, copied to `root` (below the working directory, or absolute; equal to `base`:
    in place), with `files` (path to content) on top, after `setup` has run there. Then `tests` (path to content) and
    what `test_patch`, a diff on the same base, makes are written: they win. Files of the candidate that say how tests
    are run, or are tests (`DENIED`), are left out unless a pattern of `allow` names them.

    `command` (a shell's text, or an argv) runs in the tree. What it is judged by: with `fail_to_pass` and
    `pass_to_pass` the named tests, each of which has to be in the JUnit XML that the command writes to `{results}`,
    exactly once, as passed; with `{results}` in the command and no names, all tests in that file, at least `min_tests`
    of them; else exit code 0. `{python}` is the template's interpreter, `{root}` the tree. `{decoys}` are pytest files
    with tests that have to pass and tests that have to fail, by which a run that calls everything passed shows.

    `reference` is a candidate that has to get 1.0 before anybody is graded. `credit` is "all", "fraction" (the named
    tests', or the file's, passed share) or "first_failure". `case_timeout_s` is the command's time; by default all
    that is left of the total. `max_cases` takes the first so many named tests.
    """

    command: Command
    _: KW_ONLY
    files: Mapping[str, Content] = field(default_factory=dict)
    base: str | None = None
    root: str = "tree"
    setup: Command | None = None
    tests: Mapping[str, Content] = field(default_factory=dict)
    test_patch: str | None = None
    fail_to_pass: Sequence[str] = ()
    pass_to_pass: Sequence[str] = ()
    min_tests: int = 1
    allow: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    reference: str | None = None
    credit: str = "all"
    case_timeout_s: float | None = None
    max_cases: int | None = None

    def __post_init__(self) -> None:
        _check_command("command", self.command)
        if self.setup is not None:
            _check_command("setup", self.setup)
        for name in ("files", "tests"):
            _check_files(name, getattr(self, name))
        for name in ("base", "test_patch", "reference"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise ValueError(f"{name} is text, not {value!r:.100}")
        if self.base is not None and not _is_clean(self.base, absolute=True):
            raise ValueError(f"base is the absolute path of a directory of the template, not {self.base!r:.100}")
        if not _is_clean(self.root, absolute=None):
            raise ValueError(f"root is a directory's path, not {self.root!r:.100}")
        for name in ("fail_to_pass", "pass_to_pass", "allow"):
            _check_texts(name, getattr(self, name))
        _check_env(self.env)
        check_int("min_tests", self.min_tests, 1, MAX_NAMES)
        check_credit(self.credit, None, None)
        check_limits(self.case_timeout_s, self.max_cases)
        self._check_judging()
        size = len(json.dumps(self._wire(), separators=(",", ":")))
        if size > MAX_GROUND_TRUTH_BYTES:
            raise ValueError(
                f"the spec is {size:,} bytes as JSON, and {MAX_GROUND_TRUTH_BYTES:,} is the most: put what all rows "
                "share into the template, and name it as base"
            )

    def _check_judging(self) -> None:
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise ValueError(f"a test is named twice: {', '.join(twice)[:200]}")
        if self.names and not self.has_results:
            raise ValueError("named tests need a results file: let the command write JUnit XML to {results}")
        if self.names and self.min_tests != 1:
            raise ValueError("min_tests is for commands without named tests")
        if "{decoys}" in self._text() and not self.has_results:
            raise ValueError("{decoys} are found in the results file: let the command write JUnit XML to {results}")
        if not self.has_results and (self.credit != "all" or self.min_tests != 1):
            raise ValueError("an exit code is right or wrong: credit and min_tests need a results file ({results})")

    def _text(self) -> str:
        return self.command if isinstance(self.command, str) else "\0".join(self.command)

    @property
    def names(self) -> tuple[str, ...]:
        """The named tests: those that are to pass by the candidate's doing, then those that are to go on passing."""
        return (*self.fail_to_pass, *self.pass_to_pass)

    @property
    def has_results(self) -> bool:
        """Whether the command writes a results file."""
        return "{results}" in self._text()

    @property
    def has_decoys(self) -> bool:
        """Whether the command runs decoys."""
        return "{decoys}" in self._text()

    def credits(self) -> Credit:
        """What passed tests are worth."""
        return Credit(mode=self.credit)

    def build(self, candidate_path: str) -> str:
        """Not available: the tree is made anew for every candidate, so there is no one-program form."""
        raise NotImplementedError("CommandReward is graded in a tree of its own: it has no one-program form")

    def parse(self, stdout: str) -> float:
        """Not available, as `build`."""
        raise NotImplementedError("CommandReward is graded in a tree of its own: it has no one-program form")

    def to_wire(self) -> dict[str, Any]:
        return self._wire() if type(self) is CommandReward else super().to_wire()

    def _wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"type": "command", "command": _plain(self.command)}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if name in ("files", "tests"):
                value = {path: _content_to_wire(content) for path, content in value.items()}
            elif name == "setup":
                value = value if value is None else _plain(value)
            elif name == "env":
                value = dict(value)
            elif isinstance(default, list):
                value = list(value)
            if value != default:
                wire[name] = value
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> CommandReward:
        """The spec that `to_wire` wrote; ValueError when it didn't."""
        fields = {key: value for key, value in wire.items() if key not in ("type", "command")}
        for name in ("files", "tests"):
            table = fields.get(name, {})
            if not isinstance(table, Mapping):
                raise ValueError(f"{name} is an object of paths and contents")
            fields[name] = {path: _content_from_wire(name, path, content) for path, content in table.items()}
        return cls(wire["command"], **fields)

    @property
    def digest(self) -> str:
        """64 hex digits, equal for specs that make and judge the same tree."""
        return hashlib.sha256(json.dumps(self._wire(), sort_keys=True).encode()).hexdigest()


_DEFAULTS: Final[Mapping[str, Any]] = {
    "files": {},
    "base": None,
    "root": "tree",
    "setup": None,
    "tests": {},
    "test_patch": None,
    "fail_to_pass": [],
    "pass_to_pass": [],
    "min_tests": 1,
    "allow": [],
    "env": {},
    "reference": None,
    "credit": "all",
    "case_timeout_s": None,
    "max_cases": None,
}


def _plain(command: Command) -> str | list[str]:
    return command if isinstance(command, str) else list(command)


def _content_to_wire(content: Content) -> Any:
    return content if isinstance(content, str) else {"base64": base64.b64encode(content).decode()}


def _content_from_wire(name: str, path: str, content: Any) -> Content:
    if isinstance(content, str):
        return content
    try:
        return base64.b64decode(content["base64"], validate=True)
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"{name}: the content of {path!r:.100} is neither text nor {{'base64'}}") from None


def _is_text(value: object) -> bool:
    """Text that a file's name, a command or an environment can hold."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_command(name: str, command: object) -> None:
    if isinstance(command, str):
        if command.strip() and _is_text(command):
            return
    elif isinstance(command, list | tuple) and command and all(_is_text(part) for part in command) and command[0]:
        return
    raise ValueError(f"{name} is a shell's text, or a list of a program and its arguments, not {command!r:.100}")


def _is_clean(path: object, *, absolute: bool | None) -> bool:
    """Whether it is a path without detours; `absolute` None takes both kinds."""
    if not isinstance(path, str) or not _is_text(path) or not path.strip("/"):
        return False
    if absolute is not None and path.startswith("/") is not absolute:
        return False
    parts = path.strip("/").split("/")
    return len(path) <= 2000 and all(part not in ("", ".", "..") and len(part) <= 200 for part in parts)


def check_work_path(path: object) -> str:
    """A file's path below the tree; ValueError for what leads elsewhere."""
    if not _is_clean(path, absolute=False) or str(path).endswith("/"):
        raise ValueError(f"{path!r:.200} is no path of a file below the tree")
    return str(path)


def _check_files(name: str, files: object) -> None:
    if not isinstance(files, Mapping) or len(files) > MAX_FILES:
        raise ValueError(f"{name} is an object of at most {MAX_FILES:,} paths and contents, not {files!r:.100}")
    for path, content in files.items():
        try:
            check_work_path(path)
        except ValueError as fault:
            raise ValueError(f"{name}: {fault}") from None
        if not isinstance(content, bytes) and not (isinstance(content, str) and _is_encodable(content)):
            raise ValueError(f"{name}: the content of {path!r:.100} is text or bytes, not {content!r:.60}")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_texts(name: str, texts: object) -> None:
    if not isinstance(texts, list | tuple) or not all(_is_text(text) and text.strip() for text in texts):
        raise ValueError(f"{name} is a list of texts, not {texts!r:.100}")
    if len(texts) > MAX_NAMES:
        raise ValueError(f"{name} holds {len(texts):,} texts, above {MAX_NAMES:,}")


def _check_env(env: object) -> None:
    if not isinstance(env, Mapping) or not all(_is_text(v) and _ENV_NAME.fullmatch(str(k)) for k, v in env.items()):
        raise ValueError(f"env is an object of names and texts, not {env!r:.100}")
    for part in str(env.get("PATH", "/")).split(":"):
        if not part.startswith("/"):
            raise ValueError("env: PATH holds a relative place, where a candidate's files may lie")
