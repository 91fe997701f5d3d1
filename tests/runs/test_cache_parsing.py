"""Sources are parsed though another thread parses too, which Python until 3.13 does not bear."""

from __future__ import annotations

import ast

import pytest

from pytest_trainsafe.runs import sources


def test_a_parse_that_another_thread_upset_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, upset = ast.parse, [True]

    def once_upset(source: bytes) -> ast.AST:
        if upset:
            upset.clear()
            raise SystemError("AST constructor recursion depth mismatch (before=147, after=39)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", once_upset)
    [found] = sources._imports(b"import upset_once_by_another_thread")
    assert found.module == "upset_once_by_another_thread"
    assert not upset
