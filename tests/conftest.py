"""Fixtures live by the part they start: see tests/fixtures/."""

from __future__ import annotations

pytest_plugins = (
    "tests.fixtures.run_setup",
    "tests.fixtures.authority",
    "tests.fixtures.local_gateways",
    "tests.fixtures.plain_executor",
    "tests.fixtures.redis_servers",
    "tests.fixtures.sandbox_daemon",
    "tests.fixtures.skips",
    "tests.fixtures.openenv_venvs",
    "tests.fixtures.worker_nodes",
    "tests.fixtures.dashboards",
    "tests.fixtures.own_daemon",
    "tests.fixtures.worker_batches",
    "tests.fixtures.recovery",
    "tests.fixtures.crashes",
    "tests.fixtures.workers",
    "tests.fixtures.trainers",
    "tests.fixtures.transports",
)
