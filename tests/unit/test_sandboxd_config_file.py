"""Templates as a file gives them: every value that is off is refused, by its key, with what to do instead."""

from __future__ import annotations

import builtins
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.sandboxd import config_file
from collimate_rl.sandboxd.config import DaemonConfig, Template
from collimate_rl.sandboxd.config_file import load_templates

WHOLE = """
[worker]
queue = "grade"

[templates.env]
interpreter = "/usr/bin/python3"
preload = ["json", "email.mime"]
memory_mb = 1024
pids = 128
tmpfs_mb = 256
entry = "email.message:Message"
entry_timeout_s = 60
expose_ports = [8000, 9000]
egress = { mode = "none" }
data = { "/data" = "/srv/data", "/models" = "/srv/models" }
env = { PYTHONPATH = "/data", MODE = "fast" }

[templates."registry.example/org/node:20"]
interpreter = "/usr/bin/node"
entry = ["node", "/data/server.js"]
expose_ports = [3000]

[templates.perl]
interpreter = ["/opt/perl/bin/perl", "-w", "-e"]
"""


def read(folder: Path, text: str) -> dict[str, Template]:
    path = folder / "c.toml"
    path.write_text(text)
    return load_templates(str(path), environ={})


def test_a_whole_file(tmp_path: Path) -> None:
    templates = read(tmp_path, WHOLE)
    assert templates["env"] == Template(
        interpreter="/usr/bin/python3",
        preload=("json", "email.mime"),
        memory_mb=1024,
        pids=128,
        tmpfs_mb=256,
        entry="email.message:Message",
        entry_timeout_s=60,
        expose_ports=(8000, 9000),
        data=(("/data", "/srv/data"), ("/models", "/srv/models")),
        env=(("PYTHONPATH", "/data"), ("MODE", "fast")),
    )
    assert templates["env"].entry_module == "email.message"
    assert templates["env"].language is None
    node = templates["registry.example/org/node:20"]
    assert node.language == ("/usr/bin/node", "-e")
    assert node.python is None
    assert templates["perl"].language == ("/opt/perl/bin/perl", "-w", "-e")
    assert len(templates) == 3


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("colour = 1", ["unknown keys: colour", "memory_mb"]),
        ("memory_mb = 8", ["memory_mb", "between 32 and"]),
        ("memory_mb = '512'", ["memory_mb", "whole number"]),
        ("memory_mb = true", ["memory_mb", "whole number"]),
        ("memory_mb = 64.0", ["memory_mb", "whole number"]),
        ("pids = 1", ["pids", "between 4 and"]),
        ("tmpfs_mb = 0", ["tmpfs_mb", "between 1 and"]),
        ("entry_timeout_s = 0", ["entry_timeout_s", "between 1 and"]),
        ("interpreter = 'node'", ["interpreter", "absolute path", "command -v node"]),
        ("interpreter = []", ["interpreter", "argv"]),
        ("interpreter = 3", ["interpreter", "list of strings"]),
        ("preload = 'numpy'", ["preload", "list of strings"]),
        ("preload = ['no-module']", ["preload", "no-module"]),
        ("interpreter = '/bin/sh'\npreload = ['json']", ["preload", "/bin/sh"]),
        ("entry = 'module'\nexpose_ports = [8000]", ["entry", "module:function"]),
        ("entry = []\nexpose_ports = [8000]", ["entry", "argv"]),
        ("entry = 'a:b'", ["entry", "expose_ports"]),
        ("interpreter = '/usr/bin/node'\nentry = 'a:b'\nexpose_ports = [8000]", ["entry", "command"]),
        ("expose_ports = 8000", ["expose_ports", "list"]),
        ("expose_ports = [80]", ["expose_ports", "1,024"]),
        ("expose_ports = [70000]", ["expose_ports", "65,535"]),
        ("expose_ports = [8000, 8000]", ["expose_ports", "once"]),
        ("egress = { mode = 'open' }", ["egress", "vsock-only", "none"]),
        ("egress = 'none'", ["egress", "none"]),
        ("data = ['/srv']", ["data", "table of strings"]),
        ("data = { '/data' = 'relative' }", ["data", "absolute"]),
        ("data = { '/data/../x' = '/srv/d' }", ["data", "absolute"]),
        ("data = { '/data/' = '/srv/d' }", ["data", "absolute"]),
        ("data = { '/' = '/srv/d' }", ["data", "another place"]),
        ("data = { '/usr/share/x' = '/srv/d' }", ["data", "/usr/share/x"]),
        ("data = { '/tmp/x' = '/srv/d' }", ["data", "/tmp/x"]),
        ("data = { '/opt' = '/srv/d' }", ["data", "/opt"]),
        ("data = { '/etc' = '/srv/d' }", ["data", "/etc"]),
        ("data = { '/data' = '/' }", ["data", "no directory of data"]),
        ("data = { '/data' = '/home' }", ["data", "no directory of data"]),
        ("data = { '/data' = '/proc/1' }", ["data", "no directory of data"]),
        ("data = { '/data' = '/run/user' }", ["data", "no directory of data"]),
        ("data = { '/data' = '/srv/a', '/data/x' = '/srv/b' }", ["data", "another data directory"]),
        ("env = { 'A=B' = 'x' }", ["env", "A=B"]),
        ("env = { PYTHONHASHSEED = '1' }", ["env", "PYTHONHASHSEED", "leave it out"]),
        ("env = { A = 1 }", ["env", "table of strings"]),
    ],
)
def test_values_that_are_off(tmp_path: Path, lines: str, said: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        read(tmp_path, f"[templates.mine]\n{lines}\n")
    for words in ("c.toml", "[templates.mine]", *said):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("templates = 3", "[templates]"),
        ("[templates]\nmine = 3", "[templates.mine] must be a table"),
        ("[templates.'no name']", "no template name"),
        ("[templates", "is not TOML"),
    ],
)
def test_files_that_are_off(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


def test_where_the_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_templates(None, environ={}) == {}
    with pytest.raises(ValueError, match="cannot be read"):
        load_templates("absent.toml", environ={})
    with pytest.raises(ValueError, match="cannot be read"):
        load_templates(None, environ={"COLLIMATE_CONFIG": "absent.toml"})
    (tmp_path / "collimate.toml").write_text("[templates.here]\n")
    (tmp_path / "other.toml").write_text("[templates.other]\n")
    assert list(load_templates(None, environ={})) == ["here"]
    assert list(load_templates(None, environ={"COLLIMATE_CONFIG": "other.toml"})) == ["other"]
    assert list(load_templates("collimate.toml", environ={"COLLIMATE_CONFIG": "other.toml"})) == ["here"]


def test_without_a_toml_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """On Python 3.10 without tomli: a file that is named is refused; one that only lies there is passed over."""
    real = builtins.__import__

    def no_tomli(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tomli":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    monkeypatch.setattr(builtins, "__import__", no_tomli)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "collimate.toml").write_text("[templates.here]\n")
    with pytest.raises(config_file.NoTomlReader, match="tomli"):
        load_templates("collimate.toml", environ={})
    assert load_templates(None, environ={}) == {}
    assert "is not read" in caplog.text


def test_what_needs_isolation_and_what_shows_the_daemons_socket(tmp_path: Path) -> None:
    data = Template(data=(("/data", str(tmp_path)),))
    with pytest.raises(ValueError, match="mine: data need --isolation namespaces"):
        DaemonConfig(host="127.0.0.1", isolation="none", templates={"mine": data})
    with pytest.raises(ValueError, match="the daemon's own socket"):
        DaemonConfig(unix_socket=os.path.join(tmp_path, "below", "s.sock"), templates={"mine": data})
    DaemonConfig(unix_socket="/tmp/elsewhere.sock", templates={"mine": data})
