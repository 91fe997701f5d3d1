"""The RNG ledger: which generator was advanced, from which state, by which operator and line."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import random
import threading
from random import shuffle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from pytest_trainsafe.judges.replay.rng.instrument.workers import _WatchedLoop
from pytest_trainsafe.record.hooks.casts import CastWatch
from pytest_trainsafe.record.program_dtype import random_operators as operators
from pytest_trainsafe.trace.rng.events import DrawEvent, LedgerGap, UnseenDraws, WorkerDraw
from pytest_trainsafe.trace.rng.ledger import ledger
from pytest_trainsafe.trace.rng.states import torch_state


class Dropping(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.recompute = recompute

    def forward(self, x):
        x = self.linear(x)
        return checkpoint(self.drop, x, use_reentrant=False) if self.recompute else self.drop(x)


def training(during=lambda: None, before=lambda: None, after=lambda: None, recompute=False):
    """A program of one step, which calls functions before, in and after its micro-batch."""

    def train(ctx):
        model = Dropping(recompute)
        ctx.initialize(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        before()
        with ctx.step():
            with ctx.microbatch(0):
                during()
                model(torch.ones(2, 4, dtype=ctx.dtype)).sum().backward()
            optimizer.step()
        after()

    return train


def draws(recorded, phase=None):
    events = [event for event in ledger(recorded.rank) if isinstance(event, DrawEvent)]
    return [e for e in events if e.phase == phase] if phase else events


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    [number] = [first + n for n, line in enumerate(lines) if text in line]
    return f"{__file__}:{number}"


def test_a_dropout_is_recorded_with_its_module_its_line_and_generator_states(record):
    generator = torch.Generator().manual_seed(3)

    def seed():
        torch.manual_seed(3)

    [draw] = draws(record(training(during=seed)), "forward")

    assert (draw.generator, draw.operator, draw.module) == ("torch cpu", "bernoulli_.float", "drop")
    assert (draw.step, draw.microbatch, draw.shape, draw.seed) == (0, 0, (2, 4), "3")
    assert draw.at == line_of(Dropping.forward, "self.drop(x)")
    assert draw.before == torch_state(generator)
    torch.empty(2, 4).bernoulli_(0.5, generator=generator)
    assert draw.after == torch_state(generator)


def test_a_recomputed_dropout_has_its_own_phase_and_the_state_of_its_forward(record):
    recorded = record(training(recompute=True))
    [forward], [again] = draws(recorded, "forward"), draws(recorded, "recomputation")

    assert (again.before, again.module) == (forward.before, forward.module)


def test_draws_are_recorded_with_the_phase_of_the_training(record):
    def draw(*_):
        torch.rand(1)

    def watches(ctx):
        watched = Dropping()
        optimizer = torch.optim.SGD(watched.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(draw)
        ctx.watch(watched, optimizer)
        x = torch.ones(2, 4, requires_grad=True)
        with ctx.step():
            with ctx.microbatch(0):
                output = watched(x)
                output.register_hook(lambda grad: grad * torch.rand(1))
                output.sum().backward()
            optimizer.step()
        watched.eval()
        torch.rand(1)

    assert [draw.phase for draw in draws(record(watches))] == [
        *("initialisation", "forward", "backward", "optimizer", "evaluation"),
    ]


def test_consecutive_draws_of_one_line_are_one_event_with_a_count(record):
    generator = torch.Generator().manual_seed(1)

    def loop():
        for _ in range(50):
            torch.rand(3, generator=generator)

    [draw] = draws(record(training(during=loop)), "data")

    assert draw.count == 50
    assert draw.generator == f"torch.Generator of {line_of(loop, 'rand').rpartition('/')[2]}"
    assert draw.before == torch_state(torch.Generator().manual_seed(1))
    assert draw.after == torch_state(generator)


def test_functions_of_random_and_numpy_are_recorded_and_restored(record):
    before = random.random, np.random.rand, np.random.default_rng

    def both():
        random.random()
        np.random.rand(3)

    first, second = draws(record(training(during=both)), "data")

    assert (first.generator, first.operator) == ("python random", "random.random")
    assert (second.generator, second.operator) == ("numpy", "numpy.random.rand")
    assert second.at == line_of(both, "rand(3)")
    assert before == (random.random, np.random.rand, np.random.default_rng)


def test_draws_that_bypass_intercepted_functions_are_found_by_generator_states(record):
    made = []

    def make():
        made.append(np.random.default_rng(5))

    def use():
        shuffle([1, 2, 3])  # imported before the ledger replaced random.shuffle
        made[0].normal()

    found = {draw.generator for draw in draws(record(training(before=make, during=use)), "data")}

    assert found == {"python random", f"numpy.random.Generator of {_named(make, 'default_rng')}"}


def _named(function, text):
    return line_of(function, text).rpartition("/")[2]


def test_draws_of_another_thread_are_recorded_with_the_threads_name(record):
    def draw():
        torch.rand(3)

    def elsewhere():
        thread = threading.Thread(target=draw, name="augmenter")
        thread.start()
        thread.join()

    [event] = draws(record(training(during=elsewhere)), "data")

    assert (event.thread, event.at) == ("augmenter", line_of(draw, "rand"))


def test_numbers_drawn_without_an_intercepted_operator_are_counted_as_unseen(record):
    def jump():
        ahead = torch.Generator()
        ahead.set_state(torch.default_generator.get_state())
        with operators_hidden():
            torch.empty(1000, dtype=torch.int32).random_(generator=ahead)
        torch.default_generator.set_state(ahead.get_state())

    unseen = [e for e in ledger(record(training(during=jump)).rank) if isinstance(e, UnseenDraws)]

    assert [(event.generator, event.count) for event in unseen] == [("torch cpu", 1000)]


def operators_hidden():
    key = torch._C._dispatch_key_parse("TESTING_ONLY_GenericMode")
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))


@pytest.mark.parametrize("restore", ["seed", "state"])
def test_setting_a_seed_or_a_state_is_not_an_unseen_draw(record, restore):
    states = []

    def keep():
        states.append(torch.get_rng_state())
        torch.rand(700)

    def put_back():
        torch.manual_seed(9) if restore == "seed" else torch.set_rng_state(states[0])

    recorded = record(training(before=keep, during=put_back))

    assert not any(isinstance(event, UnseenDraws) for event in ledger(recorded.rank))


def test_a_disabled_ledger_records_only_that_it_is_switched_off(record):
    [gap] = ledger(record(training(), rng=False).rank)

    assert isinstance(gap, LedgerGap)
    assert "switched off" in gap.why


def test_the_ledger_does_not_change_the_random_numbers_of_a_program(record):
    drawn = []

    def draw():
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        drawn.append((torch.rand(3).tolist(), random.random(), float(np.random.rand())))

    assert record(training(during=draw)).hashes() == record(training(draw), rng=False).hashes()
    assert drawn[0] == drawn[1]


def test_a_thread_that_outlives_the_program_can_still_compute_and_draw(record):
    go, found = threading.Event(), []

    def compute():
        go.wait(60)
        found.append((torch.ones(2) + 1).sum().item() + torch.rand(1).numel())

    thread = threading.Thread(target=compute)
    record(training(during=thread.start))
    go.set()
    thread.join()

    assert found == [5.0]


def test_a_replaced_random_function_is_pickled_as_the_original(record):
    sent = []
    record(training(during=lambda: sent.append((pickle.dumps(random.gauss), random.gauss))))

    assert pickle.loads(sent[0][0]) == random.gauss  # noqa: S301 - of this test's own making
    assert sent[0][1] is not random.gauss


class Noisy(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.rand(4)


def test_draws_in_data_loader_workers_are_recorded(record):
    sent = []

    def load():
        loader = DataLoader(Noisy(), batch_size=2, num_workers=2)
        batches = iter(loader)
        sent.append(pickle.dumps(_WatchedLoop("a folder", 0, "a.py:1")))  # as for a spawned worker
        assert len(list(batches)) == 2

    found = [e for e in ledger(record(training(during=load)).rank) if isinstance(e, WorkerDraw)]

    assert {(event.worker, event.generator, event.map_style) for event in found} == {
        (0, "torch cpu", True),
        (1, "torch cpu", True),
    }
    assert found[0].before != found[1].before
    assert sent


def test_an_error_in_a_random_operator_reaches_the_program_unchanged(record):
    with pytest.raises(RuntimeError, match="expects p to be in"):
        record(training(during=lambda: torch.ones(3).bernoulli_(2.0)))


def test_every_random_operator_of_this_torch_is_intercepted_or_known_not_to_draw():
    composite = {name for names in operators.COMPOSITE.values() for name in names}
    known = {*operators.OPERATORS, *operators.NOT_DRAWING, *composite}
    missing = []
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        if space != "aten" or name in known:
            continue
        try:
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        except AttributeError:
            continue
        # Implicit composites are decomposed before a dispatch mode receives them.
        decomposed = torch._C._dispatch_has_kernel_for_dispatch_key(
            full, "CompositeImplicitAutograd"
        )
        if torch.Tag.nondeterministic_seeded in operator.tags and not decomposed:
            missing.append(name)

    assert missing == []
    assert {*operators.COMPOSITE} <= {*operators.OPERATORS}


class Nothing(TorchDispatchMode):
    """A dispatch mode that only calls the operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [contextlib.nullcontext, Nothing, CastWatch])
