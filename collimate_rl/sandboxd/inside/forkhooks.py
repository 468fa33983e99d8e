"""At-fork hooks of `random` and `threading`, kept from running in the forks of the zygote.

Both are made for processes that fork with threads running or generators shared. The zygote is single-threaded and an
exec seeds its own generator, so there they would only cost: a fresh fork copies every page that they touch. A
candidate that forks must have them: they are registered when its exec begins.
"""

from __future__ import annotations

import os
from typing import Any, Callable

_HOOKED = ("random", "threading")


class DeferredHooks:
    """Imports the modules on construction, which must be the first to do so; `register` hands their hooks over."""

    def __init__(self) -> None:
        self._hooks: list[dict[str, Callable[[], Any]]] = []
        register = os.register_at_fork

        def keep(**hooks: Callable[[], Any]) -> None:
            self._hooks.append(hooks)

        os.register_at_fork = keep  # type: ignore[assignment]
        try:
            for name in _HOOKED:
                __import__(name)
        finally:
            os.register_at_fork = register

    def register(self) -> None:
        """For this process's own forks."""
        for hooks in self._hooks:
            os.register_at_fork(**hooks)
