"""Reading slime's Samples: shapes, ground truth, response, and the key that a group's common random numbers hang on.

A Sample is slime's own dataclass; nothing of slime is imported here, only the attributes that its contract names are
read: `group_index`, `index`, `prompt`, `response`, `label`, `metadata`, `status`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from collimate_rl.hooks.rows import is_empty, same_truth, seed_for, text_of
from collimate_rl.slime.settings import SlimeSettings

Nested: TypeAlias = Any
"""A Sample, a list of Samples, or a list of such lists; and the rewards in that same shape."""

META_KEY = "collimate"
"""Where `sample.metadata` gets the grading's account."""


def flatten(samples: Nested) -> list[Any]:
    """All Samples in order, whatever the nesting."""
    return list(_walk(samples))


def _walk(samples: Nested) -> Iterator[Any]:
    if isinstance(samples, (list, tuple)):
        for item in samples:
            yield from _walk(item)
    else:
        yield samples


def shaped_like(samples: Nested, values: list[Any]) -> Nested:
    """`values`, one per Sample, put back into the shape of `samples`."""
    rest = iter(values)

    def build(item: Nested) -> Nested:
        return [build(inner) for inner in item] if isinstance(item, (list, tuple)) else next(rest)

    return build(samples)


def metadata_of(sample: Any) -> Mapping[str, Any]:
    """The Sample's metadata; an empty mapping where there is none."""
    metadata = getattr(sample, "metadata", None)
    return metadata if isinstance(metadata, Mapping) else {}


def ground_truth_of(sample: Any) -> Any:
    """`sample.label`, else `sample.metadata` whole (its columns are told by shape); ValueError where both are empty."""
    label = getattr(sample, "label", None)
    if not is_empty(label):
        return label
    metadata = {key: value for key, value in metadata_of(sample).items() if key != META_KEY}
    if not metadata:
        raise ValueError(
            f"{describe(sample)} has no ground truth: neither in sample.label (slime's --label-key) nor in "
            "sample.metadata (slime's --metadata-key)"
        )
    return metadata


def response_of(sample: Any) -> str:
    """The completion's text; empty for a sample that was aborted before it said anything."""
    try:
        return text_of(getattr(sample, "response", None))
    except ValueError as error:
        raise ValueError(f"the response of {describe(sample)}: {error}") from error


def describe(sample: Any) -> str:
    """For messages: which sample this is."""
    return f"the sample with index {getattr(sample, 'index', None)} of group {getattr(sample, 'group_index', None)}"


def seed_of(sample: Any, settings: SlimeSettings) -> str | None:
    """The seed that this sample's candidate runs under: its metadata's keys count, else its prompt (`seed_for`)."""
    return seed_for(settings, [metadata_of(sample)], getattr(sample, "prompt", ""), describe(sample))


def partition(samples: list[Any], truth_of: Callable[[Any], Any] = ground_truth_of) -> list[tuple[Any, list[int]]]:
    """Splits samples into groups that share `group_index` and ground truth: (ground truth, positions), in order.

    Samples without a group_index that share a ground truth are one group: a call carries one prompt's samples then.
    """
    groups: list[tuple[Any, Any, list[int]]] = []
    for position, sample in enumerate(samples):
        truth = truth_of(sample)
        group_index = getattr(sample, "group_index", None)
        for known_index, known_truth, positions in groups:
            if known_index == group_index and same_truth(known_truth, truth):
                positions.append(position)
                break
        else:
            groups.append((group_index, truth, [position]))
    return [(truth, positions) for _, truth, positions in groups]