def test_draws_are_intercepted_below_a_torch_dispatch_mode(mode):
    generator = torch.Generator().manual_seed(1)
    drawn = []

    def drawing(name, call, keys, args, kwargs):
        drawn.append(name)
        return call(keys, *args, **kwargs)

    with operators.intercepted(drawing), mode():
        torch.randn(3, generator=generator)
        torch.rand_like(torch.ones(3))
        torch.randperm(3, generator=generator)
        torch.randint(5, (3,), generator=generator)
        torch.normal(0.0, 1.0, (3,))
        torch.nn.functional.dropout(torch.ones(4))
        torch.empty(3).uniform_()

    assert drawn == [
        *("normal_", "uniform_", "randperm.generator_out", "random_.from", "normal_"),
        *("bernoulli_.float", "uniform_"),
    ]


class Wrapped(torch.Tensor):
    """A tensor subclass that runs every operator on the tensor that it holds."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        inner = [arg.held if isinstance(arg, cls) else arg for arg in args]
        return cls(func(*inner, **(kwargs or {})))


class Labelled(torch.Tensor):
    """A tensor subclass without code of its own for operators."""


@pytest.mark.parametrize("mode", [contextlib.nullcontext, Nothing])
@pytest.mark.parametrize("make", [Wrapped, lambda inner: inner.as_subclass(Labelled)])
def test_draws_on_a_tensor_subclass_are_intercepted_once(make, mode):
    drawn = []

    def drawing(name, call, keys, args, kwargs):
        before = torch_state(torch.default_generator)
        made = call(keys, *args, **kwargs)
        drawn.append((name, before))
        return made

    x = make(torch.ones(4))
    torch.manual_seed(0)
    states = [torch_state(torch.default_generator)]
    with operators.intercepted(drawing), mode():
        for draw in (torch.nn.functional.dropout, torch.rand_like, torch.zeros_like):
            draw(x)
            states.append(torch_state(torch.default_generator))

    assert drawn == [("bernoulli_.float", states[0]), ("uniform_", states[1])]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_the_modes_of_the_program_are_as_before_after_a_draw_on_a_tensor_subclass_raises():
    modes = Nothing(), Nothing()

    def drawing(name, call, keys, args, kwargs):
        return call(keys, *args, **kwargs)

    with operators.intercepted(drawing), modes[0], modes[1]:
        with pytest.raises(RuntimeError, match="expects p to be in"):
            Wrapped(torch.ones(4)).bernoulli_(2.0)
        assert [torch._C._get_dispatch_stack_at(at) for at in (0, 1)] == [*modes]
