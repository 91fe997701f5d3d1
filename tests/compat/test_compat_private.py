"""A capability knows which names a release lacks, and says in a sentence what is off."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_trainsafe.compat import private
from pytest_trainsafe.compat.private import Capability

FILES = (
    *("autograd", "compiler", "dispatch_keys", "dispatch_modes", "files", "loaders", "operators"),
    *("distributed.parallel", "distributed.process_groups", "tensors"),
)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_declared", [])


@pytest.mark.usefixtures("declared")
def test_a_capability_with_all_of_its_names_is_on_and_has_nothing_to_say() -> None:
    made = Capability("nothing is seen")
    assert made.of("torch", "Tensor._version") is torch.Tensor._version
    assert made.of("torch.utils._pytree") is torch.utils._pytree
    assert made.available
    assert made.why == ""
    assert private.lacking() == []


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("module", ["torch", "torch.nn", "torch._no_such_module"])
def test_a_name_or_a_module_that_is_lacking_is_none_and_switches_the_capability_off(
    module: str,
) -> None:
    made = Capability("nothing is seen")
    assert made.of(module, "_no.such_name") is None
    assert not made.available
    assert made.why == f"nothing is seen: torch {torch.__version__} has no {module}._no.such_name"
    assert private.lacking() == [made.why]


@pytest.mark.usefixtures("declared")
def test_each_lacking_name_is_named_once_also_if_only_a_use_shows_it() -> None:
    made = Capability("nothing is seen")
    for _ in range(2):
        made.of("torch", "_a")
        made.lacks("Tensor._b")
    assert made.why.endswith(" has no torch._a and no Tensor._b")
    assert len(private.lacking()) == 1


@pytest.mark.parametrize("stem", FILES)
def test_a_file_loads_without_any_of_its_names_and_each_capability_says_so(
    stem: str, without: Any
) -> None:
    copy = without(stem)
    assert private.lacking()
    for each in vars(copy).values():
        if isinstance(each, Capability) and not each.available:
            assert each.why in private.lacking()


@pytest.mark.parametrize("stem", FILES)
def test_the_installed_torch_has_every_name_that_a_file_looks_up_when_it_is_loaded(
    stem: str, without: Any
) -> None:
    without(stem, "none")
    assert private.lacking() == []
