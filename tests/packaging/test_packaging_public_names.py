"""Exported names resolve without importing torch, and match the documentation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pytest_trainsafe

Run = Callable[..., str]

NAMES = sorted(pytest_trainsafe.__all__)


def test_every_exported_name_resolves() -> None:
    assert {name for name in NAMES if getattr(pytest_trainsafe, name) is None} == set()
    assert set(NAMES) == set(pytest_trainsafe._HOME)
    assert set(NAMES) <= set(dir(pytest_trainsafe))
    with pytest.raises(AttributeError, match="has no attribute 'Tracse'"):
        pytest_trainsafe.Tracse  # noqa: B018


def test_importing_every_name_and_annotating_with_it_imports_no_torch(
    run: Run, tmp_path: Path
) -> None:
    script = f"""
import sys
from typing import Optional, get_type_hints
from pytest_trainsafe import {", ".join(NAMES)}

def test_it(candidate_trace: Traces, trace: Trace | None, ctx: Optional[Context], case: Case): ...

assert get_type_hints(test_it)["candidate_trace"] is Traces
assert not hasattr(Traces, "__test__")
heavy = {{"torch", "numpy"}} & set(sys.modules)
assert not heavy, heavy

# When used, each name resolves to the object itself.
import torch
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.trace.reader import Trace as Recorded
try:
    Trace.open("nowhere")
except TraceError:
    pass
else:
    raise AssertionError("opened")
assert isinstance(Recorded.__new__(Recorded), Trace) and issubclass(Recorded, Trace)
assert not isinstance(1, Trace)
assert consistent_tensor("weight", (2, 3)).shape == (2, 3)
print("done")
"""
    assert run(sys.executable, "-c", script, cwd=tmp_path).strip() == "done"


def test_an_exported_name_is_the_object_itself_once_torch_is_imported() -> None:
    import torch  # noqa: F401

    from pytest_trainsafe.trace.reader import Trace

    assert pytest_trainsafe.__getattr__("Trace") is Trace


def test_the_stability_page_states_the_current_trace_schema_version(root: Path) -> None:
    from pytest_trainsafe.trace.schema import SCHEMA_VERSION

    page = (root / "docs" / "stability.md").read_text(encoding="utf-8")

    assert f"| a trace (`manifest.json`) | `schema`, now {SCHEMA_VERSION} |" in page


def test_the_stability_page_lists_only_existing_attributes(root: Path) -> None:
    import dataclasses
    import re

    from pytest_trainsafe.runs.group import Group
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.trace.reader import Trace

    page = (root / "docs" / "stability.md").read_text(encoding="utf-8")
    [sentence] = re.findall(r"^Of `Traces`, .*$", page, re.MULTILINE)

    for part, kind in zip(sentence.split(";"), (Traces, Trace, Group), strict=True):
        known = {*dir(kind)}
        if dataclasses.is_dataclass(kind):
            known |= {each.name for each in dataclasses.fields(kind)}
        owner, *names = re.findall(r"`(\w+)`", part)
        assert owner == kind.__name__
        assert names
        assert set(names) <= known, part
