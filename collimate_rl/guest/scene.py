"""One run of a test: its code, made ready once; its namespace, with recorders for the names that the candidate defines.

A run ends in a report, data that says outright what happened: `returned` when the test ran to its end, `off` when a
call left the plan (with the longer `plan`), `dead` when it wanted the answer of an op that has none. Nothing about a
run is told by how its process ends.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Set

from collimate_rl.guest.guard import Guard
from collimate_rl.guest.pins import pin
from collimate_rl.guest.placeholder import READS, Placeholder, hope
from collimate_rl.guest.planner import instrument, read_names, reads_check, wanted_names
from collimate_rl.guest.prompt import read_prompt
from collimate_rl.guest.pytests import Unsupported, stand_in
from collimate_rl.guest.reach import Reach
from collimate_rl.guest.recorder import SPACE, Plan, Session, stand_in_exception
from collimate_rl.guest.testfile import PASSED, SKIPPED, TestFile, definitions

PLAIN_MODULES = (
    *("builtins", "collections", "collections.abc", "datetime", "decimal", "fractions", "numbers", "numpy", "types"),
    *("typing", SPACE),
)
"""Modules whose classes a plain value can be of."""


class Fault(Exception):
    """The row is at fault, whoever the candidate is."""


class Script:
    """A row's code, read and compiled once for all runs."""

    def __init__(self, row: Dict[str, Any]) -> None:
        self.entry: Optional[str] = row["entry"]
        self.seed: int = row["seed"]
        self.clock: float = row["clock"]
        self.refused = set(row["refused"])
        self.module: str = row["module"]
        self.file: bool = row["file"]
        self.only: Optional[List[str]] = row["only"]
        self.lenient: bool = row["lenient"]
        self.names: List[str] = []
        prompt = read_prompt(row["prompt"], self.entry)
        stubs, defined = prompt.stubs, set(prompt.defined)
        self.codes: List[Any] = [compile(prompt.source, "<prompt>", "exec", 0, True)]
        names = []
        self.cases = 0
        self.modules: Set[str] = set()
        for piece, source in (("setup", row["setup"]), ("test", row["test"])):
            try:
                names.append(read_names(source, "<%s>" % piece))
                tree = ast.parse(source, "<%s>" % piece)
                self.names = definitions(tree)
                self.check, self.check_takes = (False, False) if self.file else reads_check(tree)
                self.cases = instrument(tree, row["per_assert"], self.cases)
                self.codes.append(compile(tree, "<%s>" % piece, "exec", 0, True))
            except (SyntaxError, ValueError, RecursionError) as fault:
                raise Fault("the %s is no Python here: %s" % (piece, fault)) from None
            self.modules |= names[-1].modules
            for module in [star for star in names[-1].stars if star != self.module]:
                defined |= set(dir(self._load(module)))
        if "numpy" in row["test"] + row["setup"] + prompt.source:
            self._load("numpy")
        self.exceptions = set().union(*[piece.exceptions for piece in names])
        self.patches = "mock" in row["test"] and "patch" in row["test"]
        self.wanted, self.stand_ins = wanted_names(names, stubs, defined, self.entry, set(row["reference_names"]))
        candidate = "candidate" in self.wanted and self.entry is not None and self.entry != "candidate"
        self.alias = "candidate" if candidate else None

    def _load(self, module: str) -> Any:
        """Imports a module that the test is about to import, so that it can be pinned and its names be known."""
        try:
            return importlib.import_module(module)
        except ImportError:
            return None  # the test says so itself when it gets there


