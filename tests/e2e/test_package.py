"""The wheel: what is in it, and that its core grades with the standard library alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.fixtures.fences import ROOT

GRADE_WITH_NOTHING_ELSE = """
import importlib.util, json, sys
import collimate_rl, collimate_rl.slime, collimate_rl.rewards
missing = [name for name in ("redis", "rq", "msgpack", "click", "rich") if importlib.util.find_spec(name)]
assert not missing, missing
from collimate_rl import CollimateClient, UnitTestReward, grade, grade_batch
client = CollimateClient(unix_socket=sys.argv[1])
spec = UnitTestReward([{"input": [2], "expected": 4}])
good, bad = "def solve(x):\\n    return x * x\\n", "def solve(x):\\n    return 0\\n"
one = grade(client, "py", good, spec)
many = grade_batch(client, "py", [good, bad], spec)
foreign = sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"__main__"})
print(json.dumps([one.reward, [r.reward for r in many], foreign, collimate_rl.__file__]))
"""


def tracked_files() -> list[str]:
    """What belongs to the project: other files of a working tree are somebody's work in progress."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs a git checkout to know which files are the project's")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in tracked_files():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        ".",
    ]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_the_packages_and_nothing_beside_them(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"collimate_rl", "producer", "worker"}
    for needed in ("collimate_rl/py.typed", "producer/py.typed", "worker/py.typed", "collimate_rl/data/demo.jsonl"):
        assert needed in names
    scripts = {path.name for path in (ROOT / "collimate_rl" / "queue" / "scripts").glob("*.lua")}
    assert scripts
    assert {f"collimate_rl/queue/scripts/{name}" for name in scripts} <= set(names)
    pages = {
        name for name in tracked_files() if name.startswith(("worker/dashboard/templates/", "worker/dashboard/static/"))
    }
    assert len(pages) > 8
    assert pages <= set(names)
    tops_of_ours = ("collimate_rl/", "producer/", "worker/")
    modules = {name for name in tracked_files() if name.startswith(tops_of_ours) and name.endswith(".py")}
    assert modules <= set(names)


def test_metadata_names_licence_extras_and_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (info,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = archive.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Dist: redis" in metadata
    unconditional = [x for x in metadata.splitlines() if x.startswith("Requires-Dist:") and "extra ==" not in x]
    assert unconditional == []
    assert "collimate = collimate_rl.cli:main" in archive.read(f"{info}/entry_points.txt").decode()


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with nothing in it but the wheel's files."""
    directory = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=120)
    (packages,) = directory.glob("lib/python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    return directory / "bin" / "python"


def test_a_bare_venv_grades_with_the_standard_library_alone(bare_python: Path, daemon_socket: str) -> None:
    import json

    done = subprocess.run(
        [bare_python, "-I", "-c", GRADE_WITH_NOTHING_ELSE, daemon_socket],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, many, foreign, where = json.loads(done.stdout)
    assert (one, many) == (1.0, [1.0, 0.0])
    assert foreign == ["collimate_rl"]
    assert Path(where).is_relative_to(bare_python.parents[1])


def test_the_command_line_without_its_extra_says_what_to_install(bare_python: Path) -> None:
    done = subprocess.run(
        [bare_python, "-I", "-m", "collimate_rl.cli", "demo"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pip install 'collimate-rl[cli]'" in done.stderr


def test_make_refuses_a_python_that_is_too_old_before_it_makes_anything(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", "demo", "PYTHON=false"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "make demo PYTHON=" in done.stderr
    assert not (tmp_path / ".venv").exists()
