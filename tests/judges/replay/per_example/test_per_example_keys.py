"""Keys and generators of examples depend only on seed, stream, epoch and index."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe import per_example_generator, per_example_keys
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError


def test_an_examples_key_is_independent_of_its_batch():
    whole = per_example_keys(2, range(64), seed=3, stream="a")

    parts = [
        per_example_keys(2, torch.arange(64)[rank::4], seed=3, stream="a") for rank in range(4)
    ]

    assert torch.equal(torch.stack(parts, 1).reshape(-1), whole)
    assert (whole.dtype, whole.shape, len(set(whole.tolist()))) == (torch.int64, (64,), 64)
    assert bool((whole >= 0).all())


def test_a_key_depends_on_epoch_index_seed_and_stream_but_not_on_generators():
    def key(epoch=1, index=5, seed=3, stream="a"):
        return int(per_example_keys(epoch, [index], seed=seed, stream=stream))

    torch.manual_seed(1)
    first = key()
    torch.manual_seed(2)

    assert key() == first
    others = [key(epoch=3), key(index=6), key(seed=1), key(stream="b"), key(seed=1, epoch=3)]
    assert len({first, *others}) == 6


def test_keys_are_the_same_in_every_release():
    """A resumed run must compute the keys of the run that saved the checkpoint."""
    known = [2051942359315189089, 8310717190754141425]
    assert per_example_keys(0, [0, 1], seed=0).tolist() == known


def test_each_generator_of_an_example_starts_from_the_same_state():
    first, again = (per_example_generator(1, 5, seed=3, stream="a") for _ in range(2))
    other = per_example_generator(1, 6, seed=3, stream="a")

    drawn = torch.rand(8, generator=first)

    assert first is not again
    assert torch.equal(drawn, torch.rand(8, generator=again))
    assert not torch.equal(drawn, torch.rand(8, generator=other))
    assert first.initial_seed() == int(per_example_keys(1, [5], seed=3, stream="a"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: per_example_keys(-1, [0]), ArgumentError, "epoch=-1 is below 0"),
        (lambda: per_example_keys(0, [0, -2]), ArgumentError, "index=-2 is below 0"),
        (lambda: per_example_keys(0, [0], seed=-3), ArgumentError, "seed=-3 is below 0"),
        (lambda: per_example_keys(0, [0.5]), ArgumentTypeError, "index must be an integer"),  # type: ignore[list-item]
        (lambda: per_example_keys(True, [0]), ArgumentTypeError, "epoch must be an integer"),
        (lambda: per_example_keys(0, [0], stream=1), ArgumentTypeError, "stream must be a name"),  # type: ignore[arg-type]
        (
            lambda: per_example_keys(0, torch.rand(2)),
            ArgumentTypeError,
            r"not a tensor of torch.float32 and shape \[2\]",
        ),
        (lambda: per_example_keys(0, torch.zeros(2, 2).long()), ArgumentTypeError, "one dimension"),
        (lambda: per_example_keys(0, 5), ArgumentTypeError, "not 5; pass a list"),  # type: ignore[arg-type]
        (lambda: per_example_keys(0, None), ArgumentTypeError, "not None; pass a list"),  # type: ignore[arg-type]
        (lambda: per_example_keys(0, [1], device="gpu"), ArgumentError, "'gpu' is not a device"),
        (lambda: per_example_generator(0, 1, device="gpu"), ArgumentError, "'gpu' is not a device"),
        (lambda: per_example_generator(0, 1, device=None), ArgumentTypeError, "device must be"),  # type: ignore[arg-type]
        (
            lambda: per_example_generator(0, torch.tensor([1, 2])),  # type: ignore[arg-type]
            ArgumentTypeError,
            "index must be one integer",
        ),
        (lambda: per_example_generator(0, "1"), ArgumentTypeError, "index must be an integer"),  # type: ignore[arg-type]
    ],
)
def test_invalid_epochs_indices_seeds_and_streams_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