class Run:
    """One run of the script: against nobody (`frames` None), or against what a candidate's ops gave."""

    def __init__(
        self, script: Script, plan: Plan, frames: Optional[List[Any]], texts: List[str], hopeful: bool, cap: int
    ) -> None:
        self.script = script
        self.hopeful = hopeful
        self.planning = frames is None
        self.session = Session(plan, frames, cap, self.on_dead, self.on_full)
        self.guard = Guard(self.session, self.planning, texts, self.runs_result)
        self.finish: Callable[[Dict[str, Any]], Any] = _unset
        self.returned = False
        self.dead: Optional[int] = None
        self.failure: Optional[List[Any]] = None
        self.prints = False
        self.unsafe = False
        self.passed: Dict[int, bool] = {}
        self.lost: Dict[int, int] = {}
        self.spans: Dict[int, List[int]] = {}
        self.case: Optional[int] = None
        self.space: Dict[str, Any] = {}
        self.tests: List[str] = []
        self.skipped: List[int] = []
        self.words: Dict[int, List[Any]] = {}
        self.reach = Reach()

    def perform(self) -> None:
        """Runs the test and gives the report to `finish`; the process is of no more use after it."""
        pin(self.script.seed, self.script.clock)
        hope(self.hopeful)
        sys.addaudithook(self.guard.audited)
        space = self.space = self.namespace()
        if self.planning:
            self.reach.watch()
            if self.script.patches:
                self.session.faults.append("patches what the candidate may use")
        try:
            for code in self.script.codes:
                exec(code, space)
                if code is self.script.codes[0]:
                    self.bind(space)
            if self.script.check:
                self.step()
                entry = self.script.entry if self.script.check_takes else None
                arguments = [space[entry]] if entry else []
                space["check"](*arguments)
            if self.script.file:
                self.run_tests(space)
            self.returned = True
        except Unsupported as words:
            self.failure = ["Unsupported", 0, str(words)]
        except BaseException as error:
            self.failure = _where(error, self.planning)
            if error is self.session.raised:
                self.failure.append(self.session.raised_by)
        self.finish(self.report())

    def run_tests(self, space: Dict[str, Any]) -> None:
        """Runs a file's tests one after the other: each is a case."""
        only = self.script.only
        if self.script.lenient:
            tests = TestFile(space, self.script.names).tests
            self.tests = [test.name for test in tests]
            self.skipped = [k for k, test in enumerate(tests) if test.is_skipped()]
            return
        tests = [t for t in TestFile(space, self.script.names).tests if only is None or t.name in only]
        self.tests = [test.name for test in tests]
        whole = False
        for k, test in enumerate(tests):
            self.session.opens(k, whole)
            self.case_opens(k)
            calls = self.session.calls
            outcome, error = test.run()
            whole = outcome == PASSED
            if outcome == SKIPPED and (calls == self.session.calls or not self.planning):
                self.skipped.append(k)
            if error is not None:
                self.words[k] = _where(error, self.planning)
                if error is self.session.raised:
                    self.words[k].append(self.session.raised_by)
            (self.case_passed if whole else self.case_failed)(k)
        self.session.opens(len(tests), whole)

    def report(self) -> Dict[str, Any]:
        session = self.session
        return {
            "returned": self.returned,
            "off": session.off,
            "dead": self.dead,
            "failure": self.failure,
            "calls": session.calls,
            "cases": len(self.tests) if self.script.file else self.script.cases,
            "tests": self.tests,
            "skipped": self.skipped,
            "words": sorted(self.words.items()),
            "passed": sorted(k for k, good in self.passed.items() if good),
            "lost": sorted(self.lost.items()),
            "spans": sorted(self.spans.items()),
            "flags": sorted(session.flags),
            "refused": sorted(session.flags & self.script.refused),
            "unsafe": self.unsafe,
            "faults": session.faults[:3],
            "notes": self.notes()[:3],
            "prints": self.prints,
            "names": sorted(self.script.wanted),
            "texts": sorted(self.guard.texts),
            "plan": {"ops": session.grown.ops, "steps": session.grown.steps} if session.off else None,
        }

    def notes(self) -> List[str]:
        """What only live objects could answer; fields of the test's own records are plain data."""
        fields: Set[str] = set()
        for value in list(self.space.values()):
            if isinstance(value, type) and value.__module__ == SPACE:
                fields.update(getattr(value, "__dataclass_fields__", getattr(value, "_fields", ())))
        return [note for note in self.session.notes if note not in {READS % field for field in fields}]

    def namespace(self) -> Dict[str, Any]:
        space: Dict[str, Any] = {"__name__": SPACE, "__builtins__": builtins}
        space["_collimate_step"] = self.step
        space["_collimate_exploring"] = self.exploring
        space["_collimate_case"] = self.case_opens
        space["_collimate_passed"] = self.case_passed
        space["_collimate_failed"] = self.case_failed
        space["isinstance"] = self.is_instance
        space.update(self.guard.functions())
        return space

    def bind(self, space: Dict[str, Any]) -> None:
        """Puts recorders and stand-ins where the prompt's code has run, and a module of them where the test imports
        the candidate's."""
        for name in self.script.stand_ins:
            space[name] = stand_in_exception(name)
        sys.modules["pytest"] = stand_in()
        sys.modules[self.script.module] = self.module = CandidateModule(self.script.module)
        self.module.__dict__["_collimate_make"] = self.imported
        for name in self.script.wanted:
            space[name] = self.recorder(name)
        if self.script.alias and self.script.entry:
            space[self.script.alias] = space[self.script.entry]
        self.session.class_named = lambda name: self.class_named(space, name)

    def class_named(self, space: Dict[str, Any], name: str) -> Any:
        """The test's or the prompt's own class of that name, or an exception class of a module that they import."""
        found = space.get(name)
        if isinstance(found, type) and (found.__module__ == SPACE or issubclass(found, BaseException)):
            return found
        for module in self.script.modules:
            # Asked by their names alone: stand-ins make up, or refuse, what they lack.
            found = getattr(sys.modules.get(module), "__dict__", {}).get(name)
            if isinstance(found, type) and issubclass(found, BaseException):
                return found
        return None

    def imported(self, name: str) -> Any:
        """What the test imports from the candidate's module: a recorder, or a stand-in for an exception class."""
        if name in self.script.exceptions:
            return self.space.get(name) or stand_in_exception(name)
        return self.recorder(name)

    def recorder(self, name: str) -> Callable[..., Any]:
        if self.script.lenient:
            return Anything(name, (Whatever,), {"__module__": SPACE})

        def recorder(*args: Any, **kwargs: Any) -> Any:
            self.prints = self.prints or sys.stdout is not self.session.stdout
            if self.planning:
                self.session.faults += self.reach.beyond()
            return self.session.call(name, args, kwargs)

        recorder.__name__ = recorder.__qualname__ = name
        return recorder

    def runs_result(self) -> None:
        """The test is about to run what a candidate gave."""
        self.unsafe = True
        self.finish(self.report())

    def is_instance(self, value: Any, kinds: Any) -> bool:
        """isinstance, where a placeholder is of whatever kind is hoped for."""
        if type(value) is not Placeholder:
            return isinstance(value, kinds)
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if getattr(kind, "__module__", "") not in PLAIN_MODULES:
                self.session.notes.append("asks whether a result is a %s" % getattr(kind, "__name__", kind))
        return bool(value)

    # what the instrumented code calls

    def step(self) -> None:
        self.session.step()

    def exploring(self) -> bool:
        """Whether failures are swallowed. Before the first call they are the row's own, whoever the candidate is."""
        return self.session.off and (self.session.calls > 0 or bool(self.tests))

    def case_opens(self, k: int) -> None:
        self.step()
        self.case = k
        # What came between the cases may be what any later one is about.
        self.session.lasting |= self.session.news
        self.session.news.clear()
        self.spans.setdefault(k, [self.session.position, self.session.position])

    def case_passed(self, k: int) -> None:
        spoilt = (self.session.news | self.session.lasting) & self.script.refused
        self.case_ends(k, k not in self.lost and not spoilt)

    def case_failed(self, k: int) -> None:
        self.case_ends(k, False)

    def case_ends(self, k: int, good: bool) -> None:
        self.case = None
        self.session.news.clear()
        self.passed[k] = self.passed.get(k, True) and good
        self.spans[k][1] = self.session.position

    # what the session calls

    def on_dead(self, i: int) -> None:
        case = self.case
        if case is None:
            self.dead = i
            self.finish(self.report())
        else:
            self.lost[case] = i
            raise Lost

    def on_full(self) -> None:
        self.session.flags.add("plan_full")
        self.finish(self.report())


class Lost(BaseException):
    """A case's call has no answer. Not an Exception: tests catch those."""


class Anything(type):
    """The class of what stands in for the candidate while a file's tests are only counted."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Whatever()

    def __iter__(cls) -> Any:
        return iter(())


class Whatever(metaclass=Anything):
    """Can be derived from, called, asked for anything: it comes to nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Whatever()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Whatever()

    def __iter__(self) -> Any:
        return iter(())


class CandidateModule(types.ModuleType):
    """What the test gets for the candidate's module: every name in it is there, and none can be set."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.__dict__["_collimate_make"](name)
        self.__dict__[name] = made
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            return types.ModuleType.__setattr__(self, name, value)
        raise AttributeError("%s of the candidate's module can't be set from here" % name)


def _unset(report: Dict[str, Any]) -> None:
    raise RuntimeError("a run needs somebody to report to")


def _where(error: BaseException, whole: bool) -> List[Any]:
    """The failure's class name, its line in the test (0: elsewhere), and, where no candidate has a part in it, text."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<test>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return [type(error).__name__, line, str(error)[:300] if whole else ""]
