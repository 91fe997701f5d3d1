"""Records what flows between modules: every output, and the gradient that reaches it.

Uses only forward hooks and tensor hooks.  Module backward hooks fail on outputs that are modified
in place, and ignore outputs that are not plain tensors; a hook on the output tensor handles both.
Values are copied, since later in-place operations would change them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.compat import modules
from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.hooks.changes import Changes, OutputNoise
from pytest_trainsafe.record.hooks.choices import Chooser, Decide
from pytest_trainsafe.record.hooks.decisions import Replayed, require_decision
from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks
from pytest_trainsafe.record.hooks.not_recorded import not_recorded
from pytest_trainsafe.record.hooks.outputs import arguments, has_values, tensors_in, with_aliases
from pytest_trainsafe.record.lines.sites import Sites
from pytest_trainsafe.record.tensors import (
    alias_for_gradient,
    local_values,
    on_gradient,
    on_output_gradient,
    own_layout,
    tensor_hash,
)
from pytest_trainsafe.trace.local_key_paths import covers, note_of
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.tensors.snapshot import TensorSnapshot
from pytest_trainsafe.trace.writer import RankWriter

PendingGradient = tuple[TensorSnapshot, Layout, str]


class ActivationRecorder:
    """Hooks the modules of one model.

    Gradients are kept until their micro-batch is over: several backward passes may reach one
    output (for example, one for each of two losses), and their sum is recorded.
    """

    def __init__(
        self,
        assignment: Assignment,
        clock: Clock,
        writer: RankWriter,
        annotations: Annotations,
        changes: Changes,
        sites: Sites | None = None,
        hooks: ModuleHooks | None = None,
    ) -> None:
        self.spec = spec = assignment.spec
        self.hooks = hooks or ModuleHooks()
        self.point = spec.point
        self.sizes = self.point.sizes
        self.clock = clock
        self.writer = writer
        self.annotations = annotations
        self.noise, self.rewriter = changes.noise, changes.rewriter
        self.sites = sites
        coordinates = self.point.coordinates(writer.rank)
        self.replayed = None
        if assignment.replayed:
            self.replayed = Replayed(assignment.replayed, coordinates, self.sizes)
        self._held: defaultdict[int, dict[TensorId, PendingGradient]] = defaultdict(dict)
        self._written: set[int] = set()
        self._leaf_hooks: list[RemovableHandle] = []
        self._noted: set[NoteEvent] = set()
        self._checked_for_dropout: set[str] = set()
        #: The decisions that this step replayed, by module, call number and hash of the scores.
        self._chosen: dict[tuple[str, int, str], torch.Tensor] = {}
        self._device = assignment.device
        self._layouts: dict[tuple[str, str, tuple[int, ...], bool], tuple[Layout, str]] = {}
        #: Removes the loss scale from a gradient, if a framework uses one.
        self.unscaled: Callable[[torch.Tensor], torch.Tensor] = lambda grad: grad

    def perturb(self, names: dict[nn.Module, str]) -> None:
        """Installs the hooks that add noise to the outputs of leaf modules."""
        for module, name in names.items():
            leaf = next(module.children(), None) is None
            if self.noise is not None and leaf:
                self.hooks.after(module, name, self._perturb(module, name, self.noise))

    def attach(self, names: dict[nn.Module, str]) -> None:
        """Installs the hooks that record; call it after `perturb`, so that they see the noise."""
        for module, name in names.items():
            selected = any(fnmatchcase(name, pattern) for pattern in self.spec.modules)
            decision = self.annotations.decision(name)
            if decision == "output":
                self.hooks.after(module, name, self._decide(module, name))
                continue
            local = self.annotations.local(name, self.point)
            for key_path in local:
                self._note(NoteEvent("local", note_of(name, key_path)))
            if "output" in local:
                selected = False
            elif decision == "topk":
                chooser = Chooser(module, name, self._choosing(name))
                self.hooks.before(module, name, chooser.enter)
                self.hooks.after(module, name, chooser.leave, always_call=True)
            # A Run that rewrites outputs records all inputs in a way of its own.
            if selected and self.rewriter is None and self.annotations.takes_inputs(name):
                self.hooks.before(module, name, self._record_inputs(module, name, local))
            self.hooks.after(module, name, self._record(module, name, selected, local))
        if self.rewriter is not None:
            self.rewriter.attach(names, self.hooks)

    def write(self, microbatch: int) -> None:
        """Writes the gradients that arrived for a micro-batch to the trace.

        Gradients that arrive for the micro-batch after this call are ignored.
        """
        for where, (snapshot, layout, source) in self._held.pop(microbatch, {}).items():
            self.writer.add_snapshot(where, snapshot, layout, source)
        self._written.add(microbatch)
        if self.rewriter is not None:
            self.rewriter.write(microbatch)

    def write_all(self) -> None:
        """Writes the gradients of all micro-batches, even of those that may not be finished."""
        for microbatch in sorted(self._held):
            self.write(microbatch)

    def drop(self, microbatch: int) -> None:
        """Discards the gradients of a micro-batch that an exception ended."""
        self._held.pop(microbatch, None)
        self._written.add(microbatch)

    def end_step(self) -> None:
        """Discards the state of the step, including gradients that were not written."""
        self._held.clear()
        self._written.clear()
        self._checked_for_dropout.clear()
        self._chosen.clear()
        # An output may be a parameter, on which a hook would stay forever.
        for handle in self._leaf_hooks:
            handle.remove()
        self._leaf_hooks.clear()

    def _record(
        self, watched: nn.Module, name: str, selected: bool, local: Sequence[str] = ()
    ) -> Any:
        def kept(kind: str, key_path: str) -> bool:
            return selected and self._kept(kind, key_path, local)

        def hook(module: nn.Module, args: object, kwargs: object, output: object) -> object:
            step, microbatch = self.clock.step, self.clock.microbatch
            # A deep copy of the model shares the hooks of the model.
            if module is not watched or step is None or microbatch is None:
                return output
            self._note_conditions(module, name)
            call, recomputing = self.clock.call(name) if selected else (0, False)
            base = TensorId(step, microbatch, "activation", name, "output", call or 0)
            same = isinstance(module, nn.Identity)
            if call is None:
                return self._leaving(base, output, True, same)
            for key_path, tensor in self._tensors(name, output):
                where = (
                    base if key_path == "output" else msgspec.structs.replace(base, name=key_path)
                )
                if not recomputing and kept("activation", key_path):
                    values, layout, source = self._local(where, tensor)
                    self.writer.add_tensor(where, values, layout, source)
                if tensor.requires_grad:
                    # Hook all outputs, recorded or not, to find a backward's micro-batch.
                    gradient = msgspec.structs.replace(where, kind="activation_grad")
                    keep = kept("activation_grad", key_path)
                    handle = on_output_gradient(tensor, self._hold(gradient, keep, tensor.is_leaf))
                    if tensor.is_leaf:
                        self._leaf_hooks.append(handle)
            return self._leaving(base, output, recomputing, same) if selected else output

        return hook

    def _kept(self, kind: str, key_path: str, local: Sequence[str]) -> bool:
        """Whether tensors of a kind are recorded, for a key path of a module that has `local`."""
        gradient = kind == "activation_grad"
        return self.spec.records(kind) and not any(
            covers(each, key_path, gradient) for each in local
        )

    def _record_inputs(self, watched: nn.Module, name: str, local: Sequence[str]) -> Any:
        """Records what a module is given, as TTrace's Figure 3 declares it, and its gradients."""

        def hook(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            step, microbatch = self.clock.step, self.clock.microbatch
            if module is not watched or step is None or microbatch is None:
                return None
            call, recomputing = self.clock.call(f"{name} (input)")
            if call is None:
                return None
            aliases: dict[int, torch.Tensor] = {}
            for key_path, tensor in tensors_in(arguments(args, kwargs), "input"):
                where = TensorId(step, microbatch, "activation", name, key_path, call)
                if not recomputing and self._kept("activation", key_path, local):
                    self.writer.add_tensor(where, *self._local(where, tensor))
                if id(tensor) in aliases or not self._kept("activation_grad", key_path, local):
                    continue
                alias = alias_for_gradient(tensor)
                if alias is not tensor:
                    aliases[id(tensor)] = alias
                    gradient = msgspec.structs.replace(where, kind="activation_grad")
                    on_gradient(alias, self._hold(gradient, True, False))
            return with_aliases(args, kwargs, aliases)

        return hook

    def _tensors(self, name: str, output: object) -> Iterable[tuple[str, torch.Tensor]]:
        """The tensors in a module's output, by key path; notes the values that are not recorded."""
        if type(output) is torch.Tensor and has_values(output):  # the common case
            return (("output", output),)
        for what in not_recorded(output):
            self._note(NoteEvent("not_compared", f"{name or 'the root module'}: {what}"))
        return tensors_in(output)

    def _leaving(
        self, base: TensorId, output: object, recomputing: bool, passes_on: bool
    ) -> object:
        """Returns the value that the module returns: `output`, unless this Run rewrites outputs.

        In a Run with a rewriter, returns the result of its `outputs`.  The docstring of that
        method explains the parameters.
        """
        if self.rewriter is None:
            return output
        return self.rewriter.outputs(base, output, recomputing, passes_on)

    def _decide(self, watched: nn.Module, name: str) -> Any:
        def hook(module: nn.Module, args: object, kwargs: object, output: object) -> object:
            step, microbatch = self.clock.step, self.clock.microbatch
            if module is not watched or step is None or microbatch is None:
                return None
            scores, own = require_decision(name, args, output)
            call, recomputing = self.clock.call(name)
            if call is None:
                return None
            where = TensorId(step, microbatch, "decision", name, "output", call)
            values, layout, source = self._local(where, own)
            if not recomputing and self.spec.records("decision"):
                self.writer.add_tensor(where, values, layout, source)
                by = msgspec.structs.replace(where, name="scores")
                self.writer.add_tensor(by, local_values(scores), layout, source)
            return self.replayed.part(where, own, layout) if self.replayed else None

        return hook

    def _choosing(self, name: str) -> Callable[[], Decide | None]:
        """Returns the function that a module's Chooser calls when a forward of the module begins.

        That function returns another one, of type Decide, which the Chooser calls for each choice
        in this forward: it records the choice, and returns the indices to use.  In a Run that
        replays the choices of another Run, these are the indices of that Run.
        """

        def begin_call() -> Decide | None:
            step, microbatch = self.clock.step, self.clock.microbatch
            if step is None or microbatch is None:
                return None
            if in_backward():
                return self._chosen_before(name)
            call, _ = self.clock.call(f"{name} (choice)")
            base = TensorId(step, microbatch, "decision", name, "output", call or 0)

            def decide(scores: torch.Tensor, own: torch.Tensor, number: int) -> torch.Tensor:
                after = f".{number}" if number else ""
                where = msgspec.structs.replace(base, name=f"output{after}")
                layout, source = self._annotated(base, own.shape)
                if self.spec.records("decision"):
                    self.writer.add_tensor(where, local_values(own), layout, source)
                    by = msgspec.structs.replace(where, name=f"scores{after}")
                    self.writer.add_tensor(by, local_values(scores), layout, source)
                if self.replayed is None:
                    return own
                chosen = self.replayed.part(where, own, layout)
                self._chosen[name, number, tensor_hash(scores)] = chosen
                return chosen

            return decide

        return begin_call

    def _chosen_before(self, name: str) -> Decide:
        """Returns the Decide function for a forward inside a backward (activation recomputation).

        This function returns the indices that the original forward replayed for the same scores, or
        the module's own indices if the original forward replayed none.
        """

        def decide(scores: torch.Tensor, own: torch.Tensor, number: int) -> torch.Tensor:
            if not self._chosen:
                return own
            return self._chosen.get((name, number, tensor_hash(scores)), own)

        return decide

    def _hold(self, where: TensorId, keep: bool, leaf: bool) -> Callable[[torch.Tensor], None]:
        microbatch = where.microbatch
        assert microbatch is not None

        def hook(grad: torch.Tensor) -> None:
            if where.step != self.clock.step:
                return
            # A leaf is the same tensor in every micro-batch, and so has the hooks of all of them.
            if leaf and self.clock.microbatch != microbatch:
                return
            self.clock.backward(microbatch, sure=not leaf)
            if self.sites is not None:
                self.sites.note("backward", (where.step, microbatch))
            if not keep or microbatch in self._written:
                return
            held = self._held[microbatch]
            if where in held and self.clock.resumed:
                return
            values, layout, source = self._local(where, self.unscaled(grad))
            snapshot = self.writer.snapshot(where, values, layout)
            if where in held:
                snapshot = held[where][0] + snapshot
            held[where] = snapshot, layout, source

        return hook

    def _local(self, where: TensorId, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout, str]:
        """Returns this rank's values, the layout of the values, and the source of the layout.

        The dimensions of the values are in the logical order.  The source is "dtensor", the name of
        the annotation that gives the layout, or "default".
        """
        order = self.annotations.permuted(where.module, where.name, self.point, tensor.ndim)
        if order:
            tensor = tensor.detach().permute(order)
        layout, source = own_layout(tensor, self.sizes) or self._annotated(where, tensor.shape)
        if where.kind == "activation_grad":
            layout += self.annotations.unreduced(self.point)
        return local_values(tensor), layout, source

    def _annotated(self, where: TensorId, shape: tuple[int, ...]) -> tuple[Layout, str]:
        """The layout that an annotation gives to the tensor `where`, and the annotation's name.

        Returns an empty layout and "default" if no annotation matches.  `shape` is the shape of
        this rank's part.  Results are cached, so that patterns are matched once.
        """
        key = where.module, where.name, shape, where.kind == "activation_grad"
        if key not in self._layouts:
            found = self.annotations.module(*key[:2], self.point, *key[2:])
            self._layouts[key] = found or ((), "default")
        return self._layouts[key]

    def _perturb(self, watched: nn.Module, name: str, noise: OutputNoise) -> Any:
        def hook(module: nn.Module, args: object, kwargs: object, output: object) -> object:
            return noise.output(name, output, [args, kwargs]) if module is watched else output

        return hook

    def _note_conditions(self, module: nn.Module, name: str) -> None:
        """Records the dtype of an active autocast, and the rate of a module that applies dropout.

        Each dtype and each rate is recorded once, not once for each module or forward.  A module is
        checked for dropout once per step.
        """
        if torch.is_autocast_enabled(self._device):
            dtype = str(torch.get_autocast_dtype(self._device)).removeprefix("torch.")
            self._note(NoteEvent("autocast", dtype))
        if name in self._checked_for_dropout or not module.training:
            return
        self._checked_for_dropout.add(name)
        if (rate := dropout_of(module)) > 0:
            self._note(NoteEvent("dropout", str(rate)))

    def _note(self, note: NoteEvent) -> None:
        if note not in self._noted:
            self._noted.add(note)
            self.writer.add(note)


def dropout_of(module: nn.Module) -> float:
    """The dropout probability of a dropout, attention or recurrent module; 0 for any other."""
    rate = modules.dropout_of(module)
    if rate is not None:
        return rate
    rate = getattr(module, "dropout", 0.0)
    return rate if isinstance(rate, float) else 0.0
