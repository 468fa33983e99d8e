"""The environment's server, as a template's entry: `coding_env.server:main`.

All that is slow happens on import, once, in the warm interpreter. What can't be forked (loops, threads, sockets) is
made in `main`, which runs in each session.
"""

from __future__ import annotations

import uvicorn
from openenv.core.env_server import create_fastapi_app

from coding_env.environment import CodeAction, CodeObservation, CodingEnvironment

PORT = 8000

app = create_fastapi_app(CodingEnvironment, CodeAction, CodeObservation)


def main() -> None:
    """Serve until the sandbox ends."""
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", lifespan="off")
