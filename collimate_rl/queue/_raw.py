"""What redis-py returns, as bytes or text: its types allow for either, whatever the client is told to decode."""

from __future__ import annotations

from typing import Any


def text(raw: Any) -> str:
    return raw.decode("utf-8", "surrogatepass") if isinstance(raw, bytes) else str(raw)


def raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
