"""Every module's output and the gradient that reaches it, compared bit by bit with autograd's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)
LABELS = torch.linspace(0, 2, 20).reshape(4, 5)


def one_step(model: nn.Module, loss: Callable[[Any], Tensor] | None = None, x: Tensor = X) -> Any:
    """A program of one forward and backward, without an optimizer."""

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            out = model(x)
            total = out.square().sum() if loss is None else loss(out)
            if total.requires_grad:
                total.backward()

    return train


class Consumer(nn.Module):
    """A linear layer whose output a function consumes."""

    def __init__(self, consume: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 5, bias)
        self.consume = consume

    def forward(self, x: Tensor) -> Tensor:
        return self.consume(self.fc(x))


def slice_mul_(y: Tensor) -> Tensor:
    y[..., :2].mul_(3)
    return y


def view_add_(y: Tensor) -> Tensor:
    y.view(-1)[:20].add_(LABELS.reshape(-1))
    return y


def used_before(y: Tensor) -> Tensor:
    early = y * 2
    y.add_(1)
    return y.square() + early


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(4, 3), (2, 2, 3)], ids=["2d", "3d"])
@pytest.mark.parametrize(
    ("in_place", "plain"),
    [
        (torch.relu_, torch.relu),
        (lambda y: y.add_(LABELS.view(y.shape)), lambda y: y + LABELS.view(y.shape)),
        (slice_mul_, lambda y: torch.cat([y[..., :2] * 3, y[..., 2:]], -1)),
        (view_add_, lambda y: y + LABELS.view(y.shape)),
        (lambda y: y.mul_(2).sigmoid_(), lambda y: (y * 2).sigmoid()),
        (lambda y: y.transpose_(0, 1).mul_(2), lambda y: y.transpose(0, 1) * 2),
        (used_before, lambda y: (y + 1).square() + y * 2),
        (lambda y: y, lambda y: y),
    ],
    ids=["relu_", "add_", "slice", "view", "twice", "transpose_", "used before", "not at all"],
)
def test_outputs_later_modified_in_place_are_recorded_with_their_original_values(
    record: Any,
    in_place: Callable[[Tensor], Tensor],
    plain: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    bias: bool,
) -> None:
    """Also outputs that are views: a linear layer with a bias returns a view of its 2-d product."""
    model = Consumer(in_place, bias)
    x = X.reshape(shape)
    y = model.fc(x)
    (expected,) = torch.autograd.grad(plain(y).square().sum(), y)
    run = record(one_step(model, x=x))
    assert torch.equal(run.get("activation", "fc.output"), y.detach())
    assert torch.equal(run.get("activation_grad", "fc.output"), expected)
    assert torch.equal(run.get("activation", "output"), plain(y).detach())


@pytest.mark.parametrize("modify", [True, False])
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[1:, ::2],
        lambda y: y.t()[1:3],
        lambda y: y.diagonal(),
        lambda y: y.unsqueeze(0),
        lambda y: y.as_strided((2, 2), (1, 3), 4),
    ],
    ids=["slice", "transposed", "diagonal", "unsqueezed", "strided"],
)
def test_outputs_that_are_views_have_their_own_gradients(
    record: Any, view: Callable[[Tensor], Tensor], modify: bool
) -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return view(x + 1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.views = nn.Linear(3, 5), Views()

        def forward(self, x: Tensor) -> Tensor:
            y = self.views(self.fc(x))
            return y.mul_(3) if modify else y * 3

    model = Model()
    y = model.views(model.fc(X))
    (expected,) = torch.autograd.grad((y * 3).square().sum(), y)
    run = record(one_step(model))
    assert torch.equal(run.get("activation", "views.output"), y.detach())
    assert torch.equal(run.get("activation_grad", "views.output"), expected)


def test_the_autograd_graph_is_freed_together_with_the_outputs(record: Any) -> None:
    import gc
    import weakref

    model = Consumer(lambda y: y.add_(1))
    alive: list[weakref.ref[Any]] = []

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            out = model(X.reshape(2, 2, 3))
            # Kept alive by the graph, through a hook.
            marker = type("Marker", (), {})()
            out.register_hook(lambda grad, marker=marker: None)
            alive.append(weakref.ref(marker))
            del out, marker

    gc.disable()
    try:
        record(train)
        assert [ref() for ref in alive] == [None]
    finally:
        gc.enable()


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Output:
    logits: Tensor
    cache: list[Tensor]
    note: str = "text"


@dataclass(frozen=True)
class Frozen:
    logits: Tensor


class Returns(nn.Module):
    """Computes two tensors and returns them in the structure that `wrap` makes."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 5)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return self.wrap(y * 2, y.exp())


