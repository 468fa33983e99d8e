"""Nothing is missing from the documents, and they name nothing that isn't there: pages, anchors, commands, extras."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import worker.options
from collimate_rl.cli.app import COMMANDS as SUBCOMMANDS
from collimate_rl.cli.app import app
from producer.__main__ import parser as producer_parser
from tests.fixtures.fences import ROOT, documents

PAGES = [*documents(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
INDEX = ROOT / "docs" / "index.md"
CLI = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", CLI, re.MULTILINE | re.DOTALL))
PROGRAMS = ("collimate_rl.local_backend", "collimate_rl.local_gateway", "collimate_rl.queue.serve")
COMMANDS = {
    **{f"collimate {name}": ["collimate_rl.cli", name] for name in SUBCOMMANDS},
    **{f"python -m {name}": [name] for name in PROGRAMS},
    "python -m producer submit": ["producer", "submit"],
    "python -m worker": ["worker"],
    **{f"python -m worker {name}": ["worker", name] for name in ("status", "dashboard", "janitor", "quarantine")},
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def unfenced(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(path: Path) -> list[tuple[Path, str]]:
    """Every link to a file of ours, and the anchor that it names."""
    found = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", unfenced(path)):
        if "://" not in target:
            found.append(((path.parent / target).resolve() if target else path, anchor))
    return found


def anchors(path: Path) -> set[str]:
    """What the headings of a page can be linked by, as GitHub makes it."""
    seen: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#+ (.+)$", unfenced(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return made


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_are_there(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{name_of(page)} links to {target}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name_of(page)} links to #{anchor} of {name_of(target)}"


def test_every_page_is_linked_from_the_index() -> None:
    linked = {target for target, _ in links(INDEX)} | {INDEX}
    generated = ROOT / "docs" / "reference" / "api"
    linked |= {target for target, _ in links(generated / "index.md")}
    assert generated / "index.md" in linked
    assert not [name_of(page) for page in PAGES if page not in linked]


def test_every_command_has_its_section_and_no_other() -> None:
    assert set(COMMANDS) == set(SECTIONS)
    actions = [action for action in producer_parser()._actions if action.choices]
    assert [list(action.choices or ()) for action in actions] == [["submit"]]
    sections = {name for name in worker.options.COMMANDS if f"python -m worker {name}" in SECTIONS}
    assert set(worker.options.COMMANDS) - sections == {"run", "config"}
    # These two take what the node takes, and are told of beside it.
    assert worker.options.options_of("run") == worker.options.options_of("config")
    assert "`python -m worker config`" in SECTIONS["python -m worker"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_that_are_documented_are_those_that_there_are(command: str) -> None:
    module, *rest = COMMANDS[command]
    if module == "collimate_rl.cli":
        done = CliRunner().invoke(app, [*rest, "--help"])
        assert done.exit_code == 0, done.output
        shown = done.stdout
    else:
        argv = [sys.executable, "-m", module, *rest, "--help"]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT).stdout
    section = SECTIONS[command]
    missing = {option for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown) if option not in section}
    assert missing <= {"--help", "--version"}, f"docs/reference/cli.md lacks {sorted(missing)} of {command}"
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `-")]
    told = {option for row in rows for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row)}
    there = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown))
    assert told <= there, f"docs/reference/cli.md: {command} has no {sorted(told - there)}"


def test_every_target_of_the_makefile_is_told_of() -> None:
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "test" in targets
    assert not [target for target in targets if f"`make {target}" not in contributing]


def test_every_extra_is_told_of() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = re.findall(r"^(\w+) = ", section, re.MULTILINE)
    told = (ROOT / "docs" / "howto" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"`\[(\w+)\]`", " ".join(re.findall(r"^\| (`\[[^|]*) \|", told, re.MULTILINE)))
    assert sorted(rows) == sorted(extras), "docs/howto/install.md has other extras than pyproject.toml"
