"""Reading a framework's rows: where the ground truth is, what the completion says, what its siblings share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from collimate_rl.seeds import DET_SEED, is_valid_seed, seed_from_key

TRUTH_COLUMNS: Final = ("reward_spec", "reward_model", "ground_truth")
"""Columns that hold a ground truth, in the order in which they are looked at; the first two hold it one level below."""

_SHAPES: Final = (
    {"reference", "generator"},
    {"test", "entry_point"},
    {"test_list"},
    {"assert_case"},
    {"inputs", "outputs"},
    {"test_cases"},
    {"public_test_cases"},
    {"private_test_cases"},
    {"input_output"},
    {"verification_info"},
    {"tests"},
)
"""Columns by which a row of a known data set is its own ground truth (`reward_spec_from_ground_truth`)."""

_CRN_KEYS: Final = ("crn_key", "uid", "index")


class Seeding(Protocol):
    """What of the settings says how candidates are seeded."""

    @property
    def seed_mode(self) -> str: ...
    @property
    def base_seed(self) -> str | None: ...


def ground_truth_of(row: Mapping[str, Any]) -> Any:
    """The row's ground truth in plain containers, unparsed; None where it has none (see `find_ground_truth`)."""
    return without_gaps(find_ground_truth(row))


def find_ground_truth(row: Mapping[str, Any]) -> Any:
    """Where the row's ground truth is, as it stands there; None where it has none. Cheap, however large it is.

    `reward_spec["ground_truth"]`, `reward_model["ground_truth"]`, `ground_truth`, else the row itself where its columns
    are those of a known data set.
    """
    for column in TRUTH_COLUMNS:
        value = row.get(column)
        if column != "ground_truth" and isinstance(value, Mapping):
            value = value.get("ground_truth")
        if not is_empty(value):
            return value
    there = {name for name, value in row.items() if not is_empty(value)}
    if any(shape <= there for shape in _SHAPES):
        return row
    return None


def is_empty(value: Any) -> bool:
    """Whether a column holds nothing: None, nothing of it, or a mapping whose values a table filled with None."""
    if isinstance(value, Mapping):
        return all(item is None for item in value.values())
    if value is None or not hasattr(value, "__len__"):
        return value is None
    try:
        return len(value) == 0
    except TypeError:  # an array of no dimension has a length only by name
        return False


def without_gaps(value: Any) -> Any:
    """Plain containers of a value from a table: arrays become lists, and keys that a table filled with None go."""
    if isinstance(value, Mapping):
        return {key: without_gaps(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        # None inside a list is a value (an expected None), never a filler
        return [plain(item) for item in value]
    return plain(value)


def plain(value: Any) -> Any:
    """The value without arrays and their scalars, as parquet readers give them: lists and numbers in their place."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    tolist = getattr(value, "tolist", None)
    return plain(tolist()) if callable(tolist) else value


def same_truth(one: Any, other: Any) -> bool:
    """Whether two ground truths are the same, for grading by one of them: equal is not enough, True equals 1."""
    if one is other or (isinstance(one, str) and isinstance(other, str)):
        return one is other or one == other
    try:
        return bool(one == other) and repr(one) == repr(other)
    except ValueError:  # arrays don't say whether they are equal
        return False


def text_of(completion: Any) -> str:
    """A completion's text: the string itself, or the last assistant message of a conversation; "" where there is none.

    A message's content may be text or a list of parts with `text`. ValueError for anything else (bytes, token ids):
    there is an answer in it that would be lost.
    """
    if isinstance(completion, str):
        return completion
    if completion is None:
        return ""
    messages = [completion] if isinstance(completion, Mapping) else plain(completion)
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise ValueError(f"a completion is text or a list of messages, not {completion!r:.100}")
    for message in reversed(messages):
        if message.get("role", "assistant") == "assistant":
            return _content(message.get("content"))
    return ""


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return ""


def seed_for(settings: Seeding, keys: Sequence[Mapping[str, Any]], shared: Any, name: str) -> str | None:
    """The seed that a candidate runs under: None in vanilla mode, one for all candidates of a prompt under CRN.

    Under CRN: the `crn_seed` of the first of `keys` that has one, as it stands; else derived from their `crn_key`,
    `uid` or `index`, else from `shared` (what siblings have in common: the prompt), salted with the base seed where one
    is set. ValueError for a malformed `crn_seed` (64 hex characters); `name` says whose it is.
    """
    if settings.seed_mode == "vanilla":
        return None
    if settings.seed_mode == "deterministic":
        return settings.base_seed or DET_SEED
    given = _first(keys, "crn_seed")
    if given is not None:
        if not is_valid_seed(given):
            raise ValueError(f"{name} has crn_seed {given!r}: a seed is 64 hex characters")
        return str(given)
    for key in _CRN_KEYS:
        value = _first(keys, key)
        if value is not None:
            return seed_from_key(str(value), settings.base_seed or "")
    return seed_from_key(shared if isinstance(shared, str) else _key_text(shared), settings.base_seed or "")


def _key_text(shared: Any) -> str:
    try:
        return json.dumps(shared, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys of several types have no order, and it may hold itself
        return repr(shared)


def _first(rows: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((row[key] for row in rows if row.get(key) is not None), None)
