"""The names that user code relies on, and that importing them needs the standard library alone."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import collimate_rl

ROOT = Path(__file__).resolve().parents[2]

NAMES = {
    *("AmbiguousError", "CollimateDrainingError", "CollimateError", "CollimateTaskError", "MalformedAnswer"),
    *("TransferError", "UnreachableError", "DemoTierLimit", "GatewayError", "TemplateBakeFailed"),
    *("CollimateClient", "GatewayClient", "SessionClient", "connect", "LocalCollimateBackend"),
    *("Env", "ForkGroup", "Ready", "Session", "Template", "TemplateHandle", "TemplateStatus", "open_session"),
    *("FleetStatus", "FleetView", "NodePool"),
    *("PortForward", "connect_browser", "open_port_forward"),
    *("ExecResult", "Sandbox", "rollout_once"),
    *("DET_SEED", "fresh_seed", "group_seeds", "is_valid_seed", "seed_from_key"),
    *("AssertReward", "CommandReward", "PropertyReward", "RewardSpec", "StdioReward", "TestFileReward"),
    "UnitTestReward",
    *("GradeResult", "extract_code", "grade", "grade_batch", "reward_spec_from_ground_truth"),
}


def test_the_public_names_are_these() -> None:
    assert set(collimate_rl.__all__) == NAMES
    assert set(dir(collimate_rl)) >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(collimate_rl, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "collimate_rl" / "__init__.py").read_text())
    guard = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (imported.name, node.module)
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for imported in node.names
    }
    assert seen == set(collimate_rl._HOME_OF.items())


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        _ = collimate_rl.nothing_of_ours


def test_the_version_is_the_distributions() -> None:
    found = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == collimate_rl.__version__


def test_importing_the_package_loads_none_of_its_parts() -> None:
    script = "import sys, collimate_rl; print([name for name in sys.modules if name.startswith('collimate_rl.')])"
    assert run_bare(script) == "[]"


def test_all_of_it_imports_with_the_standard_library_alone() -> None:
    script = (
        "import sys, collimate_rl\n"
        "for name in collimate_rl.__all__: getattr(collimate_rl, name)\n"
        "import collimate_rl.slime\n"
        "outside = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'__main__'}\n"
        "print(sorted(outside))\n"
    )
    assert run_bare(script) == "['collimate_rl']"


SIGNATURES = {
    "CollimateClient": "(base_url='http://127.0.0.1:8080', timeout=120.0, retries=3, backoff=0.15, "
    "retry_budget=30.0, unix_socket=None",
    "CollimateClient.create_session": "(self, template_id, *, egress=None, label=None)",
    "CollimateClient.session_exec": "(self, session_id, *, command=None, code=None, commands=None, files=None, "
    "timeout_seconds=30, seed=None)",
    "CollimateClient.exec_once": "(self, template_id, *, command=None, code=None, commands=None, files=None, "
    "timeout_seconds=30, seed=None, egress=None)",
    "CollimateClient.for_node_socket": "(path='/run/collimate-session/serve.sock'",
    "GatewayClient": "(api_key=None, base_url=None, *, timeout=120.0, retries=3, backoff=0.15, retry_budget=30.0",
    "GatewayClient.create_session": "(self, template_id, *, egress=None, label=None)",
    "GatewayClient.session_exec": "(self, session_id, *, command=None, code=None, commands=None, files=None, "
    "timeout_seconds=30, seed=None)",
    "GatewayClient.exec_once": "(self, template_id, *, command=None, code=None, commands=None, files=None, "
    "timeout_seconds=30, seed=None, egress=None",
    "GatewayClient.env": "(self, ref, *, width=None, name=None, ready=None, env=None, secrets=None)",
    "GatewayClient.connect_url": "(self, sandbox_id, port, *, ttl_seconds=600, protocol='tcp')",
    "TemplateHandle.wait": "(self, timeout=600, poll_interval=1, on_update=None, fail_fast=True",
    "Ready": "(cmd=None, http=None, http_timeout_s=None, ports=(), env=<factory>, network=None)",
    "Env.sandbox": "(self, label=None, egress=None, default_timeout=30, secret_refs=None)",
    "Env.wait": "(self, timeout=600",
    "FleetView": "(client, *, template_ids=None, include_public=False)",
    "FleetView.status": "(self, samples=None)",
    "Sandbox.port_forward": "(self, port, *, local_port=0, local_host='127.0.0.1', ttl_seconds=3600)",
    "open_port_forward": "(mint, remote_port, ",
    "connect_browser": "(sandbox_or_url, *, ttl=600)",
    "connect": "(base_url=None, *, api_key=None, unix_socket=None, **client_options)",
    "Sandbox": "(template, *, client=None, egress=None, default_timeout=60, keep_on_error=False, default_seed=None)",
    "Sandbox.attach": "(client, session_id",
    "Sandbox.adopt": "(client, session_id, *, template=''",
    "Sandbox.upload_bytes": "(self, path, data)",
    "Sandbox.download": "(self, path)",
    "seed_from_key": "(key, salt='')",
    "group_seeds": "(n, mode='crn', base_seed=None)",
    "reward_spec_from_ground_truth": "(gt, entry='solve')",
    "extract_code": "(completion, entry='solve')",
    "grade": "(client, template_id, candidate, spec, *, seed=None, timeout_seconds=30, session_id=None",
    "grade_batch": "(client, template_id, candidates, spec, *, seeds=None, timeout_seconds=30, concurrency=24, "
    "on_infra_error='raise'",
    "AssertReward": "(test, *, entry=None, prompt='', setup='', reference=None, per_assert=False, case_timeout_s=None, "
    "max_cases=None",
    "TestFileReward": "(test, *, entry=None, prompt='', setup='', reference=None, case_timeout_s=None, max_cases=None, "
    "module='solution', integrity='any'",
    "StdioReward": "(cases, *, compare='lines', tolerance=None",
    "UnitTestReward": "(tests, entry='solve'",
    "PropertyReward": "(reference, generator, k=16, entry='solve'",
    "GradeResult": "(reward, seed=None, seed_ack=None, exit_code=0, fork_time_ms=0.0, exec_time_ms=0.0, raw=<factory>, "
    "infra_error=False, outcome=None, error_code=None",
    "ExecResult": "(stdout, stderr, exit_code, fork_time_ms=0.0, exec_time_ms=0.0, total_time_ms=0.0, seed=None, "
    "seed_ack=None, raw=<factory>)",
    "TemplateStatus": "(id, name, image, phase, declared, warm, frozen, per_node, converge_state, bake_mode, error, "
    "build_fails",
    "FleetStatus": "(templates, nodes, missing, declared, warm, frozen, warm_hit=None, raw=<factory>)",
    "NodePool": "(node, warm, frozen, templates)",
    "LocalCollimateBackend": "(templates=None, host='127.0.0.1', port=0, endpoints_fn=None, drop_session_id=False",
    "CollimateClient.delete_session": "(self, session_id)",
    "GatewayClient.create_template": "(self, name, image, *, ready=None, width=1, cold_fraction=None, expected_width=",
    "GatewayClient.create_sandbox": "(self, template, *, label=None, labels=None, egress=None, secret_refs=None)",
    "Sandbox.connect_url": "(self, port, *, ttl_seconds=600",
    "CollimateError": "(message, status=None, error_code=None)",
    "CollimateTaskError": "(exit_code, output)",
    "GatewayError": "(message, status=None, code=None)",
    "rollout_once": "(template, command=None, *",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_stay(name: str) -> None:
    found: object = collimate_rl
    for part in name.split("."):
        found = getattr(found, part)
    signature = inspect.signature(found)  # type: ignore[arg-type]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    shown = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    assert shown.startswith(SIGNATURES[name]), shown


def run_bare(script: str) -> str:
    """What a script prints in an interpreter that knows this tree and no installed package."""
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
