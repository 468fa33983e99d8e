"""Where a setting comes from: command line over environment over file over default."""

from __future__ import annotations

from pathlib import Path

import pytest

from collimate_rl._config_tables import UnknownTable
from collimate_rl.sandboxd.config_file import load_templates
from worker.settings import WorkerSettings, as_environment, default_node, load


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "collimate.toml").write_text(
        '[worker]\nqueue = "from-file"\nprocesses = 3\nslots = 7\ngrace = 12\nallow_unisolated = true\n'
    )
    return tmp_path


def test_each_source_beats_the_next(config: Path) -> None:
    loaded = load(
        {"queue": "from-line"},
        environ={"COLLIMATE_QUEUE": "from-env", "COLLIMATE_PROCESSES": "4"},
        cwd=config,
    )
    settings = loaded.settings
    assert (settings.queue, settings.processes, settings.slots) == ("from-line", 4, 7)
    assert (settings.grace, settings.allow_unisolated) == (12.0, True)
    assert loaded.sources["queue"] == "command line (--queue)"
    assert loaded.sources["processes"] == "environment (COLLIMATE_PROCESSES)"
    assert loaded.sources["slots"] == f"file ({config / 'collimate.toml'})"
    assert loaded.sources["node"] == "default"
    assert settings.node == default_node()


def test_no_file_is_no_fault_but_a_named_one_must_be_there(tmp_path: Path) -> None:
    assert load({}, environ={}, cwd=tmp_path).settings.queue == "grade"
    with pytest.raises(ValueError, match="cannot be read"):
        load({}, environ={"COLLIMATE_CONFIG": str(tmp_path / "none.toml")}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[worker]\nslotz = 1\n", "unknown settings: slotz. There are redis_url, queue,"),
        ("worker = 1\n", "must be a table"),
        ("[workers]\nslots = 1\n", r"holds \[workers\], which nothing reads: there are \[worker\] and"),
        ("slots = 1\nqueue = 'q'\n[worker]\n", r"holds queue, slots, which nothing reads: there are \[worker\] and"),
        ("not toml", "is not TOML"),
        ("[worker]\nslots = 1.5\n", "must be a whole number, not 1.5"),
        ("[worker]\nslots = true\n", "must be a whole number, not True"),
        ('[worker]\ngrace = "soon"\n', "must be a number, not 'soon'"),
    ],
)
def test_a_bad_file_says_what_is_off(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "collimate.toml").write_text(text)
    with pytest.raises(ValueError, match=words):
        load({}, environ={}, cwd=tmp_path)


def test_one_file_serves_worker_and_daemon(tmp_path: Path) -> None:
    path = tmp_path / "collimate.toml"
    path.write_text("[worker]\nslots = 7\n[templates.mine]\n")
    assert load({}, environ={}, cwd=tmp_path).settings.slots == 7
    assert list(load_templates(str(path), environ={})) == ["mine"]
    path.write_text("[worker]\nslots = 7\n[template.mine]\n")
    for read in (lambda: load({}, environ={}, cwd=tmp_path), lambda: load_templates(str(path), environ={})):
        with pytest.raises(UnknownTable, match=r"holds \[template\], .* \[worker\] and \[templates.NAME\]"):
            read()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("processes", "-1"),
        ("processes", "many"),
        ("slots", "-1"),
        ("queue", "a b"),
        ("node", "x/y"),
        ("grace", "nan"),
        ("grace", "-1"),
        ("redis_url", "localhost:6379"),
        ("backend", "/run/serve.sock"),
        ("log_format", "xml"),
        ("allow_unisolated", "perhaps"),
    ],
)
def test_a_bad_value_is_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        load({}, environ={f"COLLIMATE_{name.upper()}": value}, cwd=tmp_path)


def test_what_a_supervisor_hands_on_reads_back_the_same(tmp_path: Path) -> None:
    settings = WorkerSettings(
        redis_url="unix:///tmp/r.sock", node="n", slots=3, grace=1.5, allow_unisolated=True, log_format="json"
    )
    assert load({}, environ=as_environment(settings), cwd=tmp_path).settings == settings
