"""torch's optimizers on exact numbers: by a loop, by foreach and fused, and with another rate."""

import inspect

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

from pytest_trainsafe.arithmetic import Doubles, ExactMode, MissingSemanticsError, Residues

#: All but LBFGS, which searches along a line, and SparseAdam, which needs sparse gradients.
OPTIMIZERS = sorted(
    name
    for name, each in vars(optim).items()
    if inspect.isclass(each) and issubclass(each, optim.Optimizer)
    if name not in ("Optimizer", "LBFGS", "SparseAdam")
)
#: Their loops and their foreach variants round coefficients, which are Python floats, differently.
ROUNDED_APART = {"ASGD", "RAdam"}


def trained(name, numbers, sparse=False, **options):
    torch.manual_seed(0)
    layers = (nn.Embedding(5, 4, sparse=sparse), nn.Linear(4, 3, bias=False))
    model = nn.Sequential(*layers).double()
    mode = ExactMode(numbers)
    mode.enter_(*model.parameters())
    with mode:
        optimizer = getattr(optim, name)(model.parameters(), **({"lr": 0.01} | options))
        for _ in range(2):
            optimizer.zero_grad()
            target = torch.zeros(2, 3, dtype=torch.float64)
            functional.mse_loss(model(torch.tensor([1, 3])), target).backward()
            optimizer.step()
    return [each.detach() for each in model.parameters()]


def exact(name, **options):
    doubles = Doubles()
    trained(name, doubles, **options)
    return trained(name, Residues(0, doubles.decisions.replay()), **options)


def equal(first, second):
    return all(a.equal(b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_computes_the_same_in_each_of_its_forms(name):
    takes = inspect.signature(getattr(optim, name)).parameters
    once = exact(name)
    assert equal(exact(name), once)
    assert not equal(exact(name, lr=0.02), once)
    for form in ("foreach", "fused"):
        if form in takes and name not in ROUNDED_APART:
            assert equal(exact(name, **{form: True}), once), form


def test_sparse_gradients_are_named():
    with pytest.raises(MissingSemanticsError, match="sparse"):
        exact("SparseAdam", sparse=True)
