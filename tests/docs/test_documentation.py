"""The documentation is whole: snippets compile, links lead somewhere, and nothing that exists goes unmentioned."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess

import pytest

import collimate_rl
from collimate_rl import errors
from collimate_rl.errors import MISCONFIGURED, CollimateError
from collimate_rl.protocol import OUTCOMES, OWN_INFRA_CODES
from collimate_rl.protocol.flags import FLAGS
from tests.fixtures.fences import ROOT, Fence, documents, fences

SOURCES = [path for top in ("collimate_rl", "producer", "worker") for path in sorted((ROOT / top).rglob("*.py"))]
PUBLIC_OBJECTS = (
    collimate_rl.Env,
    collimate_rl.FleetStatus,
    collimate_rl.FleetView,
    collimate_rl.ForkGroup,
    collimate_rl.NodePool,
    collimate_rl.PortForward,
    collimate_rl.Session,
    collimate_rl.Template,
    collimate_rl.TemplateHandle,
    collimate_rl.TemplateStatus,
)
SHARED = {name for name in dir(collimate_rl.Sandbox) if name not in ("connect_url", "cdp_url", "port_forward")} | {
    "from_wire",
    "timeout",
    "id",
}


def text_of(*parts: str) -> str:
    return (ROOT.joinpath(*parts)).read_text(encoding="utf-8")


def everything() -> str:
    """What people wrote: the pages that are made of the sources prove nothing."""
    pages = [path for path in documents() if path.parent.name != "api"]
    return "\n".join(path.read_text(encoding="utf-8") for path in pages)


@pytest.mark.parametrize("fence", [f for f in fences() if f.language == "python"], ids=str)
def test_python_snippets_compile_and_say_what_they_need(fence: Fence) -> None:
    compile(fence.code, str(fence), "exec")
    known = {"tour", "daemon", "gateway", "queue", "unserved", "openenv"}
    assert fence.run in known, "a test runs each: put <!-- run: … --> above it"


def test_tutorials_use_the_front_doors_alone() -> None:
    """What a newcomer types comes from the packages themselves and from commands, not from modules within."""
    tutorials = [fence for fence in fences() if fence.path.parent.name == "tutorial"]
    imports = [line for fence in tutorials for line in re.findall(r"^ *(?:from|import) .*", fence.code, re.MULTILINE)]
    ours = [line for line in imports if re.match(r" *(?:from|import) (?:collimate_rl|producer|worker)\b", line)]
    assert len(ours) > 10
    within = [line for line in ours if not re.fullmatch(r"from (?:collimate_rl|producer) import [\w, ]+", line)]
    assert not within, within


@pytest.mark.parametrize("fence", [f for f in fences() if f.language == "sh"], ids=str)
def test_shell_snippets_are_shell(fence: Fence) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n"], input=fence.code, text=True, check=True, timeout=30)


def test_every_setting_in_the_environment_is_documented() -> None:
    text = everything()
    named = {
        name
        for path in [*SOURCES, ROOT / "Procfile"]
        for name in re.findall(r"COLLIMATE_[A-Z][A-Z_]+[A-Z]", path.read_text())
    }
    from worker.settings import WorkerSettings, environment_name

    named |= {environment_name(name) for name in WorkerSettings.__dataclass_fields__}
    missing = sorted(name for name in named if not re.search(rf"{name}\b", text))
    assert not missing, f"docs/reference/settings.md lacks {', '.join(missing)}"


def test_every_error_outcome_and_code_is_documented() -> None:
    text = text_of("docs", "reference", "errors.md")
    classes = {name for name, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, CollimateError)}
    names = classes | set(FLAGS) | set(OUTCOMES) | set(MISCONFIGURED) | set(OWN_INFRA_CODES)
    missing = sorted(name for name in names if f"`{name}`" not in text)
    assert not missing, f"docs/reference/errors.md lacks {', '.join(missing)}"


def test_every_public_name_is_documented() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
    missing = [name for name in collimate_rl.__all__ if not re.search(rf"`(?:\w+\.)?{name}\b", text)]
    assert not missing, f"docs/reference lacks {', '.join(missing)}"


INNER = {"AssertReward.digest", "AssertReward.random_seed"}
"""Members that only the product's own code asks for."""


def test_every_member_of_a_public_class_is_documented() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
    spans = re.findall(r"`[^`]+`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    said = set(re.findall(r"\w+", " ".join(spans)))
    members = {
        f"{name}.{member}"
        for name in collimate_rl.__all__
        if inspect.isclass(cls := getattr(collimate_rl, name))
        for base in cls.__mro__
        if base.__module__.startswith("collimate_rl.")
        for member in {*vars(base), *getattr(base, "__dataclass_fields__", ())}
        if not member.startswith("_")
    }
    missing = sorted(member for member in members - INNER if member.partition(".")[2] not in said)
    assert len(members) > 200
    assert not missing, f"docs/reference lacks {', '.join(missing)}"


def test_every_method_of_the_gateway_is_documented() -> None:
    text = text_of("docs", "reference", "gateway.md")
    classes = (*PUBLIC_OBJECTS, collimate_rl.GatewayClient)
    methods = {name for cls in classes for name in dir(cls) if not name.startswith("_")} - SHARED
    missing = sorted(name for name in methods if not re.search(rf"\b{name}\b", text))
    assert not missing, f"docs/reference/gateway.md lacks {', '.join(missing)}"


def test_nothing_names_this_workplace() -> None:
    for path in [*documents(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "Procfile", ROOT / "Makefile"]:
        assert not re.search(r"/work/|/root/", path.read_text()), path
