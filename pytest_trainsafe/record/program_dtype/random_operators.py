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
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.record.program_dtype.interception import Interception, active

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

#: Called instead of an operator, with its name, a callable that runs the operator itself, the
#: dispatch keys that this callable takes first, and the operator's arguments.
Drawing = Callable[[str, Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

#: Called instead of a dropout, with a callable that runs it and the tensor to drop from.
Dropping = Callable[[Callable[[], torch.Tensor], torch.Tensor], torch.Tensor]

#: Returns what runs instead of a callable that runs a random operator, from the operator and the
#: callable.
Through = Callable[[Any, Callable[..., Any]], Callable[..., Any]]

#: The library that lets all other operators fall through. It is never removed, because threads that
#: the program leaves behind still include the key.
_fallback: Any = None


def why_not() -> str:
    """Why this torch's operators cannot be intercepted; "" if they can."""
    try:
        key = torch._C._dispatch_key_parse(KEY_NAME)
    except (AttributeError, RuntimeError) as error:
        return str(error)
    if _fallback is None and torch._C._dispatch_has_backend_fallback(key):
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
    key = torch._C._dispatch_key_parse(KEY_NAME)
    let_others_through()
    hook = threading.getprofile()

    def in_thread(frame: FrameType, event: str, arg: object) -> None:
        sys.setprofile(None)
        torch._C._dispatch_tls_set_dispatch_key_included(key, True)

    if hook is None:
        replacing(threading, "_profile_hook")
        threading.setprofile(in_thread)
    functions = vars(torch._VF)
    own = functions.get("dropout")
    if dropping is not None:
        replacing(torch._VF, "dropout")
        functions["dropout"] = _dropout(torch._VF.dropout, dropping, key)
    try:
        used = _kernels.used(key, Interception(drawing, through))
        with used, torch._C._IncludeDispatchKeyGuard(key):
            yield
    finally:
        if hook is None:
            threading.setprofile(None)
        if own is not None:
            functions["dropout"] = own
        elif dropping is not None:
            functions.pop("dropout", None)


@contextmanager
def drawn_through(through: Through) -> Iterator[None]:
    """Replaces the callables that run random operators, where nobody asks what they draw."""
    with nullcontext() if why_not() else intercepted(_undisturbed, through=through):
        yield


def _undisturbed(
    name: str, call: Callable[..., Any], keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return call(keys, *args, **kwargs)


class _Kernels:
    """The kernels of this process, which exist while any of its ranks intercepts operators."""

    def __init__(self) -> None:
        self._library: Any = None
        self._users = 0

    @contextmanager
    def used(self, key: Any, interception: Interception) -> Iterator[None]:
        """Intercepts the operators of this rank."""
        if self._users == 0:
            self._library = _register(key)
        self._users += 1
        try:
            with interception.active():
                yield
        finally:
            self._users -= 1
            if self._users == 0:
                self._library._destroy()


_kernels = _Kernels()


def _register(key: Any) -> Any:
    """Registers a kernel for each random operator; returns the library that holds them."""
    library: Any = torch.library.Library
    kernels = library("aten", "IMPL")
    below = torch._C._dispatch_keyset_full_after(key)
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
    # The function that `operator.redispatch` calls, which saves a call.
    redispatch = getattr(operator._handle, "redispatch_boxed", operator.redispatch)
    exclude = torch._C._dispatch_tls_set_dispatch_key_excluded

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        mine = active()
        if mine is None:  # a thread that the program left behind
            return redispatch(keyset & below, *args, **kwargs)
        subclass = False
        for value in args:
            if type(value) not in NOT_SUBCLASSES and isinstance(value, torch.Tensor):
                if _has_own_code(value):
                    with _with_innermost(_Inside(mine.drawing, drawn_by, mine.through)):
                        return redispatch(keyset & below, *args, **kwargs)
                subclass = True
        if composite and (not torch._C._len_torch_dispatch_stack() or _traced()):
            # The operators that it calls are intercepted instead.
            return redispatch(keyset & below, *args, **kwargs)
        run = mine.run(operator, redispatch)
        exclude(key, True)
        try:
            if subclass:
                # Reading an attribute of the tensor must not call the `__torch_function__` of it.
                with torch._C.DisableTorchFunctionSubclass():
                    return mine.drawing(name, run, keyset & below, args, kwargs)
            return mine.drawing(name, run, keyset & below, args, kwargs)
        finally:
            exclude(key, False)

    return kernel


def _has_own_code(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that runs operators by its `__torch_dispatch__`."""
    python: bool = torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    return python


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
        if _traced():
            return func(*args, **(kwargs or {}))
        if any(isinstance(value, torch.Tensor) and _has_own_code(value) for value in args):
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
    key = torch._C._dispatch_key_parse(KEY_NAME)
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, excluded)


@contextmanager
def _with_innermost(mode: TorchDispatchMode) -> Iterator[None]:
    """Makes `mode` the innermost mode, so that the program's modes receive the operator first."""
    if any(torch._C._get_dispatch_mode(key) is not None for key in _TRACING):
        yield
        return
    push, pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack
    others = [pop(None) for _ in range(torch._C._len_torch_dispatch_stack())]
    push(mode)
    for other in reversed(others):
        push(other)
    try:
        yield
    finally:
        for _ in others:
            pop(None)
        pop(None)
        for other in reversed(others):
            push(other)


def _dropout(original: Any, dropping: Dropping, key: Any) -> Callable[..., torch.Tensor]:
    """The replacement of `torch._VF.dropout`, which `torch.nn.functional.dropout` calls."""
    included = torch._C._dispatch_tls_is_dispatch_key_included
    exclude = torch._C._dispatch_tls_set_dispatch_key_excluded

    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if (
            train
            and type(x) in PLAIN
            and x.is_cpu
            and not x.is_nested
            and included(key)
            and not torch._C._len_torch_dispatch_stack()
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch._C._get_tracing_state() is None
        ):
            exclude(key, True)
            try:
                return dropping(lambda: original(x, p, train), x)
            finally:
                exclude(key, False)
        dropped: torch.Tensor = original(x, p, train)
        return dropped

    return dropout


def _traced() -> bool:
    """Whether operators run on fake tensors, as during compilation, so that nothing is drawn."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


#: The modes with which torch traces operators.
_TRACING = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)
