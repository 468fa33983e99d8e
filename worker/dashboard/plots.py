"""Inline SVG from numbers: pure functions, no scripts, no style attributes (the page's policy forbids both).

A drawing has a viewBox and stretches to its box (`preserveAspectRatio="none"`) under strokes that keep their width, so
that it is as wide as a phone or a desk wants; words and numbers around it are HTML, and stay as large as the page's.
Colours come from the style sheet by class. What a drawing says is in its label, for those who don't see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from worker.dashboard import texts

WIDTH = 1000
HEIGHT = 100
PAD = 4
"""Above and below, so that a line at the edge shows with its whole width."""
MAX_POINTS = 480
MAX_LABEL = 500


@dataclass(frozen=True, kw_only=True)
class Point:
    """One bucket of time: `at` in Unix seconds, `value` None where the bucket is empty (a gap in the line)."""

    at: float
    value: float | None


def line_plot(
    points: Sequence[Point], *, label: str, low: float = 0.0, high: float = 1.0, area: bool = False
) -> Markup:
    """A line over time between `low` and `high`, oldest point left; empty buckets are gaps, lonely points are dots.

    Values outside [low, high] are drawn at the edge; what is not finite is a gap. At most `MAX_POINTS` of the latest
    points are drawn. Without any value it is an empty frame with the same label.
    """
    shown = sorted(points, key=lambda point: point.at)[-MAX_POINTS:]
    parts = [_grid()]
    for stretch in _stretches(shown, low, high):
        if len(stretch) == 1:
            x, y = stretch[0]
            parts.append(f'<path class="plot-dot" d="M{x:.1f} {y:.1f}h0"/>')
            continue
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in stretch)
        if area:
            first, last, base = stretch[0][0], stretch[-1][0], HEIGHT - PAD
            parts.append(f'<path class="plot-area" d="M{first:.1f} {base}L{path}L{last:.1f} {base}Z"/>')
        parts.append(f'<path class="plot-line" d="M{path}"/>')
    return _drawing(parts, label, "plot")


def bars(values: Iterable[float], *, label: str, high: float | None = None) -> Markup:
    """A bar per value, oldest left, from 0 up to `high` (by default the largest); zero is a bar without height."""
    shown = [value if math.isfinite(value) and value > 0 else 0.0 for value in values][-MAX_POINTS:]
    top = high if high is not None and high > 0 else max(shown, default=0.0)
    step = WIDTH / max(1, len(shown))
    gap = min(2.0, step / 4)
    parts = []
    for at, value in enumerate(shown):
        if value > 0 and top > 0:
            height = max(1.0, min(1.0, value / top) * (HEIGHT - PAD))
            parts.append(
                f'<rect class="plot-bar" x="{at * step + gap / 2:.1f}" y="{HEIGHT - height:.1f}" '
                f'width="{step - gap:.1f}" height="{height:.1f}"/>'
            )
    parts.append(f'<path class="plot-base" d="M0 {HEIGHT}H{WIDTH}"/>')
    return _drawing(parts, label, "plot")


def meter(share: float, *, label: str) -> Markup:
    """A horizontal bar filled to `share` (0 to 1; what is outside, or not finite, is drawn at the edge)."""
    filled = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    width = f"{filled * WIDTH:.1f}"
    parts = [
        f'<rect class="meter-all" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<rect class="meter-part" width="{width}" height="{HEIGHT}"/>',
    ]
    return _drawing(parts, label, "meter")


def _drawing(parts: Sequence[str], label: str, kind: str) -> Markup:
    head = (
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="'
        f'{escape(texts.harmless(texts.clip(label, MAX_LABEL)))}" focusable="false">'
    )
    # Numbers, fixed words, and a label that is made harmless and escaped.
    return Markup(head + "".join(parts) + "</svg>")


def _grid() -> str:
    middle = HEIGHT / 2
    return f'<path class="plot-grid" d="M0 {PAD}H{WIDTH}M0 {middle}H{WIDTH}M0 {HEIGHT - PAD}H{WIDTH}"/>'


def _stretches(points: Sequence[Point], low: float, high: float) -> list[list[tuple[float, float]]]:
    """Runs of neighbouring points that have values, in the drawing's units."""
    if not points:
        return []
    start, span = points[0].at, points[-1].at - points[0].at
    found: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point.value is None or not math.isfinite(point.value):
            if found[-1]:
                found.append([])
            continue
        x = (point.at - start) / span * WIDTH if span > 0 else WIDTH / 2
        part = (min(high, max(low, point.value)) - low) / (high - low)
        found[-1].append((x, HEIGHT - PAD - part * (HEIGHT - 2 * PAD)))
    return [stretch for stretch in found if stretch]
