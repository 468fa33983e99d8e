"""Grading for RL post-training: isolated sandboxes, and rewards that cannot be faked.

Every name in `__all__` is public. They are imported when they are first used, so that a process that needs one part
(a daemon, a worker, a guest's assembly) does not pay for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collimate_rl.browser import connect_browser
    from collimate_rl.client import CollimateClient
    from collimate_rl.errors import (
        AmbiguousError,
        CollimateDrainingError,
        CollimateError,
        CollimateTaskError,
        DemoTierLimit,
        GatewayError,
        MalformedAnswer,
        TemplateBakeFailed,
        TransferError,
        UnreachableError,
    )
    from collimate_rl.fleetview import FleetStatus, FleetView, NodePool
    from collimate_rl.gateway import GatewayClient
    from collimate_rl.local_backend import LocalCollimateBackend
    from collimate_rl.rewards import (
        AssertReward,
        CommandReward,
        GradeResult,
        PropertyReward,
        RewardSpec,
        StdioReward,
        TestFileReward,
        UnitTestReward,
        extract_code,
        grade,
        grade_batch,
        reward_spec_from_ground_truth,
    )
    from collimate_rl.sandbox import ExecResult, Sandbox, rollout_once
    from collimate_rl.seeds import DET_SEED, fresh_seed, group_seeds, is_valid_seed, seed_from_key
    from collimate_rl.template import (
        Env,
        ForkGroup,
        Ready,
        Session,
        Template,
        TemplateHandle,
        TemplateStatus,
        open_session,
    )
    from collimate_rl.transport import SessionClient, connect
    from collimate_rl.tunnel import PortForward, open_port_forward

_HOMES: Final = {
    "browser": ("connect_browser",),
    "client": ("CollimateClient",),
    "errors": (
        "AmbiguousError",
        "CollimateDrainingError",
        "CollimateError",
        "CollimateTaskError",
        "DemoTierLimit",
        "GatewayError",
        "MalformedAnswer",
        "TemplateBakeFailed",
        "TransferError",
        "UnreachableError",
    ),
    "fleetview": ("FleetStatus", "FleetView", "NodePool"),
    "gateway": ("GatewayClient",),
    "local_backend": ("LocalCollimateBackend",),
    "rewards": (
        "AssertReward",
        "CommandReward",
        "GradeResult",
        "PropertyReward",
        "RewardSpec",
        "StdioReward",
        "TestFileReward",
        "UnitTestReward",
        "extract_code",
        "grade",
        "grade_batch",
        "reward_spec_from_ground_truth",
    ),
    "sandbox": ("ExecResult", "Sandbox", "rollout_once"),
    "seeds": ("DET_SEED", "fresh_seed", "group_seeds", "is_valid_seed", "seed_from_key"),
    "template": (
        "Env",
        "ForkGroup",
        "Ready",
        "Session",
        "Template",
        "TemplateHandle",
        "TemplateStatus",
        "open_session",
    ),
    "transport": ("SessionClient", "connect"),
    "tunnel": ("PortForward", "open_port_forward"),
}

__version__ = "0.9.0"
__all__ = [
    "DET_SEED",
    "AmbiguousError",
    "AssertReward",
    "CollimateClient",
    "CollimateDrainingError",
    "CollimateError",
    "CollimateTaskError",
    "CommandReward",
    "DemoTierLimit",
    "Env",
    "ExecResult",
    "FleetStatus",
    "FleetView",
    "ForkGroup",
    "GatewayClient",
    "GatewayError",
    "GradeResult",
    "LocalCollimateBackend",
    "MalformedAnswer",
    "NodePool",
    "PortForward",
    "PropertyReward",
    "Ready",
    "RewardSpec",
    "Sandbox",
    "Session",
    "SessionClient",
    "StdioReward",
    "Template",
    "TemplateBakeFailed",
    "TemplateHandle",
    "TemplateStatus",
    "TestFileReward",
    "TransferError",
    "UnitTestReward",
    "UnreachableError",
    "connect",
    "connect_browser",
    "extract_code",
    "fresh_seed",
    "grade",
    "grade_batch",
    "group_seeds",
    "is_valid_seed",
    "open_port_forward",
    "open_session",
    "reward_spec_from_ground_truth",
    "rollout_once",
    "seed_from_key",
]

_HOME_OF: Final = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
