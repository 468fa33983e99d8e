"""The guest programs that a zygote keeps compiled, and how an exec's code is recognised as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from collimate_rl import guest
from collimate_rl.guest.runner import JOB
from collimate_rl.sandboxd.jobs import check_job
from collimate_rl.sandboxd.wire import Exec, bad_request


class GuestPrograms:
    """Trusted texts by name. Only these are ever compiled in a zygote; everything else is compiled in its fork."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = dict(texts)
        """What a zygote loads, by name."""
        if "runner" in self.texts:
            self.texts["runner"] = guest.program("held")
        self.codes = tuple(texts.values())
        """The same texts as an exec brings them."""
        self._names = dict(zip(self.codes, texts, strict=True))
        self._sizes = frozenset(map(len, self.codes))

    @classmethod
    def known(cls) -> GuestPrograms:
        """Those that this release grades with and that run by themselves; the others are parts of an exec's code, and
        `held` is what a zygote loads for the runner."""
        texts = guest.programs().items()
        return cls({name: text for name, text in texts if "\ndef main(" in text and name != "held"})

    def name_of(self, code: str) -> str | None:
        """The name of the program whose text this is, else None."""
        return self._names.get(code) if len(code) in self._sizes else None

    def held_job(self, request: Exec) -> dict[str, Any] | None:
        """The job of a one-shot exec whose candidate can be held from outside its fork; None for any other exec.

        CollimateError `bad_request` for a runner's job that is none: the candidate is not to answer for that.
        """
        if (
            request.code is None
            or [path for path, _ in request.files] != [JOB]
            or self.name_of(request.code) != "runner"
        ):
            return None
        try:
            job = json.loads(request.files[0][1])
        except (ValueError, RecursionError) as exc:
            raise bad_request(f"the runner's job is no JSON: {exc}") from None
        if not isinstance(job, dict):
            raise bad_request("the runner's job is no JSON object")
        if job.get("sole") is not True or job.get("id") is not None or job.get("program") is True:
            return None
        check_job(job)
        return job
