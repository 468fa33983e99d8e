"""The command line of `python -m worker`: each command takes and shows its own options, wherever they stand."""

from __future__ import annotations

import dataclasses
import re

import pytest

from worker.options import COMMANDS, options_of, parser, read
from worker.settings import WorkerSettings, option_name

SETTINGS = {item.name for item in dataclasses.fields(WorkerSettings)}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_a_commands_own_options_and_no_others(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [] if command == "run" else [command]
    with pytest.raises(SystemExit) as left:
        read([*words, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE)) == {
        option_name(name) for name in options_of(command)
    }
    assert ("commands (each has a --help of its own)" in shown) == (command == "run")


def test_help_is_found_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(["-h", "--queue", "q", "dashboard"])
    assert capsys.readouterr().out == parser("dashboard").format_help()


def test_a_node_takes_every_setting_and_each_command_what_it_goes_by() -> None:
    assert set(options_of("run")) == set(options_of("config")) == {"config", *SETTINGS}
    for command in COMMANDS:
        assert {"redis_url", "queue", "timing", "config"} <= set(options_of(command))
    assert set(options_of("status")) - SETTINGS == {"json", "config"}
    assert "backend" in options_of("janitor")
    assert "backend" not in options_of("dashboard")


def test_options_stand_before_and_after_the_command_and_between_its_words() -> None:
    given = read(["--queue", "q", "quarantine", "show", "--json", "abc"])
    assert (given.command, given.words, given.queue, given.json) == ("quarantine", ["show", "abc"], "q", True)
    assert read(["status", "--redis", "unix:x"]).redis_url == "unix:x"
    given = read(["--slots", "3"])
    assert (given.command, given.words, given.slots, given.queue) == ("run", [], "3", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "1"], "--port goes with dashboard, not with run"),
        (["config", "--json"], "--json goes with status and quarantine, not with config"),
        (["status", "--slots", "2"], "--slots goes with run and config, not with status"),
        (["dashboard", "--backend", ""], "--backend goes with run, config and janitor, not with dashboard"),
        (["janitor", "list"], "janitor takes no further words (list); only quarantine does"),
    ],
    ids=["run", "config", "status", "dashboard", "janitor"],
)
def test_what_belongs_to_another_command_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        read(words)
    assert str(refused.value) == said


def test_what_no_command_takes_is_refused_with_the_commands_own_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        read(["status", "--no-such-option"])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert "unrecognized arguments: --no-such-option" in told
    assert "--json" in told
    assert "--slots" not in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slot", "4"], "unrecognized arguments: --slot; did you mean --slots?"),
        (["status", "--quue=q"], "unrecognized arguments: --quue; did you mean --queue?"),
        (["--redis-ulr=redis://u:secret@h"], "unrecognized arguments: --redis-ulr; did you mean --redis-url?"),
        (["stauts"], "no such command: 'stauts'; did you mean status? (choose from run, config, "),
        (["--slots", "3", "4"], "no such command: '4' (choose from run, config, "),
    ],
    ids=["a value of its own", "of a command", "a secret", "a command", "a stray word"],
)
def test_a_slip_is_told_as_what_it_is(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        read(words)
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert f"error: {said}" in told
    assert "secret" not in told
