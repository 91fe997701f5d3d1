"""Sources are parsed while other threads parse too, which can fail before Python 3.13."""

from __future__ import annotations

import ast

import pytest

from pytest_trainsafe.runs.cached import sources


def test_a_parse_that_fails_because_of_another_thread_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse, failures = ast.parse, [True, True, True]

    def fail_at_first(source: bytes) -> ast.AST:
        if failures:
            failures.pop()
            raise SystemError("AST constructor recursion depth mismatch (before=147, after=39)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", fail_at_first)
    [found] = sources._imports(b"import upset_by_another_thread")
    assert found.module == "upset_by_another_thread"
    assert not failures
