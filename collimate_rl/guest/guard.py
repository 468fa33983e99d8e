"""Keeps a candidate's values data where a test would run them: as code, out of a pickle, or as a command.

A judge has a test's own code and values that a candidate chose. What the test runs whoever the candidate is, its plan's
run has run, too; all else of the kind ends the run.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any, Callable, Dict, Iterable, Set

from collimate_rl.guest.placeholder import UNKNOWN_TEXT, Placeholder
from collimate_rl.guest.recorder import Session

_RUNS_TEXT = ("eval", "exec", "compile")
_EVENTS = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")
_RESULT_AS_CODE = "runs a result as code"
_PICKLED: Set[str] = {
    *("collections.OrderedDict", "collections.Counter", "collections.defaultdict", "collections.deque"),
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("decimal.Decimal", "fractions.Fraction", "_codecs.encode"),
}
"""What a pickle of plain data may name."""
for _kind in ("set", "frozenset", "bytearray", "complex", "range", "slice", "list", "dict", "int", "str", "float"):
    _PICKLED.update(("builtins." + _kind, "__builtin__." + _kind))


class Guard:
    """One run's. `texts` are those that the plan's run met; `stop` ends a run that meets another."""

    def __init__(self, session: Session, planning: bool, texts: Iterable[str], stop: Callable[[], Any]) -> None:
        self.session = session
        self.planning = planning
        self.texts = set(texts)
        self.stop = stop

    def functions(self) -> Dict[str, Any]:
        """What stands in for the functions that run text."""
        return {name: self.guarded(getattr(builtins, name)) for name in _RUNS_TEXT}

    def guarded(self, real: Any) -> Any:
        """eval, exec or compile, for texts that the test has without any candidate: a candidate's own text would run
        beside the answers."""

        def run_text(source: Any, *spaces: Any, **options: Any) -> Any:
            text = repr(source)
            if isinstance(source, Placeholder) or UNKNOWN_TEXT in text:
                self.session.faults.append(_RESULT_AS_CODE)
                return Placeholder(self.session.notes)
            if isinstance(source, (str, bytes)):
                self.met(text)
            if real is compile:
                return real(source, *spaces, **options)
            frame = sys._getframe(1)
            return real(source, *(spaces or (frame.f_globals, frame.f_locals)), **options)

        return run_text

    def audited(self, event: str, args: Any) -> None:
        """The interpreter's audit hook: pickles that name more than plain data, and commands."""
        if event not in _EVENTS or (event == "pickle.find_class" and "%s.%s" % args in _PICKLED):
            return
        text = repr((event, args[:2]))
        if UNKNOWN_TEXT in text:
            self.session.faults.append(_RESULT_AS_CODE)
        self.met(text)

    def met(self, text: str) -> None:
        if self.planning:
            self.texts.add(text)
        elif text not in self.texts:
            self.stop()
