"""torch's process group for ranks that run in turn.

Methods have the names and arguments by which torch's Python and C++ code calls a backend; for some
collectives both an old and a new name are in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.futures import Future

from pytest_trainsafe.compat.dispatch_modes import reducing_mode
from pytest_trainsafe.compat.distributed.held_work import Begun, Held, below_python
from pytest_trainsafe.compat.distributed.rank_worlds import BACKEND, RENAMED
from pytest_trainsafe.core.code_files import calling_lines
from pytest_trainsafe.launch.collectives import in_flight, ledger
from pytest_trainsafe.launch.collectives.in_flight import Flight
from pytest_trainsafe.launch.threads.collectives import Given, reduction_name
from pytest_trainsafe.launch.threads.mail import Mail, Message
from pytest_trainsafe.launch.threads.meeting import GroupKey, Meeting, Meetings

Tensors = Sequence[torch.Tensor]

#: torch declares overloads of each method; its Python code calls only those below.
_ProcessGroup: Any = dist.ProcessGroup
_TorchWork: Any = dist.Work


class _Work(_TorchWork):  # type: ignore[misc]
    """What torch returns for a call; the rank hands over while it waits for it."""

    def __init__(self, group: TurnGroup, outputs: Tensors, flight: Flight | None) -> None:
        super().__init__()
        self._group, self._outputs, self._flight = group, list(outputs), flight
        self._call = ledger.number_of_call()
        self._held: Held | None = None

    def hold(self, call: str, inputs: Tensors, outputs: Tensors) -> None:
        """Makes a wait notice that the program has changed an input since the call."""
        from pytest_trainsafe.arithmetic.errors import changed_in_flight  # of the mode

        def finish() -> Tensors:
            self._complete()
            return outputs

        self._held = Held(finish, outputs, inputs, changed_in_flight(call))

    def wait(self, timeout: Any = None) -> bool:
        """Returns when the call is complete; there are no timeouts."""
        with ledger.waiting(self, self._call):
            if self._held is None:
                self._complete()
            else:
                self._held.deliver()
        in_flight.landed(self._flight)
        return True

    def _complete(self) -> None:
        raise NotImplementedError

    def is_completed(self) -> bool:
        """Whether the call is complete, after other ranks have had a turn if it is not."""
        if not self._is_done():
            self._group.meetings.turns.offer()
        if self._is_done():  # the program need not wait any more
            self.wait()
        return self._is_done()

    def _is_done(self) -> bool:
        raise NotImplementedError

    def is_success(self) -> bool:
        """Whether the call is complete."""
        return self.is_completed()

    def exception(self) -> None:
        """None: a call that fails raises an exception at once."""

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors into which the call writes."""
        return self._outputs

    def get_future(self) -> Future[Any]:
        """A completed Future: waits first, because C++ waits for a Future without handing over."""
        self.wait()
        future: Future[Any] = Future()
        future.set_result(self._outputs)
        return future


class _Collective(_Work):
    def __init__(
        self, group: TurnGroup, meeting: Meeting, outputs: Tensors, flight: Flight | None
    ) -> None:
        super().__init__(group, outputs, flight)
        self._meeting = meeting

    def _complete(self) -> None:
        self._group.meetings.wait(self._meeting, self._group.at)

    def _is_done(self) -> bool:
        return self._meeting.done


class _PointToPoint(_Work):
    def __init__(self, group: TurnGroup, message: Message, flight: Flight | None) -> None:
        super().__init__(group, [message.tensor], flight)
        self._message = message

    def _complete(self) -> None:
        self._group.mail.wait(self._message)

    def _is_done(self) -> bool:
        return self._message.done

    def _source_rank(self) -> int:
        assert self._message.peer is not None
        return self._message.peer

    def source_rank(self) -> int:
        """The number in the group of the rank that sent."""
        return self._source_rank()


class _Reduced(_Work):
    """A reduction that a mode computes when the rank waits for it.

    `inputs` are those that the program may not change before, none of a call that waits itself.
    """

    def __init__(self, group: TurnGroup, begun: Begun, inputs: Tensors, outputs: Tensors) -> None:
        super().__init__(group, outputs, None)
        self._begun, self._held = begun, Held(begun.finish, outputs, inputs)

    def _is_done(self) -> bool:
        return all(each._is_done() for each in self._begun.works)


