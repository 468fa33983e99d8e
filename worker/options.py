"""The command line of `python -m worker`: which options each command takes, and how it shows them.

Every setting is an option. None has a default here, so that what wasn't given is known.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence

from worker.settings import WorkerSettings, environment_name, option_name

PROGRAM = "python -m worker"
COMMANDS = {
    "run": "run this node: its worker processes and the queue's janitor (the default)",
    "config": "print the settings in force and where each value came from",
    "janitor": "run the queue's and the sessions' janitors alone, beside plain rq workers",
    "status": "print what the queue holds, per node and per run",
    "dashboard": "serve the queue as a live web page, on this machine alone unless there is a token",
    "quarantine": "list what killed its workers; show BATCH; release BATCH, which grades it again",
}

_EVERY = tuple(item.name for item in dataclasses.fields(WorkerSettings))
_QUEUE = ("redis_url", "queue", "timing")
_SETTINGS: Mapping[str, Sequence[str]] = {
    "run": _EVERY,
    "config": _EVERY,
    "janitor": (*_QUEUE, "node", "backend", "reap_unclaimed", "min_idle", "log_format", "log_level"),
    "status": _QUEUE,
    "dashboard": (*_QUEUE, "log_format", "log_level"),
    "quarantine": _QUEUE,
}
"""The settings that a command goes by. What else the environment and the file say is read and left alone."""

_FLAGS: Mapping[str, str] = {
    "once": "one round, then stop",
    "dry_run": "print what a round would do, and do nothing",
    "json": "print JSON",
}
_VALUES: Mapping[str, tuple[str, str]] = {
    "host": ("HOST", "where it listens (127.0.0.1)"),
    "port": ("N", "its port (8600); 0 takes a free one"),
    "token": ("TOKEN", "what to show to see it [COLLIMATE_DASHBOARD_TOKEN]"),
    "token_file": ("FILE", "a file with the token"),
    "config": ("FILE", "read this file instead of ./collimate.toml [COLLIMATE_CONFIG]"),
}
_ALSO: Mapping[str, Sequence[str]] = {"redis_url": ("--redis",)}
"""Other names of options, which every command of the product takes."""
SERVING = ("host", "port", "token", "token_file")
"""The dashboard's own: how it is reached."""
_OWN: Mapping[str, Sequence[str]] = {
    "janitor": ("once", "dry_run"),
    "status": ("json",),
    "dashboard": SERVING,
    "quarantine": ("json",),
}
"""Options that are no settings, beside `config`, which every command takes."""


def options_of(command: str) -> tuple[str, ...]:
    """What `command` takes, as names of attributes: its own options first, then settings in their order."""
    return (*_OWN.get(command, ()), "config", *(name for name in _EVERY if name in _SETTINGS[command]))


def read(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command, its words and its options, wherever they stand in `argv`; what wasn't given is None (flags: False).

    `ValueError` for an option of another command, and for words where none are taken. `SystemExit` after `--help` (0),
    and for what no command takes (2).
    """
    given, left = _everything().parse_known_intermixed_args(argv)
    command = given.command
    if given.help:
        parser(command).print_help()
        raise SystemExit(0)
    if left:
        # Its value may have been taken for the command, which is then none of ours.
        parser(command if command in COMMANDS else "run").error(_unrecognized(left))
    if command not in COMMANDS:
        parser("run").error(
            f"no such command: {command!r}{_meant(command, COMMANDS)} (choose from {', '.join(COMMANDS)})"
        )
    foreign = [
        name for name, value in vars(given).items()
        if name not in ("command", "words", "help", *options_of(command)) and value not in (None, False)
    ]  # fmt: skip
    if foreign:
        takers = [other for other in COMMANDS if foreign[0] in options_of(other)]
        raise ValueError(f"{option_name(foreign[0])} goes with {_listed(takers)}, not with {command}")
    if given.words and command != "quarantine":
        raise ValueError(f"{command} takes no further words ({' '.join(given.words)}); only quarantine does")
    return given


def parser(command: str) -> argparse.ArgumentParser:
    """For what `command` takes, and no more: its `--help`."""
    first = command == "run"
    listed = "commands (each has a --help of its own):\n" + "\n".join(f"  {n:11} {t}" for n, t in COMMANDS.items())
    made = argparse.ArgumentParser(
        prog=PROGRAM if first else f"{PROGRAM} {command}",
        usage="%(prog)s [command] [options]" if first else None,
        description="The node side of collimate-rl: takes batches from the queue and grades them in sandboxes."
        if first
        else COMMANDS[command][0].upper() + COMMANDS[command][1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=listed if first else None,
        allow_abbrev=False,
    )
    if command == "quarantine":
        made.add_argument("words", nargs="*", metavar="list | show BATCH | release BATCH", help="one of these")
    _add(made, options_of(command))
    return made


def _everything() -> argparse.ArgumentParser:
    """Takes the options of all commands, so that the command is found among them."""
    made = argparse.ArgumentParser(
        prog=PROGRAM, usage=f"{PROGRAM} [command] [options]", add_help=False, allow_abbrev=False
    )
    made.add_argument("command", nargs="?", default="run", metavar="command")
    made.add_argument("words", nargs="*")
    made.add_argument("-h", "--help", action="store_true")
    _add(made, dict.fromkeys(name for command in COMMANDS for name in options_of(command)))
    return made


def _add(made: argparse.ArgumentParser, names: Sequence[str] | Mapping[str, None]) -> None:
    settings = {item.name: item for item in dataclasses.fields(WorkerSettings)}
    for name in names:
        if name in _FLAGS:
            made.add_argument(option_name(name), action="store_true", help=_FLAGS[name])
        elif name in _VALUES:
            metavar, text = _VALUES[name]
            made.add_argument(option_name(name), metavar=metavar, help=text)
        else:
            item = settings[name]
            text = f"{item.metadata['help']} [{environment_name(name)}]"
            if item.type == "bool":
                made.add_argument(option_name(name), action="store_true", default=None, help=text)
            else:
                choices = item.metadata.get("choices")
                flags = (option_name(name), *_ALSO.get(name, ()))
                made.add_argument(*flags, metavar=item.metadata["metavar"], choices=choices, help=text)


def _unrecognized(words: Sequence[str]) -> str:
    given = [word.partition("=")[0] for word in words]  # without values: one may be a URL with a password
    known = [option_name(name) for command in COMMANDS for name in options_of(command)]
    return f"unrecognized arguments: {' '.join(given)}{_meant(given[0], known)}"


def _meant(word: str, known: Iterable[str]) -> str:
    """Which of the `known` words may have been meant, in words of ours."""
    near = difflib.get_close_matches(word, sorted(set(known)), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
