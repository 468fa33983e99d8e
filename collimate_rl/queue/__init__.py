"""The queue: Redis clients, the scripts as typed calls, the codec, and the edge towards rq.

`batches.BatchQueue` is the centre; `clients` connects, `server_check` refuses servers that would lose batches,
`server` starts one of our own, `codec` packs and unpacks, `rq_edge` and `rq_worker` know rq.

Importing it without its libraries is a `ModuleNotFoundError` that names the extra which brings them.
"""

from __future__ import annotations

import importlib.util

_missing = [name for name in ("redis", "rq", "msgpack") if importlib.util.find_spec(name) is None]
if _missing:
    raise ModuleNotFoundError(
        f"the queue needs {', '.join(_missing)}, not installed here. Install the extra: pip install "
        "'collimate-rl[queue]' (on a worker's node: 'collimate-rl[worker]')",
        name=_missing[0],
    )
