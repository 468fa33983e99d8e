"""Every shape of ground truth that data sets have, and the faults that must be named."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collimate_rl.formats.blobs import MAX_BLOB_BYTES, decode_blob, looks_like_blob
from collimate_rl.formats.ground_truth import reward_spec_from_ground_truth
from collimate_rl.specs import PropertyReward, StdioReward, UnitTestReward
from collimate_rl.specs.asserts import AssertReward

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

CLASSIC = [{"input": [1, 2], "expected": 3}, {"input": "a", "expected": "A", "note": "x"}]
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def add(a, b):\n",
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
MBPP = {
    "task_id": 1,
    "text": "Add.",
    "code": "def add(a, b):\r\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(1, 1) == 2"],
    "test_setup_code": "import math",
    "challenge_test_list": ["assert add(0, 0) == 0"],
}
LIVE_STDIN = [
    {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
    {"input": "2 2\n", "output": "4", "testtype": "stdin"},
]
LIVE_CALL = [
    {"input": '[1, 2]\n"x"', "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}},
    {"input": "[]\n\n", "output": "[1.5]", "testtype": "functional", "metadata": {"func_name": "add"}},
]


def blob(value: Any, protocol: int = 4) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value), protocol))).decode()


def calls_of(spec: Any) -> list[tuple[Any, Any]]:
    assert isinstance(spec, UnitTestReward)
    return [(test["input"], test["expected"]) for test in spec.tests]


def cases_of(spec: Any) -> list[tuple[str, str]]:
    assert isinstance(spec, StdioReward)
    return [(case["stdin"], case["stdout"]) for case in spec.cases]


# Shapes


@pytest.mark.parametrize("dump", [lambda gt: gt, json.dumps, lambda gt: json.dumps(json.dumps(gt))])
def test_the_classic_list(dump: Any) -> None:
    spec = reward_spec_from_ground_truth(dump(CLASSIC), "add")
    assert calls_of(spec) == [([1, 2], 3), ("a", "A")]
    assert isinstance(spec, UnitTestReward)
    assert (spec.entry, spec.compare, spec.tolerance) == ("add", "exact", None)


@pytest.mark.parametrize("dump", [lambda gt: gt, json.dumps])
def test_the_classic_property(dump: Any) -> None:
    gt = {"reference": "    return x", "generator": "random.random()"}
    spec = reward_spec_from_ground_truth(dump(gt), "f")
    assert spec == PropertyReward("    return x", "random.random()", 16, "f")
    spec = reward_spec_from_ground_truth(dump({**gt, "k": 3, "entry": "g"}))
    assert spec == PropertyReward("    return x", "random.random()", 3, "g")


def test_inputs_and_outputs_of_programs() -> None:
    gt = {"inputs": ["1 2\n", ["1", "2"]], "outputs": ["3\n", ["3", ""]], "fn_name": None}
    spec = reward_spec_from_ground_truth(gt)
    assert cases_of(spec) == [("1 2\n", "3\n"), ("1\n2", "3\n")]
    assert isinstance(spec, StdioReward)
    assert (spec.compare, spec.tolerance) == ("lines", 1e-6)


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ([[1, 2], [[3], 4]], [3, 7], [([1, 2], 3), ([[3], 4], 7)]),
        ([["abc"], ["x"]], [["cba"], ["x"]], [(["abc"], "cba"), (["x"], "x")]),
        ([[[2, 7], 9], [[1], 1]], [[0, 1], [0]], [([[2, 7], 9], [0, 1]), ([[1], 1], [0])]),
        (['"abc"', "[1]\n2"], ['"cba"', "[1, 2]"], [(["abc"], "cba"), ([[1], 2], [1, 2])]),
        (["1\n2", "3"], [3, 3], [([1, 2], 3), ([3], 3)]),
        ([5, {"a": 1}], [6, 7], [([5], 6), ([{"a": 1}], 7)]),
    ],
)
def test_inputs_and_outputs_of_calls(inputs: Any, outputs: Any, expected: Any) -> None:
    spec = reward_spec_from_ground_truth({"inputs": inputs, "outputs": outputs, "fn_name": "add"}, "other")
    assert calls_of(spec) == expected
    assert isinstance(spec, UnitTestReward)
    assert (spec.entry, spec.compare) == ("add", "json")


def test_floats_among_the_answers_are_compared_with_a_tolerance() -> None:
    spec = reward_spec_from_ground_truth({"inputs": [[1]], "outputs": [{"a": [0.5]}], "fn_name": "f"})
    assert isinstance(spec, UnitTestReward)
    assert spec.tolerance == 1e-6


def test_wrapped_answers_may_come_either_way() -> None:
    case = {"type": "function_call", "fn_name": "add", "input": [1, 2]}
    wrapped = {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}
    for gt in (wrapped, [{**case, "output": [3]}], {"language": "python", "test_cases": [{**case, "output": [3]}]}):
        spec = reward_spec_from_ground_truth(gt)
        assert isinstance(spec, UnitTestReward)
        assert (calls_of(spec), spec.wrapped) == ([([1, 2], 3)], True)
    spec = reward_spec_from_ground_truth([{**case, "output": [3]}, {**case, "output": [3, 4]}])
    assert isinstance(spec, UnitTestReward)
    assert (calls_of(spec), spec.wrapped) == ([([1, 2], [3]), ([1, 2], [3, 4])], False)


def test_calls_lend_what_starter_code_takes_for_granted() -> None:
    spec = reward_spec_from_ground_truth(LIVE_CALL)
    assert isinstance(spec, UnitTestReward)
    lent: dict[str, Any] = {}
    exec(spec.prelude, lent)
    assert {
        "List",
        "Optional",
        "defaultdict",
        "Counter",
        "deque",
        "heappush",
        "inf",
        "gcd",
        "lru_cache",
        "cache",
    } <= set(lent)
    assert lent["heapq"].heappush is lent["heappush"]
    classic = reward_spec_from_ground_truth(CLASSIC)
    assert isinstance(classic, UnitTestReward)
    assert classic.prelude == ""


def test_numpy_arrays_are_lists() -> None:
    numpy = pytest.importorskip("numpy")
    texts = numpy.array(["1", "2"], dtype=object)
    for gt in (
        {"inputs": texts, "outputs": texts},
        {"reward_model": {"ground_truth": {"inputs": texts, "outputs": texts}}},
        {"test_cases": numpy.array([{"input": "1", "output": "1"}, {"input": "2", "output": "2"}], dtype=object)},
        {"public_tests": {"input": texts, "output": texts}},
    ):
        assert cases_of(reward_spec_from_ground_truth(gt)) == [("1", "1"), ("2", "2")]
    assert isinstance(reward_spec_from_ground_truth({"test_list": numpy.array(["assert f(1)"])}), AssertReward)


def test_nemo_gyms_rows() -> None:
    tests = {"inputs": ["1\n"], "outputs": ["2\n"], "fn_name": None}
    for row in ({"verifier_metadata": {"unit_tests": tests}}, {"verifier_metadata": {"unit_tests": json.dumps(tests)}}):
        assert cases_of(reward_spec_from_ground_truth(row)) == [("1\n", "2\n")]


@pytest.mark.parametrize("testtype", ["stdin", "stdin_stdout"])
def test_livecodebench_programs(testtype: str) -> None:
    gt = [{**case, "testtype": testtype} for case in LIVE_STDIN]
    assert cases_of(reward_spec_from_ground_truth(gt)) == [("1 2\n", "3\n"), ("2 2\n", "4")]


def test_livecodebench_calls() -> None:
    spec = reward_spec_from_ground_truth(LIVE_CALL)
    assert calls_of(spec) == [([[1, 2], "x"], 3), ([[]], [1.5])]
    assert isinstance(spec, UnitTestReward)
    assert (spec.entry, spec.compare, spec.tolerance) == ("add", "json", 1e-6)
    unnamed = [{key: value for key, value in case.items() if key != "metadata"} for case in LIVE_CALL]
    spec = reward_spec_from_ground_truth(unnamed, "given")
    assert isinstance(spec, UnitTestReward)
    assert spec.entry == "given"
    # One answer in a list is an answer, not a wrapper, in this shape.
    assert calls_of(spec)[1][1] == [1.5]


@pytest.mark.parametrize("protocol", range(5))
def test_livecodebench_private_blobs(protocol: int) -> None:
    text = blob(LIVE_STDIN, protocol)
    assert looks_like_blob(text)
    assert cases_of(reward_spec_from_ground_truth(text)) == [("1 2\n", "3\n"), ("2 2\n", "4")]


def test_livecodebench_rows() -> None:
    row = {
        "question_title": "Add",
        "starter_code": "",
        "public_test_cases": json.dumps(LIVE_STDIN[:1]),
        "private_test_cases": blob(LIVE_STDIN[1:]),
        "metadata": "{}",
    }
    assert cases_of(reward_spec_from_ground_truth(row)) == [("1 2\n", "3\n"), ("2 2\n", "4")]
    bare = [{key: value for key, value in case.items() if key != "metadata"} for case in LIVE_CALL]
    row = {"public_test_cases": bare, "private_test_cases": "", "metadata": json.dumps({"func_name": "add"})}
    spec = reward_spec_from_ground_truth(row)
    assert isinstance(spec, UnitTestReward)
    assert (spec.entry, len(spec.tests)) == ("add", 2)


def test_humaneval() -> None:
    spec = reward_spec_from_ground_truth(HUMANEVAL)
    assert spec == AssertReward(
        HUMANEVAL["test"], entry="add", prompt=HUMANEVAL["prompt"], reference=HUMANEVAL["canonical_solution"]
    )
    inner = {key: HUMANEVAL[key] for key in ("test", "entry_point")}
    assert reward_spec_from_ground_truth(inner) == AssertReward(HUMANEVAL["test"], entry="add")
    chat = {**inner, "prompt": [{"role": "user", "content": "Add."}]}
    assert reward_spec_from_ground_truth(chat) == AssertReward(HUMANEVAL["test"], entry="add")


def test_mbpp() -> None:
    spec = reward_spec_from_ground_truth(MBPP)
    assert spec == AssertReward(
        "assert add(1, 2) == 3\nassert add(1, 1) == 2\nassert add(0, 0) == 0",
        setup="import math",
        reference=MBPP["code"],
    )
    spec = reward_spec_from_ground_truth({"test_list": ["assert add(1, 2) == 3"], "test_imports": ["import re"]})
    assert spec == AssertReward("assert add(1, 2) == 3", setup="import re")


def test_verls_assert_case() -> None:
    gt = {"assert_case": ["assert f(1) == 1"], "inputs": [""], "outputs": [""]}
    assert reward_spec_from_ground_truth(gt) == AssertReward("assert f(1) == 1")


def test_open_r1_and_synthetic_1() -> None:
    gt = {"language": "python", "test_cases": [{"input": "1", "output": "2", "type": "stdin_stdout"}]}
    assert cases_of(reward_spec_from_ground_truth(gt)) == [("1", "2")]
    gt = {"test_cases": [{"input": "1", "output": "2"}]}
    assert cases_of(reward_spec_from_ground_truth(gt)) == [("1", "2")]
    gt = {"language": "Python", "test_cases": [{"input": [1, 2], "output": 3, "type": "function_call", "fn_name": "f"}]}
    spec = reward_spec_from_ground_truth(gt)
    assert calls_of(spec) == [([1, 2], 3)]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "input_output": json.dumps({"inputs": ["1"], "outputs": ["2"]}), "solutions": "[]"},
        {"reward_model": {"style": "rule", "ground_truth": json.dumps({"inputs": ["1"], "outputs": ["2"]})}},
        {"reward_spec": {"method": "rule", "ground_truth": {"inputs": ["1"], "outputs": ["2"]}}},
        {"verification_info": json.dumps({"language": "python", "test_cases": [{"input": "1", "output": "2"}]})},
        {"problem": "?", "tests": json.dumps([{"input": "1", "output": "2", "testtype": "stdin_stdout"}])},
        {"ground_truth": {"tests": {"inputs": ["1"], "outputs": ["2"]}}},
    ],
)
def test_whole_rows(row: Any) -> None:
    for gt in (row, json.dumps(row)):
        assert cases_of(reward_spec_from_ground_truth(gt)) == [("1", "2")]


def test_a_wrapped_row_may_name_the_entry() -> None:
    spec = reward_spec_from_ground_truth({"tests": CLASSIC, "entry": "add"})
    assert isinstance(spec, UnitTestReward)
    assert spec.entry == "add"


# The data sets at hand


def rows(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs the data set slices at {DATA}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_row_of_the_slices() -> None:
    for row in rows("humaneval.jsonl"):
        spec = reward_spec_from_ground_truth(row)
        assert isinstance(spec, AssertReward)
        assert (spec.entry, spec.reference) == (row["entry_point"], row["canonical_solution"])
    for row in rows("mbpp.jsonl"):
        spec = reward_spec_from_ground_truth(json.dumps(row))
        assert isinstance(spec, AssertReward)
        assert spec.reference == row["code"]
        assert all(test in spec.test for test in row["test_list"] + row["challenge_test_list"])
    for row in rows("code_contests.jsonl"):
        pairs = json.loads(row["input_output"])
        expected = list(zip(pairs["inputs"], pairs["outputs"], strict=True))
        assert cases_of(reward_spec_from_ground_truth(row)) == expected
        assert cases_of(reward_spec_from_ground_truth(row["input_output"])) == expected


# Faults


@pytest.mark.parametrize(
    ("gt", "words"),
    [
        (None, "list or an object"),
        (7, "list or an object"),
        (b"[]", "list or an object"),
        ("", "empty"),
        ("not json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('"7"', "list or an object"),
        (json.dumps("x"), "no JSON"),
        ([], "no test cases"),
        ({}, "no known shape"),
        ({"a": 1, "b": 2}, "a, b"),
        ([1], "case 0"),
        ([{"input": 1, "expected": 1}, {"input": 1}], "case 0|case 1"),
        ([{"expected": 1}], "'input'"),
        ([{"input": "1", "output": 2}], "output is neither"),
        ([{"input": ["1", 2], "output": "2"}], "input is neither"),
        ([{"input": "1", "output": "1", "testtype": "magic"}], "magic"),
        ([{"input": "1", "output": "1", "testtype": ["stdin"]}], "unknown type"),
        ([LIVE_STDIN[0], LIVE_CALL[0]], "both"),
        ([LIVE_CALL[0], {**LIVE_CALL[1], "metadata": {"func_name": "sub"}}], "add, sub"),
        ([{**LIVE_CALL[0], "input": "1 2"}], "case 0: an argument is no JSON"),
        ([{**LIVE_CALL[0], "output": "x"}], "case 0: the output is no JSON"),
        ([{**LIVE_CALL[0], "metadata": 7}], "metadata"),
        ([{**LIVE_CALL[0], "metadata": {"func_name": 7}}], "name is text"),
        ([{**LIVE_CALL[0], "metadata": {"func_name": "a b"}}], "entry"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": [], "outputs": []}, "no test cases"),
        ({"inputs": "1", "outputs": "2"}, "two lists"),
        ({"inputs": ["1", "2"], "outputs": ["", " \n"]}, "every expected output is empty"),
        ({"inputs": ["1"], "outputs": ["2"], "fn_name": 7}, "name is text"),
        ({"input_output": ""}, "empty"),
        ({"input_output": "{}"}, "no known shape"),
        ({"language": "cpp", "test_cases": [{"input": "1", "output": "2"}]}, "cpp"),
        ({"test_cases": 7}, "test_cases"),
        ({"test_cases": []}, "no test cases"),
        ({"reference": "    return x", "generator": ""}, "generator"),
        ({"reference": "return (", "generator": "1"}, "reference"),
        ({"reference": "    return x", "generator": "1", "k": 0}, "k"),
        ({**HUMANEVAL, "test": ""}, "test is empty"),
        ({**HUMANEVAL, "test": "def check("}, "test is no Python"),
        ({**HUMANEVAL, "entry_point": "a b"}, "entry"),
        ({**HUMANEVAL, "canonical_solution": 7}, "reference"),
        ({"test_list": []}, "test_list is empty"),
        ({"test_list": "assert 1"}, "test_list is a list"),
        ({"test_list": [1]}, r"test_list\[0\]"),
        ({**MBPP, "test_setup_code": 7}, "test_setup_code"),
        ({"assert_case": []}, "assert_case is empty"),
        ({"public_test_cases": "", "private_test_cases": None}, "no test cases"),
        ({"public_test_cases": "nope"}, "no JSON"),
        ({"private_test_cases": blob(7)}, "private_test_cases is a list"),
        (
            {"ground_truth": {"ground_truth": {"ground_truth": {"ground_truth": {"tests": {"tests": {"tests": []}}}}}}},
            "list or an object",
        ),
    ],
)
def test_a_bad_ground_truth_is_named(gt: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reward_spec_from_ground_truth(gt)


def test_depth_and_cycles_are_no_way_out() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for value in (deep, cyclic):
        with pytest.raises(ValueError, match="case 0"):
            reward_spec_from_ground_truth({"inputs": [value], "outputs": ["x"]})
        with pytest.raises(ValueError, match="case 0"):
            reward_spec_from_ground_truth(value)
    spec = reward_spec_from_ground_truth({"inputs": [[1]], "outputs": [{"a": deep}], "fn_name": "f"})
    assert isinstance(spec, UnitTestReward)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("input", "output", "expected", "inputs", "outputs", "fn_name", "testtype", "metadata", "tests"),
                    *("test", "entry_point", "prompt", "test_list", "test_cases", "reference", "generator", "k"),
                    *("ground_truth", "input_output", "public_test_cases", "private_test_cases", "language", "entry"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_whatever_it_is_it_is_a_spec_or_a_value_error(gt: Any) -> None:
    try:
        spec = reward_spec_from_ground_truth(gt)
    except ValueError:
        pass  # the one way to refuse
    else:
        assert isinstance(spec, UnitTestReward | StdioReward | PropertyReward | AssertReward)


# Blobs


class _Evil:
    def __reduce__(self) -> Any:
        return (print, ("ran",))


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def test_blobs_of_plain_data() -> None:
    value = {"a": [1, -2, 2**80, 1.5, None, True, False, "é\ud800", ("t",), {"b": []}]}
    for protocol in range(5):
        assert decode_blob(packed(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (packed(pickle.dumps(_Evil())), "more than plain data"),
        (packed(b"cos\nsystem\n(S'true'\ntR."), "more than plain data"),
        (packed(b"\x80\x04\x8c\x02os\x8c\x06system\x93."), "more than plain data"),
        (packed(pickle.dumps({1, 2})), "more than plain data"),
        (packed(b"Pid\n."), "more than plain data"),
        (packed(b"(" + b"N" * 2_000_001 + b"l."), "more than 2000000 parts"),
        (packed(b"]r\xff\xff\xff\x7f."), "memo"),
        (packed(b""), "no pickle"),
        (packed(b"]"), "no pickle"),
        (packed(b"\x80\x04]\x94(K\x01e"), "no pickle"),
        (packed(b"."), "no pickle"),
        (packed(b"h\x05."), "no pickle"),
        (packed(b"\x80\xff."), "no pickle"),
        (packed(b"\x8c\xff."), "no pickle"),
        (packed(b"Iabc\n."), "no pickle"),
        (packed(b"}]]s."), "no pickle"),
        (packed(pickle.dumps("{")), "no JSON"),
        (base64.b64encode(zlib.compress(b"x" * 1000)[:-4]).decode(), "cut short"),
        (base64.b64encode(b"nothing of the kind").decode(), "zlib"),
        ("eA=", "base64"),
        ("é", "base64"),
        (packed(bytes(MAX_BLOB_BYTES + 1)), "unpacks to more"),
    ],
)
def test_what_is_no_blob_is_named_and_never_run(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=words):
        decode_blob(text)
    assert capsys.readouterr().out == ""


@given(st.binary(max_size=60))
def test_any_pickle_is_plain_data_or_a_value_error(data: bytes) -> None:
    try:
        decode_blob(packed(data))
    except ValueError:
        pass  # the one way to refuse
