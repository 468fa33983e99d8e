"""How the gateway's answers become ours: refusals as errors, sandboxes in the daemon's shape, bodies checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from collimate_rl._transport import Answer, refusal_fields
from collimate_rl.errors import CollimateError, DemoTierLimit, GatewayError, MalformedAnswer

LABEL_KEY: Final = "collimate"
"""The label under which `create_session(label=…)` is kept among a sandbox's labels."""

FAN_OUT: Final = {"demo": 4, "pro": 32, "ent": 64}
"""Forks per call, by the tier in a key's name."""

MAX_TTL_S: Final = 3600
CDP_PORT: Final = 9222


def tier_of(api_key: str) -> str | None:
    """`col_<tier>_…`: demo, pro or ent; None for a key of another form."""
    parts = api_key.split("_")
    return parts[1] if len(parts) >= 3 and parts[0] == "col" and parts[1] in FAN_OUT else None


def refusal(answer: Answer, address: str) -> CollimateError:
    """A gateway's refusal, or that of a daemon behind it, as an error."""
    text, code = refusal_fields(answer)
    if code == "demo_tier_limit":
        return DemoTierLimit(text, answer.status, code)  # its words are for the user, so nothing is added
    return GatewayError(f"{text} (status {answer.status}{f', {code}' if code else ''}, {address})", answer.status, code)


def recoded(error: GatewayError, code: str) -> GatewayError:
    """The same refusal under the code that the daemon would have given it."""
    return GatewayError(error.message, error.status, code)


def explained(error: GatewayError, port: int) -> GatewayError:
    """A refusal of a tunnel, with what to do about it."""
    if error.status == 403 and not isinstance(error, DemoTierLimit):
        why = "reaching a sandbox's ports is a Pro feature: use a key of the pro or the ent tier (col_pro_…, col_ent_…)"
    elif error.status == 409 and error.error_code in (None, "port_not_exposed"):
        why = f"port {port} is not exposed: bake the template with Ready(ports=[{port}]) and make a sandbox of that"
    else:
        return error
    return GatewayError(f"{why}; the gateway says: {error.message}", error.status, error.code)


def path(*parts: str, **query: str | None) -> str:
    """`/v1/` and the parts, each quoted, with what of the query was given."""
    for part in parts:
        if not part:
            raise ValueError("an id is a text of at least one character")
    asked = {name: value for name, value in query.items() if value is not None}
    quoted = "/".join(quote(part, safe="", errors="surrogatepass") for part in parts)
    return f"/v1/{quoted}{f'?{urlencode(asked)}' if asked else ''}"


def is_whole(value: object, low: int, high: int | None = None) -> bool:
    """Whether it is a whole number in these bounds; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high)


def mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedAnswer(f"the gateway's answer to {what} is no JSON object but {type(value).__name__}")
    return value


def with_id(value: object, what: str) -> dict[str, Any]:
    answer = mapping(value, what)
    if not isinstance(answer.get("id"), str) or not answer["id"]:
        raise MalformedAnswer(f"the gateway's answer to {what} names no id")
    return answer


def listed(value: object, *names: str) -> list[dict[str, Any]]:
    """The list under the first of these names."""
    answer = mapping(value, f"the list of {names[0]}")
    items = next((answer[name] for name in names if name in answer), None)
    if not isinstance(items, list):
        raise MalformedAnswer(f"the gateway's list of {names[0]} is {type(items).__name__}")
    return [with_id(item, names[0]) for item in items]


def as_session(value: object) -> dict[str, Any]:
    """A sandbox with `session_id` and `template_id` beside `id` and `template`, and the label of a session."""
    sandbox = with_id(value, "a sandbox")
    told: dict[str, Any] = {**sandbox, "session_id": sandbox["id"]}
    if "template" in sandbox:
        told.setdefault("template_id", sandbox["template"])
    labels = sandbox.get("labels")
    if isinstance(labels, Mapping) and isinstance(labels.get(LABEL_KEY), str):
        told["label"] = labels[LABEL_KEY]
    return told


def fork_answer(value: object) -> dict[str, Any]:
    answer = mapping(value, "a fork")
    children = answer.get("children")
    if not isinstance(children, list):
        raise MalformedAnswer("the gateway's answer to a fork lists no children")
    return {**answer, "children": [as_session(child) for child in children]}


def given(**fields: Any) -> dict[str, Any]:
    """A body of what is not None."""
    return {name: value for name, value in fields.items() if value is not None}


def url_answer(value: object) -> dict[str, Any]:
    answer = mapping(value, "connect-url")
    if not isinstance(answer.get("url"), str) or not answer["url"]:
        raise MalformedAnswer("the gateway minted a tunnel and its answer names no url")
    return answer
