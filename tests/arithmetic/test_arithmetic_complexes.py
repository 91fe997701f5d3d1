"""Complex tensors carry two numbers in each element, and lose neither."""

import pytest
import torch

from pytest_trainsafe.arithmetic import (
    Doubles,
    Draw,
    ExactMode,
    MissingSemanticsError,
    Residues,
    UnseenNumberError,
    rational,
)

#: Functions of two complex tensors of shape (2, 3), whose results are rational.
RATIONAL = {
    "product": lambda x, y: x * y,
    "product with a real tensor": lambda x, y: x * y.real,
    "product with a number": lambda x, y: x * (2 - 1j) + y,
    "real times the imaginary unit": lambda x, y: x.real * 1j + y,
    "in place": lambda x, y: x.clone().mul_(y),
    "sum and difference": lambda x, y: (x + y.real) - (y - 3j),
    "quotient": lambda x, y: x / y,
    "quotient by a number": lambda x, y: x / 3 + y / 2j,
    "conjugate": lambda x, y: x.conj() * -y,
    "conjugate in memory": lambda x, y: x.conj().resolve_conj().clone() + y,
    "matrix product": lambda x, y: x @ y.T,
    "batches of matrices": lambda x, y: x[None] @ y.T[None],
    "sum over rows": lambda x, y: (x * y).sum(0),
    "mean": lambda x, y: (x * y).mean(),
    "of real parts": lambda x, y: torch.complex(x.real, y.imag),
    "copied": lambda x, y: torch.cat([x, y]).view(4, 3).to(torch.complex64)[1:, ::2],
    "copied over": lambda x, y: torch.zeros_like(x).copy_(y) * x,
}
OTHER = {
    "polar": lambda x, y: torch.polar(x.real, y.imag) + x.imag * y.real,
    "exponential": lambda x, y: torch.exp(x) * y,
    "size": lambda x, y: (x * y).abs().to(torch.complex128),
}


def drawn():
    draw = Draw()
    return [torch.view_as_complex(draw(2, 3, 2)) for _ in range(2)]


def on(numbers, function, given):
    mode = ExactMode(numbers)
    entered = [mode.enter(each) for each in given]
    with mode:
        return torch.view_as_real(function(*entered))


@pytest.mark.parametrize("name", RATIONAL)
def test_exact_results_are_those_of_torch(name):
    expected = torch.view_as_real(RATIONAL[name](*drawn()).resolve_conj())
    exact = on(Residues(), RATIONAL[name], drawn())
    assert exact.shape == expected.shape
    found = [float(rational(each, 1 << 40) or 0) for each in exact.reshape(-1)]
    assert found == pytest.approx(expected.reshape(-1).tolist(), rel=1e-6)


@pytest.mark.parametrize("name", [*RATIONAL, *OTHER])
def test_results_depend_on_both_parts_of_each_element(name):
    function = (RATIONAL | OTHER)[name]
    before = torch.view_as_real(function(*drawn()).resolve_conj())
    assert torch.allclose(on(Doubles(), function, drawn()), before.double())
    exact = on(Residues(), function, drawn())
    for argument in range(2):
        for place in range(12):
            changed = drawn()
            torch.view_as_real(changed[argument]).view(-1)[place] *= 1.1
            after = torch.view_as_real(function(*changed).resolve_conj())
            moved = (after - before).abs() > 1e-9
            assert (on(Residues(), function, changed) != exact)[moved].all(), (argument, place)


def test_gradients_flow_through_a_rotation_of_pairs():
    def gradients(x, y):
        x = torch.view_as_real(x).detach().requires_grad_()
        rotated = torch.view_as_real(torch.view_as_complex(x) * y)
        (rotated * rotated).sum().backward()
        return torch.view_as_complex(x.grad)

    expected = torch.view_as_real(gradients(*drawn())).reshape(-1).tolist()
    exact = on(Residues(), gradients, drawn()).reshape(-1)
    found = [float(rational(each, 1 << 40) or 0) for each in exact]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    "function", [lambda x: x.angle(), lambda x: x.to(torch.float64), lambda x: x[0, 0].item()]
)
def test_an_operator_without_semantics_for_complex_numbers_is_named(function):
    mode = ExactMode(Residues())
    x = mode.enter(drawn()[0])
    with mode, pytest.raises(MissingSemanticsError, match=r"aten\.\w+ of complex numbers"):
        function(x)


def test_complex_numbers_that_no_operator_made_are_noticed():
    mode = ExactMode(Residues())
    x, unseen = mode.enter(drawn()[0]), drawn()[1]
    with mode, pytest.raises(UnseenNumberError, match=r"aten\.mul is given a torch\.complex128"):
        x * unseen


def test_complex_parameters_are_overwritten_by_their_numbers():
    mode = ExactMode(Residues())
    x = drawn()[0]
    expected = mode.enter(x)
    mode.enter_(x)
    assert torch.equal(x, expected)
