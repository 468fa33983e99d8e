"""A candidate that owns its sandbox may say anything in its frames: only the right values pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.specs import AssertReward
from tests.fixtures.plain_executor import LyingExecutor, PlainExecutor, Told, always

TEST = """
from collections import Counter

class Point:
    def __eq__(self, other):
        return isinstance(other, Point) or other == [1, 2]

def check(candidate):
    assert candidate(1) == 7919
    assert abs(candidate(2) - 0.5) < 1e-6
    assert not abs(candidate(3) - 0.25) > 1e-6
    letters = candidate(4)
    assert all(x == y for x, y in zip(letters, ["a", "b"])) and len(letters) == 2
    given = [3, 1, 2]
    result = candidate(given)
    assert result is given and given == [1, 2, 3]
    try:
        candidate(-1)
    except ValueError:
        pass
    else:
        assert False
    assert Counter(candidate(5)) == Counter("bananas")
"""
HONEST = """
def solve(x):
    if isinstance(x, list):
        x.sort()
        return x
    if x < 0:
        raise ValueError
    return [None, 7919, 0.5, 0.25, ["a", "b"], "bananas"][x]
"""
SPEC = AssertReward(TEST, entry="solve")

GOOD = [
    '{"v":7919}',
    '{"v":["f","0x1.0000000000000p-1"]}',
    '{"v":["f","0x1.0000000000000p-2"]}',
    '{"v":["l","a","b"]}',
    '{"u":[["l",1,2,3]],"v":["r",0]}',
    '{"x":["x",["ValueError","Exception","BaseException"],["t"]],"at":1}',
    '{"v":"bananas"}',
]


def but(place: int, *frames: str) -> Callable[[list[Any]], Told]:
    """All right but for the frames from `place` on."""
    return always(*GOOD[:place], *frames, *GOOD[place + len(frames) :])


DEEP = '{"v":' + '["l",' * 140 + "1" + "]" * 140 + "}"
DOUBLING = json.dumps({"v": ["l", ["l"], *[["l", *[["r", n]] * 20] for n in range(1, 20)]]})

LIES: dict[str, Callable[[list[Any]], Told]] = {
    "nothing at all": lambda ops: [],
    "one frame for all": lambda ops: [("v", "true")],
    "more frames than ops": lambda ops: [("v", '{"v":true}')] * (len(ops) + 1),
    "no value in the frame": always("{}"),
    "no object": always("[1]"),
    "no JSON": always("seven"),
    "a placeholder's number": always('{"v":["p",0]}'),
    "a placeholder of itself": always('{"v":["p",1]}', '{"v":["p",1]}'),
    "a placeholder's text": always('{"v":"_collimate_result"}'),
    "an opaque value": always('{"v":["h",0,"int"]}'),
    "an opaque value that names a builtin": but(0, '{"v":["h",0,"int","object"]}'),
    "an unknown tag": but(0, '{"v":["Z",1]}'),
    "not a number": but(1, '{"v":["f","nan"]}'),
    "not a number where only greater is asked": but(2, '{"v":["f","nan"]}'),
    "a decimal that is no number": but(2, '{"v":["D","NaN"]}'),
    "complex of no number": but(2, '{"v":["c","nan","nan"]}'),
    "a record named like a builtin": but(0, '{"v":["k","int",1,"real",7919]}'),
    "a record of the test's own class": but(0, '{"v":["k","Point",0]}'),
    "a namedtuple named like a builtin": but(0, '{"v":["u","int",1,"real",7919]}'),
    "an empty list that zips to nothing": but(3, '{"v":["l"]}'),
    "an iterator": but(3, '{"v":["g",0,null,"a","b"]}'),
    "an iterator with a wrong end": but(6, '{"v":["g",7,null,"b"]}'),
    "a builtin function": but(0, '{"v":["n","max"]}'),
    "a function that is not pure": but(0, '{"v":["n","eval"]}'),
    "True for all": always('{"v":true}'),
    "Ellipsis": always('{"v":["E"]}'),
    "NotImplemented": always('{"v":["N"]}'),
    "deep": always(DEEP),
    "doubling": always(DOUBLING),
    "an equal copy instead of the argument": but(4, '{"u":[["l",1,2,3]],"v":["l",1,2,3]}'),
    "the argument unchanged": but(4, '{"v":["r",0]}'),
    "an argument that isn't there": but(4, '{"u":[["l",1,2,3]],"v":["r",7]}'),
    "two bodies for one argument": but(4, '{"u":[["l",1,2,3],["l",1,2,3]],"v":["r",0]}'),
    "no body for the argument": but(4, '{"u":[],"v":["r",0]}'),
    "a dict for a list": but(4, '{"u":[["m","",1,1,2,2,3,3]],"v":["r",0]}'),
    "a list that holds itself": but(4, '{"u":[["l",["r",0]]],"v":["r",0]}'),
    "bodies that are no list": but(4, '{"u":{"0":["l",1,2,3]},"v":["r",0]}'),
    "a return instead of the exception": but(5, '{"v":null}'),
    "an exception that only looks like it": but(5, '{"x":["x",["*ValueError","Exception"],["t"]],"at":1}'),
    "an exception of no name": but(5, '{"x":["x",[],["t"]],"at":1}'),
    "no exception": but(5, '{"x":["l"],"at":1}'),
    "SystemExit": always('{"x":["x",["SystemExit","BaseException"],["t",0]],"at":1}'),
    "KeyboardInterrupt": always('{"x":["x",["KeyboardInterrupt","BaseException"],["t"]],"at":1}'),
    "GeneratorExit": always('{"x":["x",["GeneratorExit","BaseException"],["t"]],"at":1}'),
    "StopIteration": always('{"x":["x",["StopIteration","Exception"],["t"]],"at":1}'),
    "our own signal": always('{"x":["x",["*Lost","BaseException"],["t"]],"at":1}'),
    "a value and an exception": but(0, '{"v":7919,"x":["x",["ValueError"],["t"]]}'),
    "a letter less": but(6, '{"v":"banana"}'),
    "a dict of the counts": but(6, '{"v":["m","c","b",1,"a",3,"n",2]}'),
}


def test_only_the_right_values_pass(plain_executor: PlainExecutor) -> None:
    names = list(LIES)
    lying = LyingExecutor(plain_executor, [LIES[name] for name in names] + [always(*GOOD), None])
    grades = grade_group(lying, SPEC, [HONEST] * (len(names) + 2), seeds=[None] * (len(names) + 2))
    told = [grade for grade in grades if isinstance(grade, GradeResult)]
    assert len(told) == len(grades)
    assert [told[-2].reward, told[-1].reward] == [1.0, 1.0], (told[-2].detail, told[-1].detail)
    assert {name: grade.detail for name, grade in zip(names, told, strict=False) if grade.reward != 0.0} == {}


def test_with_per_assert_a_lie_costs_the_assert_that_it_is_told_to(plain_executor: PlainExecutor) -> None:
    spec = AssertReward(
        "assert f(1) == 1\nassert not abs(f(2) - 2) > 1\nassert f(3) == 3\nassert all(map(f, [1, 1]))", per_assert=True
    )
    good = ['{"v":1}', '{"v":2}', '{"v":3}', '{"v":1}', '{"v":1}']
    raises = '{"x":["x",["StopIteration","Exception"],["t"]],"at":1}'
    lies = [
        always(*good),
        always('{"v":1}', '{"v":["f","nan"]}', *good[2:]),
        always('{"v":1}', '{"v":["Z"]}', *good[2:]),
        always(*good[:3], raises),
        lambda ops: [("v", '{"v":1}'), ("t", "null")],
    ]
    grades = grade_group(LyingExecutor(plain_executor, lies), spec, ["x = 1"] * len(lies), seeds=[None] * len(lies))
    told = [(g.cases_passed, [c.outcome for c in g.cases]) for g in grades if isinstance(g, GradeResult)]
    good_case, bad_case = "passed", "wrong_answer"
    assert told[0] == (4, [good_case] * 4)
    assert told[1] == (3, [good_case, bad_case, good_case, good_case])
    assert told[2] == (3, [good_case, "tampered", good_case, good_case])
    assert told[3][0] < 4
    # What comes after the timeout goes to a second exec, which tells the same lie from its own beginning.
    assert told[4] == (1, [good_case, "timeout", bad_case, "timeout"])
