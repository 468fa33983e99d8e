"""The calls that a test makes of the candidate: recorded while planning, answered from the candidate's frames after.

A session runs one test once, step by step (a step is one run of a statement on the test's outer level). Inside a step,
each call must equal the plan's next op. One that doesn't leaves the plan: from there to the step's end, calls are
recorded, and answered by placeholders or by what the same call gave before, so that one round finds as much of the
longer plan as it can. What a session concludes counts only while no call has left the plan and no planned op of a
finished step was left out.
"""

from __future__ import annotations

import datetime
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from collimate_rl.guest.answers import Reader, changes_of, holds_nan, no_class, refuse_records, replace_content
from collimate_rl.guest.builder import Builder
from collimate_rl.guest.encoder import Encoder
from collimate_rl.guest.placeholder import Placeholder, index_of
from collimate_rl.guest.plain import BadTree, Tree, Unencodable, dumps, nearest_builtin

_MAX_ARGUMENTS = 4 << 20
_MAX_GROWTH = 8 << 20
_DATETIME = datetime.datetime
SPAN = 10**9
"""Steps that one test of a file can have."""
SPACE = "__judge__"
_STANDS_IN = "_collimate_stands_in"


def stand_in_exception(name: str) -> type:
    """What a test gets for an exception class that the candidate is to define."""
    return type(name, (Exception,), {"__module__": SPACE, _STANDS_IN: True})


def with_base(known: Any, base: Any) -> Any:
    """A stand-in as the class that the candidate made of it: with the builtin exception that it derives from."""
    if not vars(known).get(_STANDS_IN) or base is None or issubclass(known, base):
        return known
    try:
        return type(known.__name__, (known, base), {"__module__": SPACE})
    except TypeError:
        return known  # no class can have both


class Plan:
    """Ops in order; `steps[i]` is the step in which op i is called."""

    def __init__(self, ops: List[Tree], steps: List[int]) -> None:
        self.ops = ops
        self.steps = steps
        self.texts = [dumps(op) for op in ops]


