"""What pyproject.toml says about the tree is so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.fixtures.fences import ROOT

TOPS = ("collimate_rl", "producer", "worker")
OTHER_FILES = (
    r"collimate_rl/(data/\w+\.jsonl|queue/scripts/\w+\.lua)|worker/dashboard/(templates/\w+\.html|static/[\w.]+)"
)


def packages_listed() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^packages = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return re.findall(r'"([\w.]+)"', found[1])


def packages_there() -> list[str]:
    inits: list[Path] = [init for top in TOPS for init in (ROOT / top).rglob("__init__.py")]
    return sorted(".".join(init.parent.relative_to(ROOT).parts) for init in inits)


def test_packages_in_pyproject_match_the_tree() -> None:
    assert sorted(packages_listed()) == packages_there()


def test_every_module_lies_in_a_listed_package() -> None:
    listed = set(packages_listed())
    for top in TOPS:
        for module in (ROOT / top).rglob("*.py"):
            assert ".".join(module.parent.relative_to(ROOT).parts) in listed, module


def test_other_files_of_the_packages_are_package_data() -> None:
    patterns = {"collimate_rl/py.typed", "producer/py.typed", "worker/py.typed"}
    for top in TOPS:
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__":
                name = path.relative_to(ROOT).as_posix()
                known = name in patterns or re.fullmatch(OTHER_FILES, name)
                assert known, f"{name} is in no package-data pattern of pyproject.toml"


def test_test_modules_have_names_of_their_own() -> None:
    """They are imported by name alone: of two that share one, the second is not collected."""
    names = [module.name for module in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
