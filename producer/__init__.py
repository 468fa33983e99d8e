"""The trainer's side of the queue: submit batches, wait for their answers.

    from producer import Producer

    with Producer("redis://localhost:6379/0", run="demo") as producer:
        handle = producer.submit(template="py", candidates=[...], spec=spec)
        rewards = handle.result().rewards()

`python -m producer submit FILE.jsonl` does the same for a file. Names are imported when they are first used, so that
the command can say in a line which extra is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from producer.handle import BatchHandle, as_completed
    from producer.producer import Producer

__all__ = ["BatchHandle", "Producer", "as_completed"]

_HOMES: Final = {"BatchHandle": "handle", "Producer": "producer", "as_completed": "handle"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
