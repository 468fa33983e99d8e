"""`python -m collimate_rl.queue.serve`: becomes a Redis or Valkey server on a unix socket, for a Procfile.

It listens on DIRECTORY/redis.sock and nowhere else, keeps an append-only file there, and never evicts keys.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from collimate_rl.errors import RedisUnavailable
from collimate_rl.queue.server import LocalRedis


def main(argv: Sequence[str] | None = None) -> int:
    """Replaces this process by the server; returns only when that cannot be (2)."""
    parser = argparse.ArgumentParser(prog="python -m collimate_rl.queue.serve", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where socket and data lie; made if need be")
    directory: Path = parser.parse_args(argv).directory.absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # an empty logfile is standard output
        server = LocalRedis(aof=True, directory=directory, options=(("logfile", ""),))
        print(f"{server.binary} on {server.url}", flush=True)
        os.execv(server.command[0], server.command)
    except (OSError, ValueError, RedisUnavailable) as error:
        print(f"no server was started: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