class TurnGroup(_ProcessGroup):  # type: ignore[misc]
    """One rank's handle of a process group; `at` is its number in the group."""

    def __init__(
        self, meetings: Meetings, mail: Mail, at: int, name: str, members: tuple[int, ...]
    ) -> None:
        super().__init__(at, len(members))
        self.meetings, self.mail, self.at = meetings, mail, at
        self.key: GroupKey = (name, members)
        self._description = ""

    @property
    def group_name(self) -> str:
        """The name by which torch registers the group."""
        return self.key[0]

    def getBackendName(self) -> str:
        """The backend's own name: C++ code expects the classes of gloo behind that of gloo."""
        return BACKEND

    def getGroupName(self) -> str:
        """The name by which torch registers the group."""
        return self.key[0]

    def setGroupName(self, name: str) -> None:
        """Does nothing: the name was given before."""

    def getGroupDesc(self) -> str:
        """The description that torch gave the group."""
        return self._description

    def setGroupDesc(self, text: str) -> None:
        """Keeps the group's description."""
        self._description = text

    def abort(self) -> None:
        """Does nothing: no connection is open."""

    def shutdown(self) -> None:
        """Does nothing: no connection is open."""

    def set_timeout(self, timeout: Any) -> None:
        """Does nothing: there are no timeouts."""

    def _set_sequence_number_for_group(self) -> None:
        return

    # Collectives.

    def _call(self, given: Given, opts: Any = None) -> _Collective:
        given.is_async = _is_async(opts)
        line = ledger.note(given.op, self.key, given.inputs, given.reduction, given.root)
        meeting = self.meetings.call(self.key, self.at, given, line)
        flight = None
        if given.is_async:
            flight = in_flight.departed(given, line, given.inputs, given.outputs)
        work = _Collective(self, meeting, given.outputs, flight)
        if given.is_async and reducing_mode() is not None:
            work.hold(given.op, given.inputs, given.outputs)
        return work

    def _by_mode(
        self, inputs: Tensors, op: Any, opts: Any, outputs: Tensors, taken: slice = slice(None)
    ) -> _Work | None:
        """A reduction of tensors whose numbers only a mode can add; None if there is none.

        A group in C++ calls operators, which modes see; what this group computes they do not.
        `taken` are the results that this rank receives.
        """
        mode = reducing_mode()
        if mode is None or not any(each.is_floating_point() for each in inputs):
            return None
        works, finish = mode.reduced_over(inputs, self, reduction_name(op).lower())
        kept = inputs if _is_async(opts) else ()
        return _Reduced(self, Begun(works, lambda: finish()[taken]), kept, outputs)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> _Work:
        """Reduces tensors in place."""
        tensors = _listed(tensors)
        op = ReduceOp.SUM if opts is None else opts.reduceOp
        return self._by_mode(tensors, op, opts, tensors) or self._call(
            Given("all_reduce", list(tensors), list(tensors), op), opts
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> _Work:
        """Reduces several tensors in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> _Work:
        """Reduces into the root's tensor."""
        root = opts.rootRank
        outputs = list(tensors) if root == self.at else []
        taken = slice(len(outputs))
        return self._by_mode(tensors, opts.reduceOp, opts, outputs, taken) or self._call(
            Given("reduce", list(tensors), outputs, opts.reduceOp, root), opts
        )

    def broadcast(self, tensors: Tensors, opts: Any = None) -> _Work:
        """Copies the root's tensors to all ranks."""
        root, tensors = 0 if opts is None else opts.rootRank, _listed(tensors)
        return self._call(Given("broadcast", list(tensors), list(tensors), root=root), opts)

    def allgather(self, outputs: Any, inputs: Tensors, opts: Any = None) -> _Work:
        """Gathers each input into a list of tensors, one for each rank."""
        flat = [tensor for each in outputs for tensor in each]
        return self._call(Given("all_gather", list(inputs), flat), opts)

    def allgather_coalesced(self, outputs: Any, inputs: Tensors, opts: Any = None) -> _Work:
        """Gathers several inputs; `outputs[i]` is a list of one tensor for each rank."""
        return self.allgather(outputs, inputs, opts)

    def all_gather_single(self, output: Any, given: torch.Tensor, opts: Any = None) -> _Work:
        """Gathers into one tensor."""
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> _Work:
        """Gathers several inputs, each into one tensor."""
        flat = [part for each in outputs for part in self._parts(each)]
        return self._call(Given("all_gather", list(inputs), flat), opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Any, opts: Any = None) -> _Work:
        """Reduces lists of one tensor for each rank, of which each rank receives its own."""
        flat = [tensor for each in inputs for tensor in each]
        op = ReduceOp.SUM if opts is None else opts.reduceOp
        taken = slice(self.at, None, self.size())
        return self._by_mode(flat, op, opts, outputs, taken) or self._call(
            Given("reduce_scatter", flat, list(outputs), op), opts
        )

    def reduce_scatter_single(self, output: Any, given: torch.Tensor, opts: Any = None) -> _Work:
        """Reduces a tensor of which each rank receives its part."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> _Work:
        """Reduces several tensors of which each rank receives its part."""
        return self.reduce_scatter(outputs, [self._parts(each) for each in inputs], opts)

    def gather(self, outputs: Any, inputs: Tensors, opts: Any) -> _Work:
        """Gathers into the root's list."""
        flat = [tensor for each in outputs for tensor in each]
        return self._call(Given("gather", list(inputs), flat, root=opts.rootRank), opts)

    def scatter(self, outputs: Tensors, inputs: Any, opts: Any) -> _Work:
        """Gives each rank its tensor of the root's list."""
        flat = [tensor for each in inputs for tensor in each]
        return self._call(Given("scatter", flat, list(outputs), root=opts.rootRank), opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> _Work:
        """Sends a tensor to each rank, and receives one from each."""
        return self._call(Given("all_to_all", list(inputs), list(outputs)), opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> _Work:
        """Sends rows to each rank, and receives rows from each."""
        gives, takes = list(input_split_sizes or ()), list(output_split_sizes or ())
        part = Given("all_to_all_single", [given], [output], gives=gives, takes=takes)
        return self._call(part, opts)

    def barrier(self, opts: Any = None) -> _Work:
        """Waits for all ranks."""
        return self._call(Given("barrier"), opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks; there are no timeouts."""
        self._call(Given("barrier")).wait()

    def _parts(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """One tensor as equal parts, one for each rank, that share its memory."""
        world = self.size()
        with below_python():  # no mode needs to see these views
            flat = tensor.detach().view(-1)
            size = -(-flat.numel() // world)
            return [flat[rank * size : (rank + 1) * size] for rank in range(world)]

    # Sends and receives.

    def _post(self, sends: bool, tensors: Tensors, peer: int | None, tag: int) -> _Work:
        if peer == self.at:
            raise RuntimeError(f"rank {self.key[1][peer]} cannot communicate with itself")
        line = calling_lines()[0]
        message = Message(self.key, sends, self.at, peer, tag, tensors[0], line)
        buffers = (tensors, ()) if sends else ((), tensors)
        flight = in_flight.departed(message.call, line, *buffers)
        work = _PointToPoint(self, self.mail.post(message), flight)
        if sends and reducing_mode() is not None:
            work.hold(message.call, tensors, ())
        return work

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> _Work:
        """Sends a tensor; the Work is complete when the other rank has posted the receive."""
        return self._post(True, tensors, dst, tag)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> _Work:
        """Receives a tensor."""
        return self._post(False, tensors, src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> _Work:
        """Receives a tensor from the rank that sends first."""
        return self._post(False, tensors, None, tag)


def _listed(tensors: Tensors | torch.Tensor) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


for _old, _new in RENAMED.items():
    setattr(TurnGroup, _old, getattr(TurnGroup, _new))


def _is_async(opts: Any) -> bool:
    """Whether the program waits for a call by its Work, as C++ code always does."""
    return bool(getattr(opts, "asyncOp", True))
