"""What Retry-After does: waited for within the budget, told of where it is beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pytest

from collimate_rl._retry import GATEWAY_NON_IDEMPOTENT, IDEMPOTENT, NON_IDEMPOTENT, RetryPolicy, retry_after_s
from collimate_rl._transport import Answer, Sender
from collimate_rl.errors import CollimateError

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("9" * 400, 999_999_999_999.0),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("soon", None),
        ("Sun, 01 Mar 2026 12:00:09 GMT", 9.0),
        ("Sun, 01 Mar 2026 12:00:09 -0000", 9.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sun, 99 Mar 2026 11:00:00 GMT", None),
    ],
)
def test_both_forms_of_the_header(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text, lambda: NOW) == seconds


class Scripted:
    """A transport that gives its answers in order."""

    address = "nowhere"

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Mapping[str, str]] = []

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Answer:
        self.asked.append(headers or {})
        return self.answers.pop(0)

    def close(self) -> None: ...


def refused(code: str, after: str | None, status: int = 429) -> Answer:
    headers = {} if after is None else {"retry-after": after}
    return Answer(status=status, headers=headers, body=b'{"code":"%s","message":"later"}' % code.encode())


FINE = Answer(status=200, body=b'{"id":"s"}')


def send(transport: Scripted, pauses: list[float], rule: Any, **policy: Any) -> Any:
    sender = Sender(
        transport,
        RetryPolicy(**policy),
        headers={"Authorization": "Bearer k"},
        sleep=pauses.append,
        uniform=lambda low, high: high,
    )
    return sender.json("POST", "/v1/sandboxes", {}, rule=rule, timeout_s=1)


@pytest.mark.parametrize("rule", [IDEMPOTENT, GATEWAY_NON_IDEMPOTENT])
def test_it_is_waited_for_and_the_jitter_comes_on_top(rule: Any) -> None:
    pauses: list[float] = []
    transport = Scripted(refused("at_capacity", "4", 503), refused("rate_limited", "2"), FINE)
    assert send(transport, pauses, rule) == {"id": "s"}
    assert pauses == [4.15, 2.3]
    assert transport.asked == [{"Authorization": "Bearer k"}] * 3


def test_what_is_beyond_the_budget_is_told_at_once() -> None:
    pauses: list[float] = []
    transport = Scripted(refused("at_capacity", "20"), refused("at_capacity", "20"))
    with pytest.raises(CollimateError) as caught:
        send(transport, pauses, GATEWAY_NON_IDEMPOTENT, budget_s=30.0)
    assert (caught.value.error_code, caught.value.retry_after_s) == ("at_capacity", 20.0)
    assert pauses == [20.15]


def test_the_last_pause_is_what_is_left() -> None:
    pauses: list[float] = []
    transport = Scripted(refused("at_capacity", "30"), FINE)
    assert send(transport, pauses, GATEWAY_NON_IDEMPOTENT, budget_s=30.0) == {"id": "s"}
    assert pauses == [30.0]


@pytest.mark.parametrize(
    ("rule", "code", "after"),
    [
        (NON_IDEMPOTENT, "rate_limited", "0"),
        (GATEWAY_NON_IDEMPOTENT, "rate_limited", None),
        (GATEWAY_NON_IDEMPOTENT, "demo_tier_limit", "0"),
        (GATEWAY_NON_IDEMPOTENT, "quota_exceeded", "0"),
        (GATEWAY_NON_IDEMPOTENT, "draining", "0"),
        (GATEWAY_NON_IDEMPOTENT, "session_bringup_failed", "0"),
    ],
)
def test_a_header_alone_makes_nothing_safe_to_send_again(rule: Any, code: str, after: str | None) -> None:
    transport = Scripted(refused(code, after), FINE)
    with pytest.raises(CollimateError):
        send(transport, [], rule)
    assert len(transport.asked) == 1


def test_no_retries_means_none() -> None:
    transport = Scripted(refused("at_capacity", "0"), FINE)
    with pytest.raises(CollimateError):
        send(transport, [], GATEWAY_NON_IDEMPOTENT, retries=0)
    assert len(transport.asked) == 1