class Whole(nn.Module):
    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.inner = Returns(wrap)

    def forward(self, x: Tensor) -> Tensor:
        first, second = flatten(self.inner(x))
        return first * second


def flatten(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, tuple | list):
        value = list(vars(value).values())
    return [t for item in value if not isinstance(item, str) for t in flatten(item)]


STRUCTURES = pytest.mark.parametrize(
    ("wrap", "places"),
    [
        (lambda a, b: (a, b), ("output.0", "output.1")),
        (lambda a, b: [a, b], ("output.0", "output.1")),
        (lambda a, b: {"logits": a, "hidden": b}, ("output.logits", "output.hidden")),
        (lambda a, b: {"x": [a, {"y": (b,)}]}, ("output.x.0", "output.x.1.y.0")),
        (Pair, ("output.first", "output.second")),
        (lambda a, b: Output(a, [b]), ("output.logits", "output.cache.0")),
        (lambda a, b: (Frozen(a), b), ("output.0.logits", "output.1")),
    ],
    ids=["tuple", "list", "dict", "nested", "NamedTuple", "dataclass", "frozen dataclass"],
)


@STRUCTURES
def test_tensors_in_nested_outputs_are_recorded_under_their_key_paths(
    record: Any, wrap: Callable[[Tensor, Tensor], Any], places: tuple[str, str]
) -> None:
    model = Whole(wrap)
    y = model.inner.fc(X)
    first, second = y * 2, y.exp()
    expected = torch.autograd.grad((first * second).square().sum(), (first, second))
    run = record(one_step(model))
    for place, value, grad in zip(places, (first, second), expected, strict=True):
        assert torch.equal(run.get("activation", f"inner.{place}"), value.detach())
        assert torch.equal(run.get("activation_grad", f"inner.{place}"), grad)
    assert set(run.paths("activation")) == {
        "inner.fc.output",
        *(f"inner.{place}" for place in places),
        "output",
    }


