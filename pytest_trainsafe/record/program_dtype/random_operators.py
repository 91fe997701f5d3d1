"""Intercepts torch's random operators, and no others, at the dispatcher.

torch's dispatcher has a key for tests, KEY_NAME, which comes before the keys of autograd and of
devices and which torch itself does not use. This file registers kernels for the random operators
under this key. Threads whose dispatch state includes the key call these kernels first; all other
operators fall through to the next key in the dispatcher, at no extra cost. Operators that torch's
C++ code calls itself, such as the `bernoulli_` in a dropout, are intercepted too.

A tensor subclass with code for the dispatcher, such as DTensor, runs the operator on its inner
tensors, where torch skips the key. There a dispatch mode intercepts it, which is active only during
such an operator.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

import torch

from pytest_trainsafe.compat import dispatch_keys as keys
from pytest_trainsafe.compat.autograd import inside_transform
from pytest_trainsafe.compat.dispatch_modes import (
    TorchDispatchMode,
    innermost,
    modes_active,
    on_fake_tensors,
)
from pytest_trainsafe.compat.operators import redispatch_of, replaced_in_functional
from pytest_trainsafe.compat.tensors import without_torch_function
from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.record.program_dtype.interception import (
    Drawing,
    Interception,
    Through,
    active,
)

#: The classes of tensors that are not subclasses with code of their own.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

#: The types of the arguments of random operators, except for tensor subclasses.
NOT_SUBCLASSES = PLAIN | {
    *(torch.Generator, torch.dtype, float, int, bool, type(None), list, tuple),
}

#: The key that operators are intercepted at.
KEY_NAME = "TESTING_ONLY_GenericMode"

#: The operators of torch that draw random numbers themselves. Other random operators call these.
OPERATORS = (
    "_cudnn_attention_forward",
    "_cudnn_init_dropout_state",
    "_cudnn_rnn",
    "_efficient_attention_forward",
    "_fill_mem_eff_dropout_mask_",
    "_flash_attention_forward",
    "_fused_dropout",
    "_lstm_mps",
    "_sample_dirichlet",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_standard_gamma",
    "_triton_scaled_dot_attention",
    "bernoulli.out",
    "bernoulli.p",
    "bernoulli_.Tensor",
    "bernoulli_.float",
    "binomial",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "miopen_rnn",
    "multinomial",
    "multinomial.out",
    "native_dropout",
    "normal.Tensor_Tensor",
    "normal.Tensor_Tensor_out",
    "normal.Tensor_float",
    "normal.Tensor_float_out",
    "normal.float_Tensor",
    "normal.float_Tensor_out",
    "normal_",
    "poisson",
    "random_",
    "random_.from",
    "random_.to",
    "randperm.generator_out",
    "rrelu_with_noise",
    "rrelu_with_noise.out",
    "rrelu_with_noise_",
    "uniform_",
)

#: Operators that call those above, by the operator that they draw with. They are intercepted only
#: while a mode of torch's dispatcher is active: the mode receives such an operator itself, and the
#: operators that are called below the mode skip the key.
COMPOSITE: Mapping[str, tuple[str, ...]] = {
    "normal_": (
        *("randn", "randn.generator", "randn.out", "randn.generator_out", "randn_like"),
        *("randn_like.generator", "randn_like.out", "randn_like.generator_out"),
        *("normal.float_float", "normal.float_float_out", "normal.out", "normal_functional"),
        # The overloads for named tensors, which torch 2.10 still has.
        *("randn.names", "randn.names_out", "randn.generator_with_names"),
        "randn.generator_with_names_out",
    ),
    "uniform_": (
        *("rand", "rand.generator", "rand.out", "rand.generator_out", "rand_like"),
        *("rand_like.generator", "rand_like.out", "rand_like.generator_out"),
        *("uniform", "uniform.out"),
        *("rand.names", "rand.names_out", "rand.generator_with_names"),
        "rand.generator_with_names_out",
    ),
    "random_.from": (
        *("randint", "randint.generator", "randint.out", "randint.generator_out", "randint.low"),
        *("randint.low_generator", "randint.low_out", "randint.low_generator_out"),
        *("randint_like", "randint_like.generator", "randint_like.out"),
        *("randint_like.generator_out", "randint_like.Tensor", "randint_like.Tensor_generator"),
        *("randint_like.Tensor_out", "randint_like.Tensor_generator_out"),
        *("randint_like.low_dtype", "randint_like.low_generator_dtype"),
        *("randint_like.low_dtype_out", "randint_like.low_generator_dtype_out"),
        *("random.from", "random.from_out"),
    ),
    "random_": ("random", "random.out"),
    "random_.to": ("random.to", "random.to_out"),
    "randperm.generator_out": ("randperm", "randperm.generator", "randperm.out"),
    "bernoulli_.float": ("bernoulli", "bernoulli.float_out"),
    "bernoulli_.Tensor": ("bernoulli.Tensor", "bernoulli.Tensor_out"),
    "cauchy_": ("cauchy", "cauchy.out"),
    "exponential_": ("exponential", "exponential.out"),
    "geometric_": ("geometric", "geometric.out"),
    "log_normal_": ("log_normal", "log_normal.out"),
    "rrelu_with_noise": ("rrelu_with_noise_functional",),
    "_cudnn_init_dropout_state": ("_cudnn_init_dropout_state.out",),
    "_cudnn_rnn": ("_cudnn_rnn.out",),
    "_fused_dropout": ("_fused_dropout.out",),
    "_lstm_mps": ("_lstm_mps.out",),
    "_sample_dirichlet": ("_sample_dirichlet.out",),
    "_standard_gamma": ("_standard_gamma.out",),
    "_triton_scaled_dot_attention": ("_triton_scaled_dot_attention.out",),
    "binomial": ("binomial.out",),
    "miopen_rnn": ("miopen_rnn.out",),
    "native_dropout": ("native_dropout.out",),
    "poisson": ("poisson.out",),
}

#: Operators that belong to random computations but draw nothing themselves.
NOT_DRAWING = (
    "_cudnn_attention_backward",
    "_flash_attention_forward.quantized",
    "_flash_attention_forward_no_dropout_inplace",
    "_fused_sdp_choice",
    "_nested_tensor_softmax_with_shape",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention.quantized",
)

#: Called instead of a dropout, with a callable that runs it and the tensor to drop from.
Dropping = Callable[[Callable[[], torch.Tensor], torch.Tensor], torch.Tensor]

#: The library that lets all other operators fall through. It is never removed, because threads that
#: the program leaves behind still include the key.
_fallback: Any = None


def why_not() -> str:
    """Why this torch's operators cannot be intercepted; "" if they can."""
    if keys.KEYS.why:
        return keys.KEYS.why
    try:
        key = keys.key_named(KEY_NAME)
    except RuntimeError as error:
        return str(error)
    if _fallback is None and keys.has_fallback(key):
        return f"other code in this process uses the dispatch key {KEY_NAME}"
    return ""


