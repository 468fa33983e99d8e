"""`--check`: what this machine has, what the daemon would use of it and what is missing, and one jail brought up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd import findings
from collimate_rl.sandboxd.backend import Backend, IsolationUnavailable
from collimate_rl.sandboxd.config import DaemonConfig, Template
from collimate_rl.sandboxd.daemon import make_backend
from collimate_rl.sandboxd.findings import Finding
from collimate_rl.sandboxd.hostfacts import Host, gather
from collimate_rl.sandboxd.jail import find_bwrap
from collimate_rl.sandboxd.privileges import JailUser, NobodyToBe, jail_user
from collimate_rl.sandboxd.wire import Exec

SERVES, REFUSES = 0, 2
"""The exit statuses."""
_WARM_EXECS = 20
_MARKS = {"ok": "ok", "weaker": "weaker", "doubtful": "?", "missing": "MISSING"}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of bringing up a jail. `problem` None: it ran an exec, in `first_ms`, and then in `warm_ms` (median).

    `failed` are the templates that would answer nothing, and why; the others serve. `uses` is what health would tell
    of the isolation.
    """

    problem: str | None
    bringup_ms: float | None = None
    first_ms: float | None = None
    warm_ms: float | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    uses: Mapping[str, Any] | None = None


def check(config: DaemonConfig, *, as_json: bool) -> int:
    """Print the report on stdout; the exit status."""
    found = look(config)
    trial = bring_up(config)
    print(as_document(found, trial) if as_json else as_text(found, trial))
    return SERVES if trial.problem is None else REFUSES


def look(config: DaemonConfig) -> list[Finding]:
    """Everything that is found without starting a sandbox."""
    facts = gather(Host())
    try:
        user = jail_user(facts.privileges)
    except NobodyToBe:
        user = JailUser(uid=None, staged=False)
    interpreters = dict.fromkeys(template.python or sys.executable for template in config.templates.values())
    return [
        *findings.assess(facts),
        findings.bubblewrap(find_bwrap, _version),
        *(findings.interpreter(path, user, uid=facts.privileges.uid) for path in interpreters),
    ]


def _version(bwrap: str) -> str:
    try:
        done = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except subprocess.SubprocessError as exc:
        raise OSError(f"it does not run: {exc}") from exc
    return done.stdout.strip()


def bring_up(config: DaemonConfig) -> Trial:
    """One warm interpreter per kind of template, and in a fork of each an exec; nothing is left of them."""
    backend = make_backend(replace(config, isolation="namespaces", zygotes=1))
    began = time.monotonic()
    try:
        backend.start()
    except (IsolationUnavailable, OSError) as exc:
        return Trial(problem=str(exc))
    bringup_ms = (time.monotonic() - began) * 1000
    try:
        names = {template: name for name, template in list(config.templates.items())[::-1]}
        first, failed = {}, {}
        for template in dict.fromkeys(config.templates.values()):
            try:
                first[template] = _exec_ms(backend, template)
            except CollimateError as exc:
                failed[names[template]] = str(exc)
        if not first:
            return Trial(problem=f"no exec ran: {next(iter(failed.values()))}", bringup_ms=bringup_ms, failed=failed)
        template, first_ms = next(iter(first.items()))
        warm = sorted(_exec_ms(backend, template) for _ in range(_WARM_EXECS))
        return Trial(
            problem=None,
            bringup_ms=bringup_ms,
            first_ms=first_ms,
            warm_ms=warm[_WARM_EXECS // 2],
            failed=failed,
            uses=backend.facts(),
        )
    except CollimateError as exc:
        return Trial(problem=f"a jail came up and ran an exec, and then failed: {exc}", bringup_ms=bringup_ms)
    finally:
        backend.close()


def _exec_ms(backend: Backend, template: Template) -> float:
    began = time.monotonic()
    outcome = backend.run_once(template, Exec(command="echo $((6 * 7))", timeout_s=30, seed="0" * 64))
    if (outcome.exit_code, outcome.output) != (0, b"42\n"):
        raise CollimateError(f"it ended with exit code {outcome.exit_code} and said {outcome.output[-300:]!r}")
    return (time.monotonic() - began) * 1000


def as_text(found: list[Finding], trial: Trial) -> str:
    """The report for people."""
    width = max(len(finding.name) for finding in found)
    lines = ["found"]
    for finding in found:
        lines.append(f"  {_MARKS[finding.state]:>7}  {finding.name:<{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"  {'':>7}  {'':<{width}}  -> {finding.remedy}")
    if trial.problem is not None:
        return "\n".join([*lines, "", f"refuses: {trial.problem}"])
    assert trial.uses is not None
    lines += ["", "uses", f"  isolation namespaces, control groups {trial.uses['cgroups']}"]
    lines += [f"  {note}" for note in trial.uses["notes"]]
    lines += [f"  template {name} would serve nothing: {why}" for name, why in trial.failed.items()]
    lines.append(f"  a jail came up in {trial.bringup_ms:.0f} ms; its first exec took {trial.first_ms:.1f} ms, then")
    lines.append(f"  {trial.warm_ms:.1f} ms (median of {_WARM_EXECS}: fork, isolate, run a shell, confirm its end)")
    return "\n".join([*lines, "", "would serve"])


def as_document(found: list[Finding], trial: Trial) -> str:
    """The report for programs: `{"serves": bool, "findings": [Finding], "trial": Trial}`."""
    document = {
        "serves": trial.problem is None,
        "findings": [asdict(finding) for finding in found],
        "trial": asdict(trial),
    }
    return json.dumps(document, indent=2)
