"""`python -m producer submit`: a file of rows in, one line of verdicts per row out, in the file's order.

A row that cannot be graded never stops the others: it prints its error in its place.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from collimate_rl.errors import BatchConflict, CollimateError, QueueFull, RedisUnavailable, RunMisconfigured
from collimate_rl.formats import candidate_of, reward_spec_from_ground_truth
from collimate_rl.protocol import check_name
from collimate_rl.protocol.manifest import record_of
from producer.handle import BatchHandle
from producer.producer import Producer

EXIT_OK, EXIT_BAD_INPUT, EXIT_INFRA = 0, 2, 3
OUTAGE_BUDGET_S = 60.0
"""An outage longer than this, at submit, fails what has not been submitted yet."""
ANSWER_GRACE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a row does not say itself."""

    template: str = "py"
    entry: str = "solve"
    seed_mode: str = "vanilla"
    base_seed: str | None = None
    timeout_seconds: int = 30
    deadline_s: float = 3600.0
    with_inputs: bool = False
    """Let lines carry candidates and specs too."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the file, checked and extracted."""

    number: int
    id: str
    submit: dict[str, Any]


class BadLine(ValueError):
    """A line that is no row; the message says what is wrong with it."""


def read_row(number: int, line: bytes, defaults: Defaults) -> Row:
    """The row on line `number` (from 1). Raises `BadLine`.

    The id defaults to the first 16 hex digits of the line's sha256, so the same line is the same batch.
    """
    try:
        data = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise BadLine(f"not JSON: {exc}") from exc
    if not isinstance(data, dict):
        raise BadLine("not a JSON object")
    for name in ("ground_truth", "completions"):
        if name not in data:
            raise BadLine(f"{name} is missing")
    completions = data["completions"]
    if not isinstance(completions, list) or not all(isinstance(text, str) for text in completions):
        raise BadLine("completions is not a list of texts")
    entry = data.get("entry", defaults.entry)
    template = data.get("template", defaults.template)
    for name, value in (("entry", entry), ("template", template)):
        if not isinstance(value, str):
            raise BadLine(f"{name} is not a text")
    try:
        id = check_name("id", data.get("id", hashlib.sha256(line).hexdigest()[:16]))
        spec = reward_spec_from_ground_truth(data["ground_truth"], entry=entry)
        candidates = [candidate_of(spec, text, entry) for text in completions]
    except ValueError as exc:
        raise BadLine(str(exc)) from exc
    submit = {
        "id": id,
        "template": template,
        "candidates": candidates,
        "spec": spec,
        "seed_mode": defaults.seed_mode,
        "base_seed": defaults.base_seed,
        "timeout_seconds": data.get("timeout_seconds", defaults.timeout_seconds),
        "deadline_s": defaults.deadline_s,
    }
    return Row(number=number, id=id, submit=submit)


class FileRun:
    """Submits rows and writes their answers, in order, as soon as there is nothing left to wait for before them.

    write -- takes each output line, without its end.
    progress -- called with (answered, submitted) whenever these change.
    """

    def __init__(
        self,
        producer: Producer,
        defaults: Defaults,
        *,
        write: Callable[[str], None],
        progress: Callable[[int, int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.producer = producer
        self.defaults = defaults
        self.write = write
        self.progress = progress
        self.clock = clock
        self.sleep = sleep
        self.bad_input = False
        self.infra = False
        self._waiting: deque[tuple[Row, BatchHandle] | dict[str, Any]] = deque()
        self._answered = 0
        self._submitted = 0
        self._down: RedisUnavailable | None = None

    def run(self, lines: Iterable[bytes]) -> int:
        """Takes every line; returns the exit code: 0, 3 when anything is infra-flagged, 2 (which wins) on bad input."""
        for number, line in enumerate(lines, 1):
            line = line.rstrip(b"\r\n")
            if line.strip():
                self._waiting.append(self._take(number, line))
                self._submitted += 1
                self._flush(wait=False)
        self._flush(wait=True)
        if self.bad_input:
            return EXIT_BAD_INPUT
        return EXIT_INFRA if self.infra else EXIT_OK

    def _take(self, number: int, line: bytes) -> tuple[Row, BatchHandle] | dict[str, Any]:
        try:
            row = read_row(number, line, self.defaults)
            return row, self._submit(row)
        # BadLine is one, as is everything that `submit` finds wrong with a row
        except (ValueError, BatchConflict, RunMisconfigured) as exc:
            self.bad_input = True
            return {"line": number, "error": str(exc)}
        except (CollimateError, TimeoutError) as exc:
            self.infra = True
            return {"line": number, "id": row.id, "error": str(exc)}

    def _submit(self, row: Row) -> BatchHandle:
        if self._down is not None:
            raise self._down
        started, pause = self.clock(), 0.1
        while True:
            try:
                return self.producer.submit(**row.submit)
            except QueueFull:
                if self.clock() - started >= self.defaults.deadline_s:
                    raise
            except RedisUnavailable as exc:
                if self.clock() - started >= OUTAGE_BUDGET_S:
                    self._down = exc
                    raise
            self.sleep(pause)
            pause = min(2.0, pause * 2)

    def _flush(self, *, wait: bool) -> None:
        while self._waiting:
            head = self._waiting[0]
            if isinstance(head, dict):
                shown = head
            elif wait or head[1].done():
                shown = self._answer(*head)
            else:
                break
            self._waiting.popleft()
            self._answered += 1
            self.write(json.dumps(shown))
            if self.progress is not None:
                self.progress(self._answered, self._submitted)

    def _answer(self, row: Row, handle: BatchHandle) -> dict[str, Any]:
        try:
            result = handle.result(self.defaults.deadline_s + ANSWER_GRACE_S)
        except RunMisconfigured as exc:
            self.bad_input = True
            return {"line": row.number, "id": row.id, "error": str(exc)}
        except (CollimateError, TimeoutError) as exc:
            self.infra = True
            return {"line": row.number, "id": row.id, "error": str(exc)}
        self.infra = self.infra or bool(result.infra_errors)
        # Codes such as no_template: not the infrastructure's trouble, the run is set up wrongly.
        self.bad_input = self.bad_input or any(v.is_misconfigured for v in result.results)
        return {
            "id": row.id,
            "results": [verdict.as_json_data() for verdict in result.results],
            "batch": record_of(handle.batch, with_inputs=self.defaults.with_inputs),
        }
