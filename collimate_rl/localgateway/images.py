"""The shared catalog: what the node's daemon can fork, as images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Images:
    """Each of the node's templates is a public image of the same id and name."""

    def __init__(self, templates: Iterable[str]) -> None:
        self.names = tuple(templates)

    def rows(self) -> list[dict[str, Any]]:
        """As `GET /v1/images` lists them."""
        return [
            {
                "id": name,
                "name": name,
                "image": f"local/{name}",
                "visibility": "public",
                "tier": "demo",
                "description": "a warm interpreter on this machine",
            }
            for name in self.names
        ]

    def resolve(self, image: str) -> str | None:
        """The catalog's name for an image reference, or None.

        A reference with a registry, a tag or a digest means the image of its last part: `docker.io/library/python:3.12`
        is `python`. No image is pulled here, so tags are not looked at.
        """
        if image in self.names:
            return image
        last = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        return last if last in self.names else None
