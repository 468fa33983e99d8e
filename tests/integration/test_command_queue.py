"""Repository tasks over the queue: large specs go in by upload, every candidate has a fresh fork, no session stays."""

from __future__ import annotations

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import ResultStatus
from producer import Producer
from tests.fixtures.command_tasks import ATTACKS, FILES, RIGHT, WRONG, task
from tests.fixtures.recovery import all_sessions
from tests.fixtures.worker_nodes import Node

QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def test_a_repository_task_is_graded_over_the_queue(shared_server: str, shared_node: Node, daemon_socket: str) -> None:
    spec = task(files={**FILES, "data.bin": bytes(range(256)) * 1200}, env=QUICK, reference=RIGHT)
    group = [RIGHT, WRONG, ATTACKS["results forged, then exit 0"], "I can't."]
    client = CollimateClient(unix_socket=daemon_socket)
    before = all_sessions(client)
    for recovery in ("auto", "attach"):
        with Producer(shared_server, run=f"r-{recovery}") as producer:
            handle = producer.submit(
                template="py", candidates=group, spec=spec, timeout_seconds=60, id="repo", recovery=recovery
            )
            result = handle.result(timeout=240)
        assert result.status is ResultStatus.GRADED, [v.detail for v in result.results]
        assert [v.reward for v in result.results] == [1.0, 0.0, 0.0, 0.0]
        assert [v.outcome for v in result.results] == ["passed", "wrong_answer", "tampered", "no_code"]
        assert {v.integrity for v in result.results} == {"shared"}
        assert [v.cases_total for v in result.results] == [3, 3, 3, 0]
    assert all_sessions(client) - before == set()
