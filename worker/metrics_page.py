"""The page that Prometheus reads: a board's sums in the text format, written by prometheus-client."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from collimate_rl import __version__
from worker.metrics import FAMILIES, INFOS, Family
from worker.tally import Board


class BoardCollector(Collector):
    """Shows a board, and who it belongs to. `node` and `queue` are names of the settings."""

    def __init__(self, board: Board, *, node: str, queue: str) -> None:
        self._board = board
        self._infos: dict[str, dict[str, str]] = {
            "collimate_build_info": {"version": __version__, "python": platform.python_version()},
            "collimate_node_info": {"node": node, "queue": queue},
        }

    def collect(self) -> Iterator[Metric]:
        for name, text in INFOS.items():
            labels = self._infos[name]
            info = GaugeMetricFamily(name, text, labels=list(labels))
            info.add_metric(list(labels.values()), 1.0)
            yield info
        sums = self._board.sums()
        for name, family in FAMILIES.items():
            shown = _family(family, sums[name])
            if shown.samples:
                yield shown


def _family(family: Family, cells: dict[str, list[float]]) -> Metric:
    labels = [family.label] if family.label else []
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=labels)
        bounds = [*(str(bound) for bound in family.buckets), "+Inf"]
        for value, (*counts, total) in cells.items():
            histogram.add_metric([value] if labels else [], list(zip(bounds, accumulate(counts), strict=True)), total)
        return histogram
    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    simple = made(family.name, family.help, labels=labels)
    for value, (number,) in cells.items():
        if not math.isnan(number):
            simple.add_metric([value] if labels else [], number)
    return simple


class MetricsPage:
    """`text()` is the page of this instant."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, board: Board, *, node: str, queue: str) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BoardCollector(board, node=node, queue=queue))

    def text(self) -> bytes:
        return generate_latest(self._registry)
