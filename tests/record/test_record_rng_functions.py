"""All functions of `random` and `numpy.random` that draw from a global generator are replaced."""

from __future__ import annotations

import contextlib
import random
import warnings
from typing import Any

import numpy as np
import pytest

from pytest_trainsafe.judges.replay.rng.instrument.functions import Functions

#: Functions that need other arguments than none or one or two numbers between 1 and 2.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "dirichlet": ([1.0, 2.0],),
    "multinomial": (5, [0.5, 0.5]),
    "shuffle": ([1, 2, 3],),
    "multivariate_normal": ([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]),
    "logseries": (0.5,),
    "hypergeometric": (5, 5, 3),
    "noncentral_f": (2.0, 3.0, 1.0),
    "binomial": (5, 0.5),
    "triangular": (0.0, 0.5, 1.0),
    "negative_binomial": (5, 0.5),
    "geometric": (0.5,),
    "binomialvariate": (5, 0.5),
    "randint": (1, 9),
    "random_integers": (9,),
    "randrange": (9,),
    "permutation": (5,),
    "getrandbits": (8,),
    "randbytes": (4,),
    "bytes": (4,),
    "choice": ([1, 2, 3],),
    "choices": ([1, 2, 3],),
}

#: Functions that change the state but draw nothing, and NumPy's own test suite.
NO_DRAWS = {"seed", "setstate", "set_state", "set_bit_generator", "test"}


def drawing(module, state):
    """The functions of a module that advance a generator whose state `state` returns, by name."""
    found = {}
    for name in dir(module):
        function = getattr(module, name)
        if name.startswith("_") or name in NO_DRAWS or isinstance(function, type):
            continue
        several: list[Any] = [(), (1.5,), (1.5, 1.5), ([1, 2, 3], 2)]
        before = state()
        for arguments in [ARGUMENTS[name]] if name in ARGUMENTS else several:
            with contextlib.suppress(TypeError, ValueError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(*arguments)
        if state() != before:
            found[name] = function
    return found


@pytest.mark.parametrize(
    ("module", "state", "some"),
    [
        (random, random.getstate, {"choices", "gauss", "randbytes", "shuffle"}),
        (
            np.random,
            lambda: np.random.get_state(legacy=False)["state"]["pos"],
            {"ranf", "sample", "standard_cauchy", "vonmises", "zipf"},
        ),
    ],
    ids=["python", "numpy"],
)
def test_every_function_that_draws_from_the_global_generator_is_replaced(module, state, some):
    originals = drawing(module, state)

    with Functions(lambda generator, name, call: call(), lambda made: None).installed():
        kept = [name for name, original in originals.items() if getattr(module, name) is original]

    assert kept == []
    assert some <= {*originals}
    assert all(getattr(module, name) is original for name, original in originals.items())


def test_functions_that_draw_nothing_are_not_replaced():
    def kept():
        python = random.seed, random.getstate, random.setstate
        return *python, np.random.seed, np.random.get_state, np.random.set_state

    before = kept()

    with Functions(lambda generator, name, call: call(), lambda made: None).installed():
        assert kept() == before
