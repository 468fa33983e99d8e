"""`Session`: a sandbox of a gateway as an object that can be forked, suspended and reached; `ForkGroup`: its children.

A session is a `Sandbox`, so exec and file IO are the same; what is added here only a gateway has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, TypeVar

from collimate_rl._gateway_wire import is_whole
from collimate_rl.errors import CollimateError, GatewayError
from collimate_rl.gateway import GatewayClient
from collimate_rl.sandbox import ExecResult, Sandbox

DEFAULT_TIMEOUT: Final = 30
MAX_THREADS: Final = 64

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Session(Sandbox):
    """A sandbox of `template` on a gateway; created on `start` or on entering the context, deleted on leaving it.

    Without a `client` it is a `GatewayClient` with the environment's key. `label` and `labels` name it, `secret_refs`
    are put into its environment by the gateway and are in no template.
    `Session.attach(client, id)` and `Session.adopt(client, id)` take over one that is there.
    """

    _client: GatewayClient

    def __init__(
        self,
        template: str,
        *,
        client: GatewayClient | None = None,
        egress: Mapping[str, Any] | None = None,
        default_timeout: int = DEFAULT_TIMEOUT,
        keep_on_error: bool = False,
        default_seed: str | None = None,
        label: str | None = None,
        labels: Mapping[str, str] | None = None,
        secret_refs: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            template,
            client=client or GatewayClient(),
            egress=egress,
            default_timeout=default_timeout,
            keep_on_error=keep_on_error,
            default_seed=default_seed,
        )
        self.label = label
        self.labels = labels
        self.secret_refs = secret_refs
        self.fork_kind: str | None = None
        """How this session was forked of another, where the gateway says: "files" is a copy of the files alone."""

    @property
    def id(self) -> str | None:
        """The sandbox's id; None before it was created and after it was closed."""
        return self.session_id

    def __enter__(self) -> Session:
        super().__enter__()
        return self

    def _create(self) -> dict[str, Any]:
        return self._client.create_sandbox(
            self.template, label=self.label, labels=self.labels, egress=self.egress, secret_refs=self.secret_refs
        )

    def fork(self, label: str | None = None) -> Session:
        """One child, which is the caller's to close."""
        return self.fork_group(1, labels=None if label is None else [label]).children[0]

    def fork_group(self, count: int, *, labels: Sequence[str] | None = None) -> ForkGroup:
        """`count` children at once: all of them, or none and an error. Close the group, or use it as a context manager.

        Asked for in chunks of the tier's fan-out cap; when one fails, the children of those before it are deleted.
        """
        if not is_whole(count, 1):
            raise ValueError(f"a group has at least one child, not {count!r}")
        if labels is not None and (isinstance(labels, str) or len(labels) != count):
            raise ValueError(f"labels is a list with one label for each of the {count} children")
        parent = self._live()
        children: list[Session] = []
        try:
            while len(children) < count:
                start = len(children)
                asked = min(count - start, self._client.fan_out)
                answer = self._client.fork(
                    parent, asked, labels=None if labels is None else list(labels[start : start + asked])
                )
                children += [self._child(child, answer) for child in answer["children"]]
                if len(children) != start + asked:
                    raise GatewayError(
                        f"the gateway made {len(children) - start} forks where {asked} were asked for: none is kept"
                    )
        except BaseException:
            _close_each(children)
            raise
        return ForkGroup(self, children)

    def _child(self, child: Mapping[str, Any], answer: Mapping[str, Any]) -> Session:
        made = Session.adopt(
            self._client, child["id"], template=self.template, egress=self.egress, default_timeout=self.default_timeout
        )
        endpoints = child.get("endpoints")
        made.endpoints = endpoints if isinstance(endpoints, dict) else {}
        kind = child.get("fork_kind", answer.get("fork_kind"))
        made.fork_kind = kind if isinstance(kind, str) else None
        made.default_seed = self.default_seed
        return made

    def suspend(self) -> dict[str, Any]:
        """Freeze it; the gateway's word on its state."""
        return self._client.suspend(self._live())

    def resume(self) -> dict[str, Any]:
        """Let it go on; the gateway's word on its state."""
        return self._client.resume(self._live())


class ForkGroup:
    """The children of one fork, in order. Leaving the context closes every child, and never the parent."""

    def __init__(self, parent: Session, children: Sequence[Session]) -> None:
        self.parent = parent
        self.children: tuple[Session, ...] = tuple(children)

    def __len__(self) -> int:
        return len(self.children)

    def __iter__(self) -> Iterator[Session]:
        return iter(self.children)

    def __getitem__(self, index: int) -> Session:
        return self.children[index]

    def __enter__(self) -> ForkGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def map(
        self,
        function: Callable[..., T],
        items: Sequence[Any] | None = None,
        *,
        concurrency: int | None = None,
    ) -> list[T]:
        """`function(child)`, or `function(child, item)` with one of `items` each, side by side; results in order.

        All of them are run to their end; then the first error, in the children's order, is raised.
        """
        if items is not None and len(items) != len(self.children):
            raise ValueError(f"{len(items)} items for {len(self.children)} children")
        if not self.children:
            return []
        threads = min(len(self.children), concurrency or MAX_THREADS)
        with ThreadPoolExecutor(threads, thread_name_prefix="fork-group") as pool:
            if items is None:
                futures = [pool.submit(function, child) for child in self.children]
            else:
                futures = [pool.submit(function, child, item) for child, item in zip(self.children, items, strict=True)]
        return [future.result() for future in futures]

    def exec_each(
        self,
        command: str | Sequence[str] | None = None,
        *,
        code: str | Sequence[str] | None = None,
        files: Sequence[Mapping[str, str]] | None = None,
        timeout_seconds: int | None = None,
        seeds: Sequence[str | None] | None = None,
        concurrency: int | None = None,
    ) -> list[ExecResult]:
        """Run in every child, side by side; results in the children's order.

        `command` and `code` are one text for all, or a list with one for each; `seeds` has one for each.
        """
        count = len(self.children)
        commands, codes = _for_each(command, count, "commands"), _for_each(code, count, "codes")
        if seeds is not None and len(seeds) != count:
            raise ValueError(f"{len(seeds)} seeds for {count} children")
        drawn = [None] * count if seeds is None else list(seeds)

        def run(child: Session, given: tuple[str | None, str | None, str | None]) -> ExecResult:
            mine, program, seed = given
            return child.exec(mine, code=program, files=files, timeout_seconds=timeout_seconds, seed=seed)

        return self.map(run, list(zip(commands, codes, drawn, strict=True)), concurrency=concurrency)

    def close(self) -> None:
        """Delete every child that is still there; what cannot be deleted is logged, and left to the gateway."""
        _close_each(self.children)


def open_session(template: str, *, client: GatewayClient | None = None, **options: Any) -> Session:
    """A started session of `template`; options as `Session`'s. Close it, or use it as a context manager."""
    session = Session(template, client=client or GatewayClient(), **options)
    session.start()
    return session


def _for_each(given: str | Sequence[str] | None, count: int, what: str) -> list[str | None]:
    if given is None or isinstance(given, str):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{len(given)} {what} for {count} children")
    return list(given)


def _close_each(sessions: Sequence[Session]) -> None:
    def close(session: Session) -> None:
        try:
            session.close()
        except CollimateError as error:
            _log.warning("session %s could not be deleted: %s", session.session_id, error)

    if sessions:
        with ThreadPoolExecutor(min(len(sessions), MAX_THREADS), thread_name_prefix="close") as pool:
            list(pool.map(close, sessions))
