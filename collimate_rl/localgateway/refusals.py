"""What the gateway refuses, in its error shape `{code, message}`."""

from __future__ import annotations

from typing import Any

from collimate_rl.errors import CollimateError


class Refusal(CollimateError):
    """The gateway's own refusal. `retry_after_s` is told in the header Retry-After."""

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message, status, code)
        self.retry_after_s = retry_after_s


class Proxied(CollimateError):
    """What the sandbox daemon refused an exec for, told in the daemon's own shape."""


def bad_request(message: str) -> Refusal:
    """400: the caller's fault."""
    return Refusal(400, "bad_request", message)


def not_found(what: str) -> Refusal:
    """404: it never was, is gone, or is another key's."""
    return Refusal(404, "not_found", f"there is no {what}")


def forbidden(message: str) -> Refusal:
    """403: this key may not."""
    return Refusal(403, "forbidden", message)


def conflict(code: str, message: str) -> Refusal:
    """409: not in this state."""
    return Refusal(409, code, message)


def at_capacity(message: str) -> Refusal:
    """503 before anything was done."""
    return Refusal(503, "at_capacity", message, retry_after_s=1)


def text_field(body: dict[str, Any], name: str, *, required: bool = True, longest: int = 512) -> str | None:
    """A string of 1 to `longest` characters, or None where it is not there and need not be."""
    value = body.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise bad_request(f"{name} must be a string of 1 to {longest} characters")
    return value


def number_field(body: dict[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number between two."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"{name} must be a whole number from {low} to {high}")
    return value
