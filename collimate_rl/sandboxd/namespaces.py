"""Forks of a warm interpreter in namespaces of their own: the isolation `namespaces`."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd import cgroups, seccomp
from collimate_rl.sandboxd.admission import no_descriptors
from collimate_rl.sandboxd.backend import Box, IsolationUnavailable, Outcome, Turn
from collimate_rl.sandboxd.boxes import NamespaceBox
from collimate_rl.sandboxd.cgroup_layout import read_layout
from collimate_rl.sandboxd.config import MIB, Limits, Template
from collimate_rl.sandboxd.forks import Fork, pid_of
from collimate_rl.sandboxd.guests import GuestPrograms
from collimate_rl.sandboxd.held import HeldRunning
from collimate_rl.sandboxd.inside.channel import ChannelClosed, receive_report, send_request, wait_readable
from collimate_rl.sandboxd.jail import BwrapMissing, find_bwrap, write_etc
from collimate_rl.sandboxd.keepers import ZygoteKeeper
from collimate_rl.sandboxd.plans import Planner
from collimate_rl.sandboxd.rundir import RunFolder
from collimate_rl.sandboxd.running import Running
from collimate_rl.sandboxd.serving import PortService, Serving
from collimate_rl.sandboxd.wire import Exec
from collimate_rl.sandboxd.zygotes import bringup_failed

log = logging.getLogger(__name__)
_SETTLE_S = 15.0


class NamespaceBackend:
    """See the module. `limits` bound what a fork may take to come up, to run, to die."""

    name = "namespaces"

    def __init__(self, templates: Mapping[str, Template], limits: Limits, *, zygotes: int) -> None:
        self._names: dict[Template, str] = {}
        for name, template in templates.items():
            self._names[template] = f"{self._names[template]}, {name}" if template in self._names else name
        self._limits = limits
        self._count = zygotes
        self._programs = GuestPrograms.known()
        self.codes = self._programs.codes
        self._folder: RunFolder | None = None
        self._cgroups: cgroups.Cgroups = cgroups.NoCgroups()
        self._keepers: dict[Template, ZygoteKeeper] = {}
        self._ports = PortService(limits)
        self._unclean = 0

    def start(self) -> None:
        """Build the jails and warm the interpreters; IsolationUnavailable when this machine can't."""
        self._folder = RunFolder.create()
        try:
            self._start_below(self._folder)
        except BaseException:
            self.close()
            raise

    def _start_below(self, folder: RunFolder) -> None:
        if sys.platform != "linux":
            raise IsolationUnavailable(
                f"namespaces need Linux, and this is {sys.platform}: --isolation none is for tests"
            )
        machine = os.uname().machine
        if machine not in seccomp.ARCHITECTURES:
            raise IsolationUnavailable(f"there is no system call filter for {machine}: use isolation none")
        try:
            bwrap = find_bwrap()
        except BwrapMissing as exc:
            raise IsolationUnavailable(str(exc)) from exc
        layout = read_layout()
        cgroups.sweep_stale(cgroups.stale_places(layout), RunFolder.is_alive)
        self._cgroups = cgroups.open_cgroups(layout, folder.mark)
        write_etc(folder.path("etc"))
        shutil.copytree(
            os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside"),
            folder.path("inside"),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        planner = Planner(
            folder=folder,
            bwrap=bwrap,
            filters=seccomp.build_filters(seccomp.ARCHITECTURES[machine]),
            limits=self._limits,
            programs=self._programs,
            cgroups=self._cgroups.kind,
        )
        for number, (template, names) in enumerate(self._names.items()):
            plan = partial(planner.plan, number, template)
            keeper = self._keepers[template] = ZygoteKeeper(names, plan, self._count)
            keeper.start()
        self._settle()

    def _settle(self) -> None:
        """Until every template is up or has failed; one that takes long is not waited for once another is up."""
        keepers = tuple(self._keepers.values())
        deadline = time.monotonic() + _SETTLE_S
        for keeper in keepers:
            keeper.settle(max(deadline - time.monotonic(), 0.0))
        for keeper in keepers:
            if any(other.is_up for other in keepers):
                return
            keeper.settle()
        if not any(keeper.is_up for keeper in keepers):
            # None of them: then it is this machine rather than a template.
            raise IsolationUnavailable(str(keepers[0].failure))

    def run_once(self, template: Template, request: Exec, turn: Turn = nullcontext) -> Outcome:
        """Fork, run, discard. A fork that died before it began raises session_bringup_failed."""
        if template.entry is not None:
            with turn():
                return self._run_beside_entry(template, request)
        # Before there is a fork: a job that is none costs none.
        job = self._programs.held_job(request) if template.language is None else None
        began = time.monotonic()
        fork = self._fork(template, b"once")
        fork_ms = (time.monotonic() - began) * 1000
        try:
            if job is None:
                running = Running(fork, request, self._frame(template, request), self._limits, own_reports=False)
            else:
                running = HeldRunning(fork, request, job, self._limits)
            try:
                # No processor stands still while a fork is made, or unmade.
                with turn():
                    running.send()
                    report = running.report()
                    if report is None:
                        running.give_up()
                    fork.kill()
                if not running.collector.until_closed(time.monotonic() + self._limits.kill_timeout_s):
                    log.error("a fork's processes hold its output after its end")
                return running.outcome(report, fork_ms)
            finally:
                running.close()
        finally:
            self._dispose(fork)

    def _run_beside_entry(self, template: Template, request: Exec) -> Outcome:
        box = self._create(template, expose=False)
        try:
            return replace(box.run(request), fork_ms=box.fork_ms)
        finally:
            if not box.destroy():
                self._unclean += 1

    def create(self, template: Template) -> Box:
        """A fork that stays, its entry server listening and its ports exposed."""
        return self._create(template, expose=True)

    def _create(self, template: Template, *, expose: bool) -> NamespaceBox:
        began = time.monotonic()
        fork = self._fork(template, b"session")
        fork.let_go_of_main()
        try:
            asking = self._begin(template, fork)
            serving = self._ports.serve(template, fork, asking, secrets.token_hex(32), expose=expose)
        except CollimateError:
            self._dispose(fork)
            raise
        return NamespaceBox(
            fork,
            (time.monotonic() - began) * 1000,
            self._limits,
            partial(self._frame, template),
            serving=serving,
            stop_serving=partial(self._stop_serving, serving),
        )

    def _stop_serving(self, serving: Serving | None) -> None:
        if serving is not None:
            self._ports.end(serving)

    def _begin(self, template: Template, fork: Fork) -> socket.socket | None:
        """Let the session's init begin; a channel to it for what concerns ports, where the template has some."""
        asking = None
        answering: tuple[int, ...] = ()
        if template.expose_ports:
            try:
                asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            except OSError as exc:
                raise no_descriptors(exc) from exc
            answering = (theirs.detach(),)
        try:
            send_request(fork.channel, {"begin": True}, answering)
            if not wait_readable(fork.channel, timeout_s=self._limits.bringup_timeout_s):
                raise bringup_failed("the session's fork did not come up in time")
            answer = receive_report(fork.channel)[0]
            if "error" in answer:
                raise bringup_failed(f"the session's fork failed: {answer['error']}")
        except (ChannelClosed, OSError, CollimateError) as exc:
            if asking is not None:
                asking.close()
            if isinstance(exc, CollimateError):
                raise
            raise bringup_failed("the session's fork died while it came up") from exc
        finally:
            for fd in answering:
                os.close(fd)
        return asking

    def _fork(self, template: Template, kind: bytes) -> Fork:
        try:
            group = self._cgroups.create(
                memory_bytes=template.memory_mb * MIB,
                pids=template.pids + (kind == b"session"),
                brief=kind == b"once",
            )
        except OSError as exc:
            raise bringup_failed(f"no control group for the fork: {exc}") from exc
        try:
            zygote, forked = self._keepers[template].fork(kind, self._limits.bringup_timeout_s)
        except CollimateError:
            group.remove()
            raise
        fork = Fork(zygote, forked, group, out_of_reach=kind == b"once")
        try:
            group.add(pid_of(fork.main))
        except OSError as exc:
            self._dispose(fork)
            raise bringup_failed(f"the fork could not be put under its limits: {exc}") from exc
        return fork

    def _frame(self, template: Template, request: Exec) -> dict[str, Any]:
        frame: dict[str, Any] = {
            "seed": request.seed,
            "files": [(path, len(content)) for path, content in request.files],
        }
        if request.command is not None:
            frame.update(kind="command", command=request.command)
        elif request.commands is not None:
            frame.update(kind="commands", commands=request.commands)
        else:
            assert request.code is not None
            program = self._programs.name_of(request.code) if template.language is None else None
            if template.language is not None:
                frame.update(kind="language", code=request.code)
            elif program is None:
                frame.update(kind="code", code=request.code)
            else:
                frame.update(kind="program", program=program)
        return frame

    def _dispose(self, fork: Fork) -> None:
        if not fork.dispose(self._limits.kill_timeout_s):
            self._unclean += 1
            log.error("a fork could not be killed within %s s", self._limits.kill_timeout_s)

    def failure(self, template: Template) -> str | None:
        """Why no fork of this template can be had; None when one can."""
        return self._keepers[template].failure

    def facts(self) -> dict[str, Any]:
        """What health tells about the isolation."""
        notes = []
        if self._cgroups.kind == "none":
            notes.append(
                "no control groups: memory is limited per process, and the process limit is shared by all forks"
            )
        return {"cgroups": self._cgroups.kind, "zygotes": self._count, "unclean_forks": self._unclean, "notes": notes}

    def close(self) -> None:
        """End the zygotes and all forks with them; remove groups and files."""
        self._ports.close()
        for keeper in self._keepers.values():
            keeper.close()
        self._keepers.clear()
        self._cgroups.close()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
