"""Works whose results nobody sees before the program waits for them.

A backend completes an asynchronous call when it can, so a program that does not wait for it may
read the right values by chance.  Here the call runs on copies, and `wait` writes the results.

Needs `boxed` and `unbox` of torch.distributed.Work and `_register_work` of
torch._C._distributed_c10d, and to hide operators `_DisableTorchDispatch` and
`DisableTorchFunction` of torch._C.  torch 2.10 to 2.14 have all of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.futures import Future

from pytest_trainsafe.compat.operators import used_tensors
from pytest_trainsafe.compat.tensors import bytes_of
from pytest_trainsafe.core.rank.state import keep_per_rank

Tensors = Sequence[torch.Tensor]

#: torch's C++ code, seen through `Any`: its stubs lack some names.
_C: Any = torch._C
_Work: Any = dist.Work


@contextmanager
def below_python() -> Iterator[None]:
    """Hides operators in this context from modes and autograd, as those of a C++ backend are."""
    with _C._DisableTorchDispatch(), _C.DisableTorchFunction(), torch.no_grad():
        yield


def hide(inputs: Tensors, outputs: Tensors) -> list[torch.Tensor]:
    """Fills buffers that are only received into with NaN, until the call completes.

    Returns the outputs that keep their values: those of integers, and those that are inputs too.
    """
    given = {each.untyped_storage().data_ptr() for each in inputs}
    kept = []
    with below_python():
        for each in outputs:
            # An input may be a part of the output, as of a gather in place.
            if each.is_floating_point() and each.untyped_storage().data_ptr() not in given:
                each.data.fill_(torch.nan)
            else:
                kept.append(each)
    return kept


def write(output: torch.Tensor, value: torch.Tensor) -> None:
    """Writes into a tensor without autograd's notice, as a C++ backend does."""
    output.data.copy_(value if value.shape == output.shape else value.reshape(output.shape))


class Begun(NamedTuple):
    """A call that has begun: the Works of its communication, and what waits for the results."""

    works: Sequence[Any]
    finish: Callable[[], list[torch.Tensor]]


class Held:
    """The results of a call, which are written into `outputs` by `deliver`.

    `finish` waits for the call and returns what each output gets.  If the program has changed one
    of `inputs` since the call, the results are NaN: a backend may read an input until the call is
    waited for.  Where no output can be NaN, as of a send, `deliver` raises `changed`.
    """

    def __init__(
        self,
        finish: Callable[[], Tensors],
        outputs: Tensors,
        inputs: Tensors = (),
        changed: Exception | None = None,
    ) -> None:
        self.outputs, self._changed = list(outputs), changed
        self._finish: Callable[[], Tensors] | None = finish
        with below_python():
            self._taken = [(each, each.detach().clone()) for each in inputs]
        places = [place for each in hide(inputs, outputs) if (place := bytes_of(each))]
        if places:
            _kept[self] = places

    def deliver(self) -> None:
        """Writes the results, the first time."""
        if self._finish is None:
            return
        with below_python():
            # Before the results are written: an output may be an input.
            kept = all(_same_bits(now.detach(), then) for now, then in self._taken)
            values = self._finish()
            for output, value in zip(self.outputs, values, strict=True):
                if kept and output is not value:
                    write(output, value)
                elif not kept and output.is_floating_point():
                    output.data.fill_(torch.nan)
        self._finish, self._taken = None, []
        _kept.pop(self, None)
        if not kept and self._changed and not any(map(torch.is_floating_point, self.outputs)):
            raise self._changed


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype have equal bits, NaN included."""
    if one.dtype is not torch.float64:
        return torch.equal(one, other)
    return torch.equal(one.contiguous().view(torch.int64), other.contiguous().view(torch.int64))


#: The addresses of outputs in flight that have old values.
_kept: dict[Held, list[tuple[int, int]]] = {}
keep_per_rank(__name__, "_kept")


def uses_in_flight(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator uses a tensor that a call is still to write, and that is not NaN."""
    if not _kept:
        return False
    used = [place for each, _ in used_tensors(func, args, kwargs) if (place := bytes_of(each))]
    return any(
        first < last_used and first_used < last
        for places in _kept.values()
        for first, last in places
        for first_used, last_used in used
    )


class HeldWork(_Work):  # type: ignore[misc]
    """A Work of a backend in C++ that delivers when it is waited for; `inner` are the backend's.

    C++ code may hold the only reference to a Work, and calls methods in Python only while the
    object in Python lives.  So the object is kept until it has delivered.
    """

    def __init__(self, held: Held, inner: Sequence[Any]) -> None:
        super().__init__()
        self._held, self._inner = held, inner
        _undelivered[id(self)] = self

    def wait(self, timeout: Any = None) -> bool:
        """Returns when the call is complete and its results are written."""
        if timeout:
            for each in self._inner:
                each.wait(timeout)
        self._held.deliver()
        _undelivered.pop(id(self), None)
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call is complete; its results are written then."""
        return all(each.is_completed() for each in self._inner) and self.wait()

    def is_success(self) -> bool:
        """Whether the call is complete."""
        return self.is_completed()

    def exception(self) -> None:
        """None: a call that fails raises an exception when it is waited for."""

    def result(self) -> list[torch.Tensor]:
        """The tensors into which the call writes."""
        return self._held.outputs

    def get_future(self) -> Future[Any]:
        """A completed Future: C++ code waits for one without asking this object."""
        self.wait()
        future: Future[Any] = Future()
        future.set_result(self._held.outputs)
        return future

    def source_rank(self) -> int:
        """The number in the group of the rank that sent."""
        return int(self._inner[0]._source_rank())

    _source_rank = source_rank


#: The Works that the program has not waited for.
_undelivered: dict[int, HeldWork] = {}
keep_per_rank(__name__, "_undelivered")


def boxed(work: Any) -> Any:
    """A Work as operators return it."""
    return work.boxed()


def unboxed(returned: Any) -> Any:
    """The Work that an operator returned."""
    return _Work.unbox(returned)


def wait_by_tensor(tensor: torch.Tensor, work: HeldWork) -> None:
    """Makes torch's `wait_tensor` of a functional collective's result wait for a Work."""
    _C._distributed_c10d._register_work(tensor, work)
