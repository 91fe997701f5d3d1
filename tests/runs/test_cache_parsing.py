"""Sources are parsed though another thread parses too, which Python until 3.13 does not bear."""

from __future__ import annotations

import ast

import pytest

from pytest_trainsafe.runs import sources


def test_a_parse_that_another_thread_upset_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, upset = ast.parse, [True, True, True]

    def at_first_upset(source: bytes) -> ast.AST:
        if upset:
            upset.pop()
            raise SystemError("AST constructor recursion depth mismatch (before=147, after=39)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", at_first_upset)
    [found] = sources._imports(b"import upset_by_another_thread")
    assert found.module == "upset_by_another_thread"
    assert not upset