def let_others_through() -> None:
    """Lets operators without a kernel of this module's key fall through, for good.

    It takes some 30 ms and has no effect where the key is not included.
    """
    global _fallback
    if _fallback is None:
        library: Any = torch.library.Library
        _fallback = library("_", "IMPL")
        _fallback.fallback(torch.library.fallthrough_kernel, KEY_NAME)


@contextmanager
def intercepted(
    drawing: Drawing, dropping: Dropping | None = None, through: Through | None = None
) -> Iterator[None]:
    """Calls `drawing` instead of random operators, in this thread and those that it starts.

    `through` replaces the callable that runs an operator, such as by one that draws in another
    dtype (`record/program_dtype/draws.py`).

    Without `dropping`, a dropout on the CPU calls `drawing` for the `bernoulli_` with which it
    draws its mask from the default generator. With `dropping`, a `torch.nn.functional.dropout` of a
    plain CPU tensor calls only `dropping`, which is faster: a replaced Python function takes a
    fraction of the time of a kernel in Python. Requires that `why_not` returned "".
    """
    key = keys.key_named(KEY_NAME)
    let_others_through()
    hook = threading.getprofile()

    def in_thread(frame: FrameType, event: str, arg: object) -> None:
        sys.setprofile(None)
        keys.include(key, True)

    if hook is None:
        replacing(threading, "_profile_hook")
        threading.setprofile(in_thread)
    dropout: AbstractContextManager[None] = nullcontext()
    if dropping is not None:
        dropout = replaced_in_functional("dropout", partial(_dropout, dropping=dropping, key=key))
    try:
        used = _kernels.used(key, Interception(drawing, through))
        with dropout, used, keys.including(key):
            yield
    finally:
        if hook is None:
            threading.setprofile(None)


@contextmanager
def drawn_through(through: Through) -> Iterator[None]:
    """Replaces the callables that run random operators, where nobody asks what they draw."""
    with nullcontext() if why_not() else intercepted(_undisturbed, through=through):
        yield


