"""The dashboard's token: how a request shows it, and the cookie that a browser gets for it.

A cookie holds no token: it is an end (Unix seconds) under a keyed digest, so that what leaks from a browser is good for
half a day at most, and only for looking. It stays good over a restart with the same token, and dies with the token.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

COOKIE = "collimate_dashboard"
COOKIE_LASTS_S = 12 * 3600
MIN_LENGTH = 16


class Token:
    """One secret. `ValueError` when it is too short to withstand guessing, or holds what no header can carry."""

    def __init__(self, secret: str, *, clock: Callable[[], float] = time.time) -> None:
        if len(secret) < MIN_LENGTH or not all("!" <= c <= "~" for c in secret):
            raise ValueError(
                f"the dashboard's token must have at least {MIN_LENGTH} characters of printable ASCII without blanks; "
                "`openssl rand -hex 24` makes one"
            )
        self._digest = hashlib.sha256(secret.encode()).digest()
        self._clock = clock

    def fits(self, given: str) -> bool:
        """Compared as digests, in constant time: neither length nor a common beginning shows."""
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(digest, self._digest)

    def cookie(self) -> str:
        """The value of a cookie that is good for `COOKIE_LASTS_S`."""
        ends = str(int(self._clock()) + COOKIE_LASTS_S)
        return f"{ends}.{self._sign(ends)}"

    def knows(self, cookie: str) -> bool:
        """Whether this cookie is one of ours and not past its end."""
        ends, _, signature = cookie.partition(".")
        genuine = hmac.compare_digest(signature.encode("utf-8", "surrogatepass"), self._sign(ends).encode())
        return genuine and ends.isascii() and ends.isdigit() and int(ends) > self._clock()

    def _sign(self, ends: str) -> str:
        return hmac.new(self._digest, b"cookie:" + ends.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