class Session:
    """One run of a test. Without `frames` it plans: no call is answered.

    `frames[i]` is what the candidate's op i gave, None when it has no good frame. `on_dead(i)` is called when the test
    wants the answer of such an op, `on_full()` when the plan has grown by `cap` ops; neither returns. `class_named`
    finds the test's class of a name: exceptions are raised of it, records made of it again.
    """

    def __init__(
        self,
        plan: Plan,
        frames: Optional[List[Any]],
        cap: int,
        on_dead: Callable[[int], Any],
        on_full: Callable[[], Any],
    ) -> None:
        self.plan = plan
        self.frames = frames
        self.cap = cap
        self.on_dead = on_dead
        self.on_full = on_full
        self.class_named: Callable[[str], Any] = no_class
        self.raised: Optional[BaseException] = None
        self.raised_by = -1
        self.position = 0
        self.stdout = sys.stdout
        self.off = frames is None
        self.calls = 0
        self.notes: List[str] = []
        self.faults: List[str] = []
        self.flags: Set[str] = set()
        self.news: Set[str] = set()  # those of the flags that whoever asks may clear
        self.lasting: Set[str] = set()  # what is in the test's own objects now, and so in all that comes
        self.grown = Plan([], [])
        self._room = _MAX_GROWTH
        self._known: Dict[str, int] = {}
        for i in range(len(plan.ops) if frames else 0):
            self._known.setdefault(plan.texts[i], i)
        self._lost = frames is None
        self._hole = False
        self._step = 0
        self._results: Dict[int, Any] = {}
        self._renumbered: Dict[int, int] = {}
        self._iterators: Dict[int, int] = {}
        self._derived = False

    def step(self) -> None:
        """A statement on the outer level begins."""
        self._step += 1
        self._hole = False
        if self.frames is None:
            return
        self._lost = False
        steps = self.plan.steps
        while self.position < len(steps) and steps[self.position] < self._step:
            self.position += 1
            self.off = True

    def opens(self, k: int, whole: bool) -> None:
        """Test k of a file begins. Its steps have numbers of their own, so that a test that ended early moves none of
        the later ones; one that ran `whole` has made all of its planned calls, or has left the plan."""
        self._step = k * SPAN
        self._hole = False
        if self.frames is None:
            return
        self._lost = False
        steps = self.plan.steps
        while self.position < len(steps) and steps[self.position] < self._step:
            self.position += 1
            self.off = self.off or whole

    def call(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The candidate's function `name` is called by the test."""
        self.calls += 1
        encoder = Encoder(self._node, _MAX_ARGUMENTS)
        op = self._op(encoder, name, args, kwargs)
        if not self._lost:
            i = self.position
            if op is not None and self._planned(i, op):
                self.position += 1
                self._renumbered[i] = len(self.grown.ops)
                self._record(op)
                value = self._answer(i, encoder)
                self._results[i] = value
                if type(value) is types.GeneratorType:
                    self._iterators[id(value)] = i
                return value
            self._lost = self.off = True
        if op is None:
            self._hole = True
        if self._hole:
            return Placeholder(self.notes)
        text = dumps(op)
        self.cap -= 1
        self._room -= len(text)
        if min(self.cap, self._room) < 0:
            self.on_full()
        self._record(op)
        known = self._known.get(text)
        if known is not None and '["p",' not in self.plan.texts[known]:
            return self._answer(known, encoder)
        return Placeholder(self.notes, len(self.grown.ops) - 1)

    def _record(self, op: Tree) -> None:
        self.grown.ops.append(op)
        self.grown.steps.append(self._step)

    def _op(self, encoder: Encoder, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tree:
        """The call as data, in the growing plan's numbers; None when it depends on what isn't known yet."""
        self._derived = False
        try:
            op = {"f": ["n", name], "a": encoder.encode(tuple(self._unread(value) for value in args))}
            if kwargs:
                op["k"] = encoder.encode({key: self._unread(value) for key, value in kwargs.items()})
            refuse_records([op["a"], op.get("k")])
        except Unencodable as fault:
            if not self._derived:
                self.faults.append("passes %s" % fault.reason)
            return None
        return op

    def _node(self, value: Any) -> Tree:
        """The encoder's question: a placeholder or an iterator of op k, and what the pins hide from the codec."""
        if type(value) is Placeholder:
            index = index_of(value)
            if index is None:
                self._derived = True
                raise Unencodable("a value that isn't known yet")
            return ["p", index]
        if type(value) is _Unread:
            return ["p", value.index]
        if type(value) is _DATETIME:
            return ["d", "datetime", value.isoformat()]
        return None

    def _unread(self, value: Any) -> Any:
        """An iterator that op k gave and that nobody has begun to read: encoding would drain it."""
        k = self._iterators.get(id(value))
        if k is None or self._results[k] is not value or not _unstarted(value):
            return value
        return _Unread(self._renumbered[k])

    def _planned(self, i: int, op: Tree) -> bool:
        """Whether the call is the plan's next op, with "the result of op k" read as what op k gave."""
        if i >= len(self.plan.ops) or self.plan.steps[i] != self._step:
            return False
        text = self.plan.texts[i]
        if '["p",' not in text:
            return text == dumps(op)
        planned = self.plan.ops[i]
        builder = Builder(self._result)
        encoder = Encoder(self._node, _MAX_ARGUMENTS)
        try:
            args = builder.build(planned["a"])
            kwargs = builder.build(planned["k"]) if "k" in planned else {}
            return dumps(self._op(encoder, planned["f"][1], args, kwargs)) == dumps(op)
        except BadTree:
            return False

    def _result(self, node: Tree) -> Any:
        """The builder's question while a planned op is read."""
        if node[0] != "p" or node[1] not in self._results:
            raise BadTree("no result yet")
        return self._results[node[1]]

    def _answer(self, i: int, encoder: Encoder) -> Any:
        """What the candidate's op i gave: its changes to the arguments, then its value or its exception."""
        assert self.frames is not None
        frame = self.frames[i] if i < len(self.frames) else None
        if frame is None:
            return self._dead(i)
        body, printed = frame
        reader = Reader(encoder, self.class_named)
        try:
            changes = changes_of(encoder, reader, body.get("u"))
            value = self._exception(reader, body["x"]) if "x" in body else reader.read(body["v"])
        except (BadTree, KeyError, TypeError, ValueError, AttributeError):
            self.flags.add("bad_frame")
            return self._dead(i)
        for mine, content in changes:
            replace_content(mine, content)
        if holds_nan(body):
            self._flag("nan")
            if holds_nan(body.get("u")):
                self.lasting.add("nan")
        if printed and sys.stdout is not self.stdout:
            sys.stdout.write(printed)
        if "x" in body:
            self.raised, self.raised_by = value, i
            raise value
        return value

    def _dead(self, i: int) -> Any:
        """The test wants an answer that there isn't. A run that has left the plan may go on: it concludes nothing."""
        if not self.off:
            self.on_dead(i)
        return Placeholder(self.notes)

    def _exception(self, reader: Reader, tree: Tree) -> BaseException:
        """The exception to raise: of the test's own class of that name where it has one, else the nearest builtin."""
        raised: Any = reader.read(tree)
        if not isinstance(raised, BaseException):
            raise BadTree("no exception")
        names = tree[1]
        for name in names:
            known = self.class_named(name[1:]) if name[:1] == "*" else None
            if isinstance(known, type) and issubclass(known, BaseException):
                known = with_base(known, nearest_builtin(names))
                try:
                    raised = known(*raised.args)
                except Exception:
                    raised = known.__new__(known, *raised.args)
                break
            if nearest_builtin([name]) is not None:
                break
        if isinstance(raised, (StopIteration, StopAsyncIteration, GeneratorExit)):
            self._flag("ends_iteration")
        if isinstance(raised, getattr(sys.modules.get("unittest"), "SkipTest", ())):
            self._flag("skips")
        return raised  # type: ignore[no-any-return]

    def _flag(self, name: str) -> None:
        self.flags.add(name)
        self.news.add(name)


class _Unread:
    def __init__(self, index: int) -> None:
        self.index = index


def _unstarted(generator: Any) -> bool:
    if generator.gi_frame is None:
        return False
    suspended = getattr(generator, "gi_suspended", None)
    return generator.gi_frame.f_lasti < 0 if suspended is None else not suspended
