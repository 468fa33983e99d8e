"""Trees are made one at a time, and again where CPython lost count."""

from __future__ import annotations

import ast
import threading
import time

import pytest

from collimate_rl import syntax


def test_a_tree_as_ast_makes_it() -> None:
    assert ast.dump(syntax.parse("x = 1\n")) == ast.dump(ast.parse("x = 1\n"))
    with pytest.raises(SyntaxError):
        syntax.parse("x =")


@pytest.mark.parametrize("failures", [1, 4, 5])
def test_a_lost_count_is_no_verdict_on_the_text(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    parse, left = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * failures

    def losing(text: str) -> ast.Module:
        if left:
            raise left.pop()
        return parse(text)

    monkeypatch.setattr(ast, "parse", losing)
    if failures < 5:
        assert len(syntax.parse("x\ny").body) == 2
    else:
        with pytest.raises(SystemError):
            syntax.parse("x\ny")


def test_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, inside, most = ast.parse, [0], [0]

    def watched(text: str) -> ast.Module:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.001)
        try:
            return parse(text)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(ast, "parse", watched)
    threads = [threading.Thread(target=syntax.parse, args=("x = 1",)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
