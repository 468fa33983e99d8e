"""The command line `collimate`. This module needs the standard library alone, so that it can say what is missing."""

from __future__ import annotations

import importlib.util
import io
import sys

_NEEDED = {"click": "cli", "rich": "cli"}
"""Modules that every command needs, and the extra that brings them."""


def main() -> None:
    """The console script's entry: runs the command line, or says which extra to install (exit 2)."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        extra = _NEEDED[missing[0]]
        print(
            f"collimate: the command line needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed here. Install the extra: pip install 'collimate-rl[{extra}]' "
            "(for `collimate demo`: 'collimate-rl[demo]').",
            file=sys.stderr,
        )
        raise SystemExit(2)
    from collimate_rl._output import printing
    from collimate_rl._variables import warn_once
    from collimate_rl.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        # Names and messages come from files and servers, and may hold what the terminal's encoding cannot say.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warn_once(lambda told: print(f"collimate: {told}", file=sys.stderr))
    with printing("collimate"):
        app()
