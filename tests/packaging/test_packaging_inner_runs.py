"""What tests leave behind does not depend on their order."""

from __future__ import annotations

import sys

import pytest


def test_modules_of_torch_that_an_inner_run_imports_stay_and_others_do_not(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, without_hypothesis: None
) -> None:
    for name in ("torch.utils.bundled_inputs", "own_of_inner_run"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    pytester.makepyfile(
        own_of_inner_run="",
        test_it="""
        def test_it():
            import own_of_inner_run
            import torch.utils.bundled_inputs
        """,
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert "torch.utils.bundled_inputs" in sys.modules
    assert "own_of_inner_run" not in sys.modules
