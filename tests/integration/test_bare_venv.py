"""The SDK's core in an environment that has Python and nothing else: it imports there, and it grades."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TOUR = """
import importlib.util, sys
for name in ("redis", "rq", "msgpack", "click", "rich", "pytest", "pip"):
    assert importlib.util.find_spec(name) is None, name

from collimate_rl import CollimateClient, PropertyReward, UnitTestReward, connect, grade, grade_batch
from collimate_rl import reward_spec_from_ground_truth

client = connect()
spec = PropertyReward(reference="    return sum(c in 'aeiouAEIOU' for c in x)",
                      generator="''.join(random.choice('abcdEIOUxyz') for _ in range(8))", k=16)
right = "def solve(x):\\n    return sum(c in 'aeiouAEIOU' for c in x)\\n"
print(grade(client, "dkr-python311", right, spec, seed="ab" * 32).reward)
print([result.reward for result in grade_batch(client, "py", [right, "def solve(x):\\n    return -1\\n"], spec)])
rows = [
    [{"input": [2], "expected": 4}],
    {"inputs": ["2\\n"], "outputs": ["4\\n"]},
    {"test": "def check(candidate):\\n    assert candidate(2) == 4\\n", "entry_point": "solve", "prompt": ""},
]
double = "def solve(x):\\n    return 2 * x\\n"
candidates = [double, "print(2 * int(input()))\\n", double]
for row, candidate in zip(rows, candidates):
    print(grade(client, "py", candidate, reward_spec_from_ground_truth(row)).reward)
outside = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"__main__"}
print(sorted(name for name in outside if not name.startswith("_")))
"""


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """The interpreter of an empty environment that finds this tree by a .pth file, as an editable install does."""
    folder = tmp_path / "bare"
    venv.create(folder, with_pip=False)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "tree.pth").write_text(f"{ROOT}\n")
    return str(folder / "bin" / "python")


@pytest.mark.parametrize(
    "what",
    [
        ["-c", "from producer import Producer"],
        ["-c", "import producer.slime"],
        ["-m", "producer", "submit", "x"],
        ["-m", "worker"],
    ],
    ids=" ".join,
)
def test_the_queue_names_the_extra_that_it_needs(bare_python: str, tmp_path: Path, what: list[str]) -> None:
    environment = {key: value for key, value in os.environ.items() if not re.match("PYTHON|COLLIMATE|VIRTUAL", key)}
    done = subprocess.run(
        [bare_python, *what], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert "pip install 'collimate-rl[" in done.stderr.splitlines()[-1]
    assert what[0] != "-m" or len(done.stderr.splitlines()) == 1


def test_the_core_grades_in_a_bare_environment(bare_python: str, daemon_socket: str, tmp_path: Path) -> None:
    script = tmp_path / "tour.py"
    script.write_text(TOUR)
    environment = {key: value for key, value in os.environ.items() if not re.match("PYTHON|COLLIMATE|VIRTUAL", key)}
    done = subprocess.run(
        [bare_python, "-W", "error", str(script)],
        env={**environment, "COLLIMATE_SERVE_SOCKET": daemon_socket},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["1.0", "[1.0, 0.0]", "1.0", "1.0", "1.0", "['collimate_rl']"]
