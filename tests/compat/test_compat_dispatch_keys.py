"""A kernel at a dispatch key is called where the key is included and not excluded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_trainsafe.compat import dispatch_keys as keys
from pytest_trainsafe.compat.private import lacking
from pytest_trainsafe.record.program_dtype import random_operators

NAME = random_operators.KEY_NAME


class Wrapped(torch.Tensor):
    """A tensor with code of its own for operators."""

    @staticmethod
    def __new__(cls) -> Any:
        made: Any = torch.Tensor
        return made._make_wrapper_subclass(cls, (2,))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return NotImplemented


def test_a_kernel_is_called_at_its_key_until_it_is_removed() -> None:
    key, called = keys.key_named(NAME), []
    random_operators.let_others_through()
    assert keys.has_fallback(key)
    library: Any = torch.library.Library
    kernels = library("aten", "IMPL")

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(keys.is_included(key))
        operator: Any = torch.ops.aten.cauchy_.default
        return operator.redispatch(keyset & keys.keys_below(key), *args, **kwargs)

    kernels.impl("cauchy_", kernel, NAME, with_keyset=True)
    x = torch.zeros(2)
    with keys.including(key):
        assert x.cauchy_().abs().sum() > 0
        keys.exclude(key, True)
        assert keys.is_excluded(key)
        x.cauchy_()
        keys.exclude(key, False)
    x.cauchy_()
    assert called == [True]
    keys.remove_kernels(kernels)
    keys.include(key, True)
    x.cauchy_()
    keys.include(key, False)
    assert called == [True]
    assert not keys.is_included(key)


def test_a_name_that_is_no_keys_is_refused() -> None:
    with pytest.raises(RuntimeError):
        keys.key_named("NoSuchKey")


def test_only_a_subclass_with_operators_of_its_own_has_own_code() -> None:
    assert keys.has_own_code(Wrapped())
    assert not keys.has_own_code(torch.ones(2))
    assert not keys.has_own_code(torch.nn.Parameter(torch.ones(2)))


def test_without_keys_random_operators_are_not_intercepted_and_draw_as_before(
    without: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = without("dispatch_keys", "torch._C._dispatch_key_parse")
    monkeypatch.setattr(random_operators, "keys", copy)
    why = random_operators.why_not()
    assert why.startswith("random operators of torch are not intercepted: torch ")
    assert lacking() == [why]
    expected = torch.rand(3, generator=torch.Generator().manual_seed(1))
    with random_operators.drawn_through(lambda operator, call: pytest.fail("intercepted")):
        drawn = torch.rand(3, generator=torch.Generator().manual_seed(1))
    with random_operators.not_intercepted():
        assert torch.equal(drawn, expected)


def test_without_the_keys_of_tensors_subclasses_count_as_plain(without: Any) -> None:
    copy = without("dispatch_keys", "torch._C._dispatch_keys")
    assert not copy.has_own_code(Wrapped())
    assert copy.KEYS.available
