"""Charts as SVG text, drawn from rows of numbers: bars for contenders, lines for growth. No script in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 760, 64, 200, 40, 44
_BAR, _GAP, _NAMES = 20, 10, 280
_FAR = 3.0
"""A bar so many times as long as the next would leave nothing of the others: it is broken off."""
_COLOURS = ("#1b6ca8", "#c4501b", "#2f855a", "#805ad5", "#b7791f", "#4a5568")
_STYLE = "font-family='system-ui,sans-serif' font-size='13' fill='#2d3748'"
_FRAME = "<rect width='100%' height='100%' fill='#ffffff'/>"


def bars(title: str, values: Mapping[str, float], *, unit: str, notes: Mapping[str, str] | None = None) -> str:
    """Horizontal bars, longest first, all from zero; `notes` stand behind a bar's number. Bars far beyond the rest are
    broken off, and show it by a gap."""
    ordered = sorted(values.items(), key=lambda item: -item[1])
    most = _longest([value for _, value in ordered])
    height = TOP + len(ordered) * (_BAR + _GAP) + 12
    room = WIDTH - _NAMES - RIGHT
    out = [_open(height), _text(12, 24, title, weight="bold")]
    for place, (name, value) in enumerate(ordered):
        y = TOP + place * (_BAR + _GAP)
        length = max(1.0, room * min(1.0, value / most))
        note = (notes or {}).get(name, "")
        out.append(_text(_NAMES - 8, y + 15, name, anchor="end"))
        out.append(f"<rect x='{_NAMES}' y='{y}' width='{length:.1f}' height='{_BAR}' fill='{_COLOURS[0]}'/>")
        if value > most:
            gap = _NAMES + 0.9 * room
            slant = f"{gap:.0f},{y + _BAR + 2} {gap + 8:.0f},{y - 2}"
            out.append(f"<polyline points='{slant}' stroke='#ffffff' stroke-width='5'/>")
        out.append(_text(_NAMES + length + 6, y + 15, f"{value:,.4g} {unit}" + (f"  {note}" if note else "")))
    return "\n".join([*out, "</svg>", ""])


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str) -> str:
    """Lines over logarithmic axes; points at or below zero have no place there and are left out."""
    kept = {name: [(a, b) for a, b in points if a > 0 and b > 0] for name, points in series.items()}
    everything = [point for points in kept.values() for point in points]
    if not everything:
        raise ValueError("a chart needs a point above zero")
    across = _Axis([a for a, _ in everything], LEFT, WIDTH - RIGHT)
    up = _Axis([b for _, b in everything], 320 - BOTTOM, TOP)
    out = [_open(320), _text(12, 24, title, weight="bold")]
    for value in across.ticks():
        at = across.place(value)
        out.append(f"<line x1='{at:.1f}' y1='{TOP}' x2='{at:.1f}' y2='{320 - BOTTOM}' stroke='#e2e8f0'/>")
        out.append(_text(at, 320 - BOTTOM + 18, _short(value), anchor="middle"))
    for value in up.ticks():
        at = up.place(value)
        out.append(f"<line x1='{LEFT}' y1='{at:.1f}' x2='{WIDTH - RIGHT}' y2='{at:.1f}' stroke='#e2e8f0'/>")
        out.append(_text(LEFT - 6, at + 4, _short(value), anchor="end"))
    out.append(_text((LEFT + WIDTH - RIGHT) / 2, 314, x, anchor="middle"))
    out.append(_text(WIDTH - RIGHT + 12, TOP + 4, y))
    for number, (name, points) in enumerate(kept.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{across.place(a):.1f},{up.place(b):.1f}" for a, b in points)
        out.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        out.extend(
            f"<circle cx='{across.place(a):.1f}' cy='{up.place(b):.1f}' r='3' fill='{colour}'/>" for a, b in points
        )
        at = TOP + 26 + 20 * number
        out.append(f"<rect x='{WIDTH - RIGHT + 12}' y='{at - 10}' width='12' height='12' fill='{colour}'/>")
        out.append(_text(WIDTH - RIGHT + 30, at, name))
    return "\n".join([*out, "</svg>", ""])


def _longest(ordered: Sequence[float]) -> float:
    """The value of a whole bar's length: the largest, or a little more than the next where it is far beyond."""
    if len(ordered) > 1 and 0 < _FAR * ordered[1] <= ordered[0]:
        return 1.25 * ordered[1]
    return (ordered[0] if ordered else 0.0) or 1.0


class _Axis:
    """A logarithmic scale from whole decades of the smallest to the largest value, onto pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _open(height: int) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' "
        f"viewBox='0 0 {WIDTH} {height}' {_STYLE}>{_FRAME}"
    )


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}'>{escape(words)}</text>"


def _short(value: float) -> str:
    for limit, sign in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{sign}"
    return f"{value:g}"
