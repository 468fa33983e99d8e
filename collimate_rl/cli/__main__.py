"""`python -m collimate_rl.cli` is the console script `collimate`."""

from __future__ import annotations

from collimate_rl.cli import main

main()
