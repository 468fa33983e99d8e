"""The guest programs that a zygote keeps compiled, and how an exec's code is recognised as one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from collimate_rl import guest


class GuestPrograms:
    """Trusted texts by name. Only these are ever compiled in a zygote; everything else is compiled in its fork."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = dict(texts)
        self._names = {hashlib.sha256(text.encode()).digest(): name for name, text in texts.items()}
        self._sizes = frozenset(len(text) for text in texts.values())

    @classmethod
    def known(cls) -> GuestPrograms:
        """Those that this release grades with and that run by themselves; the others are parts of an exec's code."""
        return cls({name: text for name, text in guest.programs().items() if "\ndef main(" in text})

    def name_of(self, code: str) -> str | None:
        """The name of the program whose text this is, else None."""
        if len(code) not in self._sizes:
            return None
        return self._names.get(hashlib.sha256(code.encode()).digest())