def _undisturbed(
    name: str, call: Callable[..., Any], keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return call(keys, *args, **kwargs)


def register_for_good() -> None:
    """Registers the kernels of this process before it forks ranks, which then need not do it.

    They have no effect where the key is not included.  Requires that `why_not` returned "".
    """
    let_others_through()
    _kernels.add_user(keys.key_named(KEY_NAME))


class _Kernels:
    """The kernels of this process, which exist while any of its ranks intercepts operators."""

    def __init__(self) -> None:
        self._library: Any = None
        self._users = 0

    def add_user(self, key: Any) -> None:
        """Registers the kernels, and counts one more user, until whose end they stay."""
        if self._users == 0:
            self._library = _register(key)
        self._users += 1

    @contextmanager
    def used(self, key: Any, interception: Interception) -> Iterator[None]:
        """Intercepts the operators of this rank."""
        self.add_user(key)
        try:
            with interception.active():
                yield
        finally:
            self._users -= 1
            if self._users == 0:
                keys.remove_kernels(self._library)


_kernels = _Kernels()


def _register(key: Any) -> Any:
    """Registers a kernel for each random operator; returns the library that holds them."""
    library: Any = torch.library.Library
    kernels = library("aten", "IMPL")
    below = keys.keys_below(key)
    whole = [(name, name, False) for name in OPERATORS]
    made = [(name, inner, True) for inner, names in COMPOSITE.items() for name in names]
    drawn_by: dict[Any, str] = {}
    for name, drawn, composite in (*whole, *made):
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if operator is not None:
            drawn_by[operator] = drawn
            kernel = _kernel(drawn, operator, key, below, composite, drawn_by)
            kernels.impl(name, kernel, KEY_NAME, with_keyset=True)
    return kernels


def _kernel(
    name: str, operator: Any, key: Any, below: Any, composite: bool, drawn_by: Mapping[Any, str]
) -> Any:
    redispatch = redispatch_of(operator)
    exclude = keys.exclude

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        mine = active()
        if mine is None:  # a thread that the program left behind
            return redispatch(keyset & below, *args, **kwargs)
        subclass = False
        for value in args:
            if type(value) not in NOT_SUBCLASSES and isinstance(value, torch.Tensor):
                if keys.has_own_code(value):
                    with innermost(_Inside(mine.drawing, drawn_by, mine.through)):
                        return redispatch(keyset & below, *args, **kwargs)
                subclass = True
        if composite and (not modes_active() or on_fake_tensors()):
            # The operators that it calls are intercepted instead.
            return redispatch(keyset & below, *args, **kwargs)
        run = mine.run(operator, redispatch)
        exclude(key, True)
        try:
            if subclass:
                # Reading an attribute of the tensor must not call the `__torch_function__` of it.
                with without_torch_function():
                    return mine.drawing(name, run, keyset & below, args, kwargs)
            return mine.drawing(name, run, keyset & below, args, kwargs)
        finally:
            exclude(key, False)

    return kernel


class _Inside(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `drawing` for the random operators that a tensor subclass runs on inner tensors.

    `drawn_by` maps random operators to the names of the operators that they draw with.
    """

    def __init__(
        self, drawing: Drawing, drawn_by: Mapping[Any, str], through: Through | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawing, self._drawn_by, self._through = drawing, drawn_by, through

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if on_fake_tensors():
            return func(*args, **(kwargs or {}))
        if any(isinstance(value, torch.Tensor) and keys.has_own_code(value) for value in args):
            return NotImplemented  # torch then calls the subclass, with this mode active
        name = self._drawn_by.get(func)
        if name is None:
            return func(*args, **(kwargs or {}))

        def run(_: Any, *args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs)

        call = run if self._through is None else self._through(func, run)
        return self._drawing(name, call, None, args, kwargs or {})


@contextmanager
def not_intercepted() -> Iterator[None]:
    """Runs random operators in this context as torch does: for draws that are not the program's."""
    if why_not():
        yield
        return
    key = keys.key_named(KEY_NAME)
    excluded = keys.is_excluded(key)
    keys.exclude(key, True)
    try:
        yield
    finally:
        keys.exclude(key, excluded)


def _dropout(original: Any, dropping: Dropping, key: Any) -> Callable[..., torch.Tensor]:
    """The replacement of the function in C that `torch.nn.functional.dropout` calls."""
    included = keys.is_included
    exclude = keys.exclude

    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if (
            train
            and type(x) in PLAIN
            and x.is_cpu
            and not x.is_nested
            and included(key)
            and not modes_active()
            and not inside_transform()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        ):
            exclude(key, True)
            try:
                return dropping(lambda: original(x, p, train), x)
            finally:
                exclude(key, False)
        dropped: torch.Tensor = original(x, p, train)
        return dropped

    return dropout
