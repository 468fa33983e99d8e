"""Randomness after a fork: no two forks share a state unless they were seeded alike, and then they agree."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fixtures.sandbox_daemon import NoIsolation, RunningDaemon, start_daemon
from tests.fixtures.sandboxd_wire import call, run, session_exec

FORKS = 8
SEEDS = ("ab" * 32, "cd" * 32)
USED = """
import random, secrets, ssl, tempfile, uuid
ssl.RAND_bytes(16)
ssl.create_default_context()
tempfile.mktemp()
uuid.uuid4()
random.random()
random.SystemRandom().random()
secrets.token_hex()
"""
"""What a module may do when it is imported, in the warm interpreter, before any fork."""
CONFIG = """
[templates.used]
preload = ["used_before", "uuid"]
data = {{ "/srv/env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/env" }}
"""
NUMPY = """
[templates.numpy]
interpreter = "{python}"
preload = ["numpy"]
"""


def numpy_python() -> str | None:
    """A Python that has numpy: the one that runs this, or the one that `NUMPY_PYTHON` names."""
    return os.environ.get("NUMPY_PYTHON") or (sys.executable if importlib.util.find_spec("numpy") else None)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("random")
    data = folder / "data"
    data.mkdir(mode=0o755)
    (data / "used_before.py").write_text(USED)
    config = folder / "collimate.toml"
    python = numpy_python()
    config.write_text(CONFIG.format(data=data) + (NUMPY.format(python=python) if python else ""))
    try:
        own = start_daemon("--config", str(config))
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")
    yield own
    own.stop()
    shutil.rmtree(own.folder, ignore_errors=True)


@pytest.fixture
def template(request: pytest.FixtureRequest, daemon: RunningDaemon) -> str:
    name = str(request.param)
    if name == "numpy" and numpy_python() is None:
        pytest.skip("numpy is not installed")
    assert name in call(daemon.socket_path, "GET", "/v1/health")[1]["templates"]
    return name


def outputs(path: str, template: str, text: str, seed: str | None = None) -> list[str]:
    """What the code says in many forks: one-shots, execs of one session, and one exec each of several sessions."""
    fields = {"code": text} if seed is None else {"code": text, "seed": seed}

    def once(_: int) -> str:
        answer = run(path, template_id=template, **fields)
        assert answer["exit_code"] == 0, answer
        return str(answer["stdout"])

    def in_session(execs: int) -> list[str]:
        session_id = call(path, "POST", "/v1/sessions", {"template_id": template})[1]["session_id"]
        try:
            answers = [session_exec(path, session_id, **fields) for _ in range(execs)]
        finally:
            call(path, "DELETE", f"/v1/sessions/{session_id}")
        assert all(answer["exit_code"] == 0 for answer in answers), answers
        return [str(answer["stdout"]) for answer in answers]

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(once, range(FORKS)))
        for more in pool.map(in_session, [FORKS // 2] + [1] * (FORKS // 2)):
            said += more
    return said


OF_THE_SEED = {
    "random": "import random; print(random.random(), random.getrandbits(64), random.sample('abcdef', 3))",
    "numpy": "import numpy; print(numpy.random.random(4).tolist(), numpy.random.randint(0, 2**60))",
}
OF_THE_KERNEL = {
    "urandom": "import os; print(os.urandom(16))",
    "secrets": "import secrets; print(secrets.token_hex(16))",
    "system random": "import random; print(random.SystemRandom().getrandbits(128))",
    "openssl": "import ssl; print(ssl.RAND_bytes(16))",
    "uuid4": "import uuid; print(uuid.uuid4())",
    "uuid1": "import uuid; print(uuid.uuid1())",
    "temporary names": "import tempfile; print(tempfile.mktemp())",
    "a generator of its own": "import random; print(random.Random().random())",
}


@pytest.mark.parametrize("template", ["py", "used"], indirect=True)
@pytest.mark.parametrize("what", ["random", *OF_THE_KERNEL])
def test_no_two_forks_share_a_state(daemon: RunningDaemon, template: str, what: str) -> None:
    said = outputs(daemon.socket_path, template, {**OF_THE_SEED, **OF_THE_KERNEL}[what])
    assert len(set(said)) == len(said) == 2 * FORKS


@pytest.mark.parametrize("what", OF_THE_KERNEL)
def test_a_seed_does_not_make_secrets_repeat(daemon: RunningDaemon, what: str) -> None:
    said = outputs(daemon.socket_path, "used", OF_THE_KERNEL[what], SEEDS[0])
    assert len(set(said)) == len(said)


@pytest.mark.parametrize("template", ["py", "used"], indirect=True)
def test_seeded_alike_they_agree(daemon: RunningDaemon, template: str) -> None:
    path = daemon.socket_path
    first, second = (set(outputs(path, template, OF_THE_SEED["random"], seed)) for seed in SEEDS)
    assert (len(first), len(second)) == (1, 1)
    assert first != second
    assert first == set(outputs(path, template, OF_THE_SEED["random"], SEEDS[0].upper()))


@pytest.mark.parametrize("template", ["numpy"], indirect=True)
def test_numpy(daemon: RunningDaemon, template: str) -> None:
    path = daemon.socket_path
    said = outputs(path, template, OF_THE_SEED["numpy"])
    assert len(set(said)) == len(said)
    first, second = (set(outputs(path, template, OF_THE_SEED["numpy"], seed)) for seed in SEEDS)
    assert (len(first), len(second)) == (1, 1)
    assert first != second
    fresh = outputs(path, template, "import numpy; print(numpy.random.default_rng().random())", SEEDS[0])
    assert len(set(fresh)) == len(fresh), "a generator that asks the kernel is its own"


def test_hashes_are_the_same_everywhere(daemon: RunningDaemon) -> None:
    """One fixed hash seed, so that the order of a set never tells two runs of one seed apart."""
    text = "print(hash('collimate'), hash(b'x'), list({str(n) for n in range(50)}))"
    path = daemon.socket_path
    said = {*outputs(path, "py", text), *outputs(path, "used", text), *outputs(path, "py", text, SEEDS[0])}
    assert len(said) == 1


def test_a_candidates_own_forks_differ(daemon: RunningDaemon) -> None:
    text = """
import os, random, sys
for _ in range(8):
    if os.fork() == 0:
        os.write(1, f"{random.random()}\\n".encode()); os._exit(0)
    os.wait()
print(random.random())
"""
    for template in ("py", "used"):
        lines = run(daemon.socket_path, template_id=template, code=text, seed=SEEDS[0])["stdout"].split()
        assert len(set(lines)) == len(lines) == 9


def test_no_fork_has_its_zygotes_pid(daemon: RunningDaemon) -> None:
    """Libraries that tell a fork by its pid would take it for their old self."""
    pids = outputs(daemon.socket_path, "py", "import os; print(os.getpid())")
    assert all(int(pid) > 1 for pid in pids)


def test_a_fork_has_no_hardware_address(daemon: RunningDaemon) -> None:
    nodes = outputs(daemon.socket_path, "used", "import uuid; print(uuid.getnode())")
    assert len(set(nodes)) == len(nodes), "no network card, so no address: random in each"
