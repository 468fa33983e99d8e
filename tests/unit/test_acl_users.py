"""deploy/redis/users.acl says of every key and script of the queue who may, and gives nobody more than that.

A script that is refused half way has written half: what a user's scripts do, the user must be allowed to do.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from collimate_rl.protocol import Timing, keys
from collimate_rl.queue.lua import SCRIPTS, script_text
from tests.fixtures.acl_users import ACL, RENDER, USERS, password, render

CALLERS = {
    "submit": {"producer", "operator"},
    "cancel": {"producer", "operator"},
    "mend": {"producer", "worker"},
    "lease": {"producer", "worker", "operator"},
    "purge": {"operator"},
}
"""Whose programs send a script; else only workers do."""
HARMFUL = frozenset(
    re.findall(
        r"\S+",
        """acl bgrewriteaof bgsave config debug failover flushall flushdb function keys migrate module monitor move
        psync replicaof restore role save scan script|flush script|kill shutdown slaveof slowlog sort swapdb sync wait
        client client|kill client|list client|pause cluster dump object memory randomkey rename copy publish
        psubscribe""",
    )
)


def rules(user: str) -> list[str]:
    text = "\n".join(line for line in ACL.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    found = re.search(rf"^user {user} (.*?)(?=^user |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, user
    return found[1].split()


def commands(user: str) -> set[str]:
    return {rule[1:] for rule in rules(user) if rule.startswith("+")}


def patterns(user: str, *, write: bool) -> list[str]:
    starts = ("~",) if write else ("~", "%R~")
    return [rule.partition("~")[2] for rule in rules(user) if rule.startswith(starts)]


def may(user: str, key: str, *, write: bool) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns(user, write=write))


def calls(script: str) -> set[str]:
    text = re.sub(r"^\s*--.*$", "", script_text(script, Timing()), flags=re.MULTILINE)
    return {name.lower() for name in re.findall(r"redis\.p?call\('([A-Z]+)'", text)}


def everyone() -> Iterator[tuple[str, str]]:
    for script in SCRIPTS:
        for user in sorted(CALLERS.get(script, {"worker"})):
            yield script, user


@pytest.mark.parametrize(("script", "user"), list(everyone()))
def test_a_users_scripts_may_do_what_they_do(script: str, user: str) -> None:
    assert len(calls(script)) > 3
    assert calls(script) <= commands(user)
    assert {"eval", "evalsha", "script|load"} <= commands(user)


@pytest.mark.parametrize(("script", "user"), list(everyone()))
def test_a_users_scripts_reach_the_keys_that_they_name(script: str, user: str) -> None:
    text = re.sub(r"^\s*--.*$", "", script_text(script, Timing()), flags=re.MULTILINE)
    # What follows the prefix in the script is a name; a lease's is its argument.
    named = {key for key in re.findall(r"'((?:col|rq):[a-z:]+)'", text) if key != "col:lease:"}
    assert len(named) > 5
    assert [key for key in sorted(named) if not may(user, f"{key}x" if key.endswith(":") else key, write=False)] == []


def every_key() -> dict[str, str]:
    """A key of each kind, by the name of what makes it."""
    batch = {
        name: getattr(keys.BatchKeys("0" * 32), name)
        for name, value in vars(keys.BatchKeys).items()
        if isinstance(value, property)
    }
    made = {
        name: make(*["1"] * make.__code__.co_argcount)
        for name, make in vars(keys).items()
        if callable(make) and getattr(make, "__module__", "") == keys.__name__ and name not in ("BatchKeys", "k_of_job")
    }
    return {**batch, **made, "quarantine": keys.QUARANTINE}


def test_every_key_is_somebodys_to_write_and_the_operators() -> None:
    found = every_key()
    assert len(found) > 25
    for name, key in found.items():
        if name == "lease":
            continue
        assert may("producer", key, write=True) or may("worker", key, write=True), name
        assert may("operator", key, write=True), name
    for lease, users in {
        "producer:run:p": {"producer", "operator"},
        "janitor:grade": {"worker", "operator"},
        "node:n1": {"worker", "operator"},
        "sessions:n1": {"worker", "operator"},
    }.items():
        allowed = {user for user in USERS if user != "admin" and may(user, keys.lease(lease), write=True)}
        assert allowed == users, lease


def test_what_is_kept_from_whom() -> None:
    """Hidden cases, cursors and producers' leases from the dashboard; signs of life and counts from trainers."""
    found = every_key()
    unread = {name for name, key in found.items() if name != "lease" and not may("dashboard", key, write=False)}
    assert unread >= {"cases", "cursor", "results", "askers", "sessions", "seats", "rq_job"}
    assert not may("dashboard", keys.lease("producer:run:p"), write=False)
    unwritten = {name for name, key in found.items() if name != "lease" and not may("producer", key, write=True)}
    assert unwritten >= {"alive", "clock", "node", "nodes", "sessions", "seats", "suspects", "tally", "recent"}
    assert not may("worker", found["cursor"], write=False)


def test_the_dashboard_only_reads() -> None:
    assert patterns("dashboard", write=True) == []
    writing = {
        name for script in SCRIPTS for name in calls(script) if re.search(r"set|push|add|del|rem|incr|exp", name)
    }
    assert len(writing) > 10
    assert commands("dashboard") & (writing | {"eval", "evalsha", "script|load", "subscribe"}) == set()


@pytest.mark.parametrize("user", [user for user in USERS if user != "admin"])
def test_nobody_but_the_admin_may_hurt_the_server(user: str) -> None:
    allowed = HARMFUL & commands(user)
    assert allowed == ({"scan"} if user == "operator" else set())
    assert "-@all" in rules(user)
    assert not [rule for rule in rules(user) if rule.startswith("+@") or rule in ("allkeys", "~*", "nopass", "&*")]


def test_nobody_comes_in_without_a_name() -> None:
    assert rules("default")[:2] == ["off", "resetpass"]
    assert not [rule for rule in rules("default") if rule[0] in "#>" or rule in ("on", "nopass")]
    assert (commands("probe"), patterns("probe", write=False)) == ({"ping"}, [])


def test_what_is_made_of_it_holds_hashes_alone(tmp_path: Path) -> None:
    lines = render(tmp_path).read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["default", "probe", *USERS]
    assert all(re.search(r" #[0-9a-f]{64} ", line) for line in lines[2:])
    assert not [user for user in USERS if password(user) in "\n".join(lines)]
    assert "@PRODUCER@" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("given", "said"), [(None, "there is no password for the user worker"), ("short", "fewer than")]
)
def test_a_password_that_is_missing_or_short_is_refused(tmp_path: Path, given: str | None, said: str) -> None:
    for user in USERS:
        (tmp_path / user).write_text(password(user))
    (tmp_path / "worker").unlink()
    if given is not None:
        (tmp_path / "worker").write_text(given)
    done = subprocess.run([RENDER, ACL, tmp_path], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
