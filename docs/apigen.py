"""Writes docs/reference/api/*.md from the docstrings and signatures of what is public: `make docs`.

It reads sources and imports nothing, so that no extra has to be installed, and the pages are the same under every
Python. tests/docs/test_api_reference.py fails where a page is not what this writes.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from docs.apisource import Item, Source
from docs.apitext import page

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference" / "api"

PAGES: dict[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    "grading": (
        "Grading",
        "Specs, what grades by them, and what goes in and comes out. How to use it: [rewards](../rewards.md).",
        (
            (
                "collimate_rl",
                "grade grade_batch GradeResult RewardSpec UnitTestReward StdioReward PropertyReward AssertReward "
                "TestFileReward CommandReward extract_code reward_spec_from_ground_truth DET_SEED fresh_seed "
                "group_seeds is_valid_seed seed_from_key",
            ),
            ("collimate_rl.formats", "candidate_of"),
            ("collimate_rl.specs", "spec_from_wire"),
            ("collimate_rl.grading.grader", "Grader"),
            ("collimate_rl.testing", "FakeGrader"),
        ),
    ),
    "clients": (
        "Clients and sandboxes",
        "Daemons, gateways, sessions, templates and fleets. How to use it: [the SDK](../sdk.md), "
        "[the gateway](../gateway.md).",
        (
            (
                "collimate_rl",
                "connect SessionClient CollimateClient GatewayClient Sandbox ExecResult rollout_once open_session "
                "Session Env ForkGroup Template TemplateHandle TemplateStatus Ready FleetView FleetStatus NodePool "
                "PortForward open_port_forward connect_browser",
            ),
            ("collimate_rl.local_backend", "LocalCollimateBackend DaemonConfig Limits"),
            ("collimate_rl.local_gateway", "LocalGateway GatewayConfig Key make_key parse_key"),
        ),
    ),
    "queue": (
        "The queue",
        "The trainer's side, and what answers are. How to use it: [the queue](../queue.md).",
        (
            ("producer", "Producer BatchHandle as_completed"),
            (
                "collimate_rl.protocol",
                "GradeBatch BatchResult Verdict CaseReport BatchStatus ResultStatus Timing batch_key content_hash "
                "resubmission_id",
            ),
            ("collimate_rl.protocol.manifest", "Manifest manifest_of"),
            ("collimate_rl.protocol.timeline", "Timeline timeline_of"),
            ("collimate_rl.queue.numbers", "read_numbers Numbers"),
        ),
    ),
    "adapters": (
        "Adapters",
        "What trainers call. The modules of `producer` are the same over the queue. How to use it: "
        "[the adapters](../adapters.md).",
        (
            ("collimate_rl.slime", "reward_func group_reward_func drop_infra_groups FilterOutput"),
            ("collimate_rl.skyrl", "CollimateCodeEnv register"),
            ("collimate_rl.trl", "reward_func async_reward_func make_reward_func"),
            ("collimate_rl.verl", "compute_score"),
            ("collimate_rl.openenv", "CollimateProvider image_to_template"),
            ("producer.slime", "reward_func group_reward_func"),
            ("producer.skyrl", "CollimateCodeEnv register"),
            ("producer.trl", "reward_func async_reward_func make_reward_func"),
            ("producer.verl", "compute_score"),
            ("producer.wiring", "queued_grader close_graders"),
            ("collimate_rl.hooks.policy", "hook_counts HookCounts"),
        ),
    ),
    "errors": (
        "Errors",
        "Every class, with what it says. Which code means what: [errors, outcomes and codes](../errors.md).",
        (("collimate_rl.errors", "*"),),
    ),
}
"""Page: its title, what it is about, and modules with their public names (`*`: every public class there)."""


@cache
def items(source: Source, name: str) -> list[tuple[str, list[Item]]]:
    """The items of a page, by the module that people import them from."""
    found = []
    for module, names in PAGES[name][2]:
        wanted = source.classes(module) if names == "*" else names.split()
        found.append((module, [source.item(module, one) for one in wanted]))
    return found


def pages(source: Source) -> dict[str, str]:
    """File name to text."""
    homes = {item.home: name for name in PAGES for _, found in items(source, name) for item in found}
    made = {
        f"{name}.md": page(title, about, items(source, name), homes, name) for name, (title, about, _) in PAGES.items()
    }
    lines = [f"- [{title}]({name}.md): {_summary(source, name)}" for name, (title, _, _) in PAGES.items()]
    made["index.md"] = (
        "# The API\n\nEvery public name with its signature, from the sources (`make docs` writes these pages). "
        "The [other reference pages](../../index.md) say how things are used together.\n\n" + "\n".join(lines) + "\n"
    )
    return made


def _summary(source: Source, name: str) -> str:
    names = dict.fromkeys(item.name for _, found in items(source, name) for item in found)
    return ", ".join(f"`{one}`" for one in names)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    made = pages(Source(ROOT))
    for path in FOLDER.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
