"""OpenEnv's own client over warm forks: a fake policy writes code, the environments run it, and this process judges.

    pip install 'collimate-rl[local,openenv]'
    python examples/openenv/run.py --width 24

Starts a sandbox daemon of its own in this process, with the environment of `coding_env/` as a template; needs no GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

try:
    from openenv.core.generic_client import GenericEnvClient
except ModuleNotFoundError:
    sys.exit("this example needs OpenEnv: pip install 'collimate-rl[local,openenv]'")

from collimate_rl import CollimateClient
from collimate_rl.local_backend import LocalCollimateBackend, Template
from collimate_rl.openenv import CollimateProvider

HERE = Path(__file__).resolve().parent
IMAGE = "registry.example/envs/coding-env:v1"
TEMPLATE = Template(
    interpreter=sys.executable,
    entry="coding_env.server:main",
    expose_ports=(8000,),
    data=(("/srv/openenv", str(HERE)),),
    env=(("PYTHONPATH", "/srv/openenv"),),
)
POLICY = (
    "def count_vowels(text):\n    return sum(c in 'aeiouAEIOU' for c in text)\n",
    "def count_vowels(text):\n    return len(text)\n",
    "def count_vowels(text):\n    return sum(c in 'aeiou' for c in text)\n",
)
"""What the fake policy writes: right, wrong, and right for lower case."""
CASES = {"banana": 3, "rhythm": 0, "OUNCE": 3, "ICE": 2}
"""What the candidates are asked, and the answers, which never enter a sandbox."""


async def rollout(client: CollimateClient, solution: str) -> float:
    """One episode in a sandbox of its own: the share of right answers."""
    env = await GenericEnvClient.from_docker_image(IMAGE, provider=CollimateProvider(client=client))
    try:
        await env.reset()
        await env.step({"code": solution})
        right = 0
        for text, expected in CASES.items():
            result = await env.step({"code": f"print(count_vowels({text!r}))"})
            right += result.observation["stdout"].strip() == str(expected)
        return right / len(CASES)
    finally:
        await env.close()


def main() -> None:
    """Roll out at once as many episodes as asked for, and tell their rewards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=24, help="environments at once (default: 24)")
    width = parser.parse_args().width
    with LocalCollimateBackend({"coding-env": TEMPLATE}, isolation="namespaces") as backend:
        client = CollimateClient(backend.base_url)
        # OpenEnv's client starts its provider on the calling thread and blocks it, so each rollout has its own.
        with ThreadPoolExecutor(width) as threads:
            rewards = threads.map(
                lambda number: asyncio.run(rollout(client, POLICY[number % len(POLICY)])), range(width)
            )
            print("rewards:", *rewards)
        print("sessions left:", len(client.list_sessions()))


if __name__ == "__main__":
    main()
