"""The trainer's side of the queue: submit batches, wait for their answers.

    from producer import Producer

    with Producer("redis://localhost:6379/0", run="demo") as producer:
        handle = producer.submit(template="py", candidates=[...], spec=spec)
        rewards = handle.result().rewards()

`python -m producer submit FILE.jsonl` does the same for a file.
"""

from __future__ import annotations

from producer.handle import BatchHandle, as_completed
from producer.producer import Producer

__all__ = ["BatchHandle", "Producer", "as_completed"]