@STRUCTURES
def test_noise_keeps_the_structure_of_outputs(
    record: Any, wrap: Callable[[Tensor, Tensor], Any], places: tuple[str, str]
) -> None:
    # The leaf returns the structure itself.
    class Leaf(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return wrap(x * 2, x.exp())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.leaf = nn.Linear(3, 5), Leaf()
            self.seen: Any = None

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.leaf(self.fc(x))
            first, second = flatten(self.seen)
            return first * second

    model = Model()
    clean = record(one_step(copy.deepcopy(model)))
    noisy = record(one_step(model), perturbation=2.0**-10)
    assert type(model.seen) is type(wrap(X, X))
    for place in places:
        one, other = (run.get("activation", f"leaf.{place}") for run in (clean, noisy))
        assert not torch.equal(one, other)
        assert torch.allclose(one, other, rtol=2**-7)


def test_repeated_calls_of_a_module_are_numbered(record: Any) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.fc(x)
            return x

    model = Loop()
    outputs = [X]
    for _ in range(3):
        outputs.append(model.fc(outputs[-1]))
    grads = torch.autograd.grad(outputs[-1].square().sum(), outputs[1:])
    run = record(one_step(model))
    for call in range(3):
        got = run.get("activation", "fc.output", call=call)
        assert torch.equal(got, outputs[call + 1].detach())
        assert torch.equal(run.get("activation_grad", "fc.output", call=call), grads[call])
    assert run.paths("activation_grad") == ["fc.output#2", "output", "fc.output#1", "fc.output"]


def test_call_numbers_restart_in_every_microbatch(record: Any) -> None:
    model = nn.Linear(3, 2)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        for _ in range(2):
            with ctx.step():
                for index in range(2):
                    with ctx.microbatch(index):
                        model(X * (index + 1)).sum().backward()

    run = record(train)
    assert run.paths("activation") == ["output"] * 4
    assert torch.equal(run.get("activation", "output", step=1, microbatch=1), model(X * 2).detach())


def test_an_unused_module_has_no_recorded_activations_or_gradients(record: Any) -> None:
    model = Consumer(torch.relu)
    model.unused = nn.Linear(2, 2)
    run = record(one_step(model))
    assert "unused.output" not in run.paths("activation")
    assert "unused" in run.rank.modules
    assert run.paths("param_grad") == ["fc.bias", "fc.weight"]


def test_a_tensor_passed_through_modules_is_recorded_under_each_of_them(record: Any) -> None:
    class Pass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.same = nn.Linear(3, 5), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.same(self.fc(x))

    model = Pass()
    y = model.fc(X)
    (grad,) = torch.autograd.grad(y.square().sum(), y)
    run = record(one_step(model))
    for path in ("fc.output", "same.output", "output"):
        assert torch.equal(run.get("activation", path), y.detach())
        assert torch.equal(run.get("activation_grad", path), grad)


@pytest.mark.parametrize("value", [None, "text", 3, {"a": None}, object(), []])
def test_outputs_without_tensors_are_not_recorded(record: Any, value: object) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> object:
            return value

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd, self.fc = Odd(), nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            assert self.odd(x) is value
            return self.fc(x)

    for perturbation in (0.0, 2.0**-23):
        run = record(one_step(Model()), perturbation=perturbation)
        assert run.paths("activation") == ["fc.output", "output"]


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(5),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, -1j]),
        torch.empty(0, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(12.0)[::3],
        torch.tensor(2.5),
        torch.tensor([1.0, -3.0], dtype=torch.bfloat16),
        torch.ones(2, 3).expand(4, 2, 3),
        torch.tensor([float("-inf"), float("nan"), 0.0]),
    ],
    ids=[
        "int",
        "bool",
        "complex",
        "empty",
        "transposed",
        "strided",
        "0-d",
        "bf16",
        "expanded",
        "inf",
    ],
)
def test_tensors_of_any_dtype_and_stride_are_recorded_unchanged(record: Any, value: Tensor) -> None:
    class Gives(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return value

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gives, self.fc = Gives(), nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            self.gives(x)
            return self.fc(x)

    got = record(one_step(Model())).get("activation", "gives.output")
    assert got.dtype == value.dtype
    torch.testing.assert_close(got, value, rtol=0, atol=0, equal_nan=True)


def test_gradients_of_complex_outputs_are_recorded(record: Any) -> None:
    model = Consumer(lambda y: torch.view_as_real(torch.fft.rfft(y).conj()))

    class Transform(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(x).conj()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.transform = model.fc, Transform()

        def forward(self, x: Tensor) -> Tensor:
            return torch.view_as_real(self.transform(self.fc(x)).resolve_conj())

    z = torch.fft.rfft(model.fc(X)).conj()
    (grad,) = torch.autograd.grad(torch.view_as_real(z.resolve_conj()).square().sum(), z)
    run = record(one_step(Model()))
    assert torch.equal(run.get("activation", "transform.output"), z.detach().resolve_conj())
    assert torch.equal(run.get("activation_grad", "transform.output"), grad.resolve_conj())


def test_gradients_of_a_module_that_returns_its_parameter_are_recorded_per_microbatch(
    record: Any,
) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> Tensor:
            return self.weight

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = Table()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.table()

    model = Model()

    def train(ctx: Context) -> None:
        ctx.watch(model)
        for _ in range(2):
            with ctx.step():
                for index in range(2):
                    with ctx.microbatch(index):
                        (model(X).sum() * (index + 1)).backward()

    run = record(train)
    for step in range(2):
        for index in range(2):
            got = run.get("activation_grad", "table.output", step=step, microbatch=index)
            assert torch.equal(got, X.sum(0) * (index + 1))
    # Only the hook that records parameter gradients is left.
    assert len(model.table.weight._backward_hooks or {}) == 1


def test_gradients_of_two_backward_passes_are_added(record: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
    y = model[0](X)
    z = model[1](y)
    one = torch.autograd.grad(z.sum(), y, retain_graph=True)[0]
    two = torch.autograd.grad(z.square().sum(), y)[0]

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            out = model(X)
            out.sum().backward(retain_graph=True)
            out.square().sum().backward()

    run = record(train)
    assert torch.equal(run.get("activation_grad", "0.output"), one + two)
    gradient = model.get_parameter("0.weight").grad
    assert gradient is not None
    assert torch.equal(run.get("param_grad", "0.weight"), gradient)


def test_one_backward_after_all_microbatches_records_activation_gradients_of_each(
    record: Any,
) -> None:
    model = nn.Linear(3, 2)
    x = [X, X * 2]

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step():
            total = torch.zeros(())
            for index in range(2):
                with ctx.microbatch(index):
                    total = total + model(x[index]).square().sum()
            total.backward()

    run = record(train)
    for index in range(2):
        got = run.get("activation_grad", "output", microbatch=index)
        assert torch.equal(got, 2 * model(x[index]).detach())
    assert run.paths("param_grad") == []
    assert run.paths("main_grad") == ["weight", "bias"]


def test_under_no_grad_only_outputs_are_recorded(record: Any) -> None:
    model = Consumer(torch.relu)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0), torch.no_grad():
            model(X)

    run = record(train)
    assert run.paths("activation") == ["fc.output", "output"]
    assert run.paths("activation_grad") == run.paths("param_grad") == run.paths("main_grad") == []


def test_a_forward_outside_a_microbatch_is_not_recorded(record: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

    def train(ctx: Context) -> None:
        ctx.watch(model)
        model(X).sum().backward()
        with ctx.step():
            model(X)
            with ctx.microbatch(0):
                model(X).sum().backward()
            model(X)
        model(X)

    run = record(train)
    assert run.paths("activation") == ["0.output", "1.output", "output"]
    assert len(run.rank.inputs) == 1


def test_calls_of_a_copy_of_the_model_are_not_recorded(record: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3))

    def train(ctx: Context) -> None:
        ctx.watch(model)
        average = copy.deepcopy(model)
        with ctx.step(), ctx.microbatch(0):
            model(X).sum().backward()
            average(X)

    run = record(train)
    assert run.paths("activation") == ["0.output", "output"]
    assert len(run.rank.inputs) == 1


def test_inputs_are_hashed_by_value(record: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, *, mask: Tensor, note: str = "") -> Tensor:
            return x * mask

    model = Model()
    mask = torch.tensor([True, False, True])

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step():
            for index, x in enumerate((X, X.clone(), X.t().contiguous().t(), X + 1, X.double())):
                with ctx.microbatch(index):
                    model(x, mask=mask)

    first, same, strided, other, wide = (event.hashes for event in record(train).rank.inputs)
    assert first == same == strided
    assert len(first) == 2
    assert len({first, other, wide}) == 3
    assert first[1] == other[1]


def test_a_trace_describes_modules_by_class_source_and_parameters(record: Any) -> None:
    run = record(one_step(Consumer(torch.relu)))
    assert run.rank.modules[""].cls == "Consumer"
    assert run.rank.modules[""].source.rpartition(":")[0] == __file__
    assert run.rank.modules["fc"].parameters == ("weight", "bias")
