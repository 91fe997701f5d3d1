"""Per-example masks of shards are parts of the mask of the logical tensor."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe import (
    PerExampleDropout,
    logical_positions,
    per_example_dropout,
    per_example_keys,
)
from pytest_trainsafe.core.layout import Part, Shard, ZigZag
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

SHAPE = (4, 8, 6)
KEYS = per_example_keys(0, range(4))
ONES = torch.ones(SHAPE, dtype=torch.float64)
WHOLE = per_example_dropout(ONES, 0.3, KEYS, stream="drop")


def test_masks_are_the_same_in_every_release():
    """A resumed run must compute the masks of the run that saved the checkpoint."""
    dropped = (WHOLE[0, :3] == 0).int().tolist()
    assert dropped == [[0, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0], [0, 1, 0, 1, 1, 0]]


@pytest.mark.parametrize(
    "layout",
    [
        (Shard(2, "tp"),),
        (ZigZag(1, "cp"), Shard(1, "tp")),
        (Shard(1, "cp"), Shard(2, "tp")),
        (Shard(2, "tp", (2, 4)),),
    ],
)
def test_the_masks_of_ranks_are_parts_of_one_logical_mask(layout):
    sizes = {"tp": 2, "cp": 2}
    parts = []
    for rank in range(4):
        at = {"tp": rank % 2, "cp": rank // 2}
        positions = logical_positions(layout, SHAPE, at, sizes)
        local = torch.ones(
            [len(positions[dim]) if dim in positions else SHAPE[dim] for dim in range(3)],
            dtype=torch.float64,
        )
        dropped = per_example_dropout(local, 0.3, KEYS, stream="drop", positions=positions)
        parts.append(Part(rank, at, dropped, layout))

    assert torch.equal(merged(parts, sizes), WHOLE)


def merged(parts, sizes):
    whole = torch.full(SHAPE, float("nan"), dtype=torch.float64)
    for part in parts:
        positions = logical_positions(part.layout, SHAPE, part.coordinates, sizes)
        index = [positions.get(dim, torch.arange(SHAPE[dim])) for dim in range(3)]
        whole[torch.meshgrid(*index, indexing="ij")] = part.tensor
    return whole


def test_an_examples_mask_is_independent_of_its_batch_and_batch_dim_may_be_negative():
    order = torch.tensor([2, 0])

    part = per_example_dropout(ONES[order], 0.3, KEYS[order], stream="drop")
    sequence_first = per_example_dropout(
        ONES.transpose(0, 1), 0.3, KEYS, stream="drop", batch_dim=1
    )

    assert torch.equal(part, WHOLE[order])
    assert not torch.equal(sequence_first.transpose(0, 1), torch.ones(SHAPE))
    again = per_example_dropout(ONES.transpose(0, 1), 0.3, KEYS, stream="drop", batch_dim=-2)
    assert torch.equal(sequence_first, again)


def test_masks_of_packed_tokens_are_independent_of_the_order_of_the_tokens():
    examples = KEYS[:2].repeat_interleave(torch.tensor([3, 5]))
    place = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4])
    x = torch.ones(8, 64)
    packed = per_example_dropout(x, 0.5, examples, positions={0: place})
    reversed_order = torch.arange(7, -1, -1)

    other = per_example_dropout(
        x, 0.5, examples[reversed_order], positions={0: place[reversed_order]}
    )

    assert torch.equal(other[reversed_order], packed)
    assert len({tuple(row) for row in packed.tolist()}) == 8


def test_values_are_dropped_at_rate_p_and_kept_values_are_scaled():
    x = torch.full((256, 1024), 3.0)
    dropped = per_example_dropout(x, 0.1, per_example_keys(0, range(256)))

    assert set(dropped.unique().tolist()) == {0.0, float(torch.tensor(3.0) * (1 / 0.9))}
    assert float((dropped == 0).double().mean()) == pytest.approx(0.1, abs=0.003)
    rates = (dropped == 0).double()
    # Five standard deviations of a row's and of a column's share.
    assert float((rates.mean(1) - 0.1).abs().max()) < 5 * (0.09 / 1024) ** 0.5
    assert float((rates.mean(0) - 0.1).abs().max()) < 5 * (0.09 / 256) ** 0.5


@pytest.mark.parametrize("other", ["example", "epoch", "seed", "stream"])
def test_masks_of_different_examples_epochs_seeds_and_streams_are_uncorrelated(other):
    x = torch.ones(1, 40_000, dtype=torch.float64)
    masks = []
    for number in (0, 1):
        at = {name: number if name == other else 0 for name in ("example", "epoch", "seed")}
        keys = per_example_keys(at["epoch"], [at["example"]], seed=at["seed"])
        stream = str(number) if other == "stream" else ""
        masks.append(per_example_dropout(x, 0.5, keys, stream=stream)[0] / 2 - 0.5)

    assert abs(float(masks[0] @ masks[1])) < 5 * 0.25 * 200


def test_repeated_calls_give_the_same_mask_and_draw_no_random_numbers():
    """So activation recomputation need not restore the state of a generator."""
    torch.manual_seed(0)
    state = torch.get_rng_state()
    x = ONES.clone().requires_grad_()

    first, again = (PerExampleDropout(0.3, "drop")(x, KEYS) for _ in range(2))
    torch.rand(1)
    [gradient] = torch.autograd.grad(first.sum(), x)

    assert torch.equal(first, again)
    assert torch.equal(gradient, WHOLE)
    torch.manual_seed(0)
    PerExampleDropout(0.3, "drop")(x, KEYS)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_compiled_call_is_one_graph_and_has_the_same_mask():
    compiled = torch.compile(per_example_dropout, backend="eager", fullgraph=True)
    positions = {1: torch.arange(8)}

    assert torch.equal(compiled(ONES, 0.3, KEYS, stream="drop", positions=positions), WHOLE)


def dtensor():
    tensor = torch.ones(SHAPE)
    tensor.placements = ()  # type: ignore[attr-defined]
    return tensor


def test_the_module_drops_values_only_in_training_mode():
    drop = PerExampleDropout(0.3, "drop")

    assert torch.equal(drop(ONES, KEYS), WHOLE)
    assert drop.eval()(ONES, KEYS) is ONES
    assert per_example_dropout(ONES, 0, KEYS) is ONES
    assert not per_example_dropout(ONES, 1, KEYS).any()
    assert repr(drop) == "PerExampleDropout(p=0.3, stream='drop')"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"p": 1.5}, ArgumentError, "p=1.5 is not a probability"),
        ({"examples": KEYS[:2]}, ArgumentError, "pass 4 keys, one for each entry"),
        ({"examples": KEYS.int()}, ArgumentTypeError, "int64 keys .*, not torch.int32"),
        ({"examples": [1, 2, 3, 4]}, ArgumentTypeError, "int64 keys"),
        ({"x": dtensor()}, ArgumentTypeError, "not a DTensor; pass x.to_local"),
        ({"batch_dim": 3}, ArgumentError, "batch_dim=3 is not a dimension of x"),
        ({"positions": {1: torch.arange(4)}}, ArgumentError, r"pass integers of shape \[8\]"),
        ({"positions": {1: torch.rand(8)}}, ArgumentError, "tensor of torch.float32"),
        ({"positions": {3: torch.arange(8)}}, ArgumentError, "positions has the key 3"),
        ({"positions": {1: torch.ones(8).bool()}}, ArgumentError, "tensor of torch.bool"),
        (
            {"positions": {1: torch.arange(8), -2: torch.arange(8)}},
            ArgumentError,
            "two keys for dimension 1",
        ),
        ({"positions": [torch.arange(8)]}, ArgumentTypeError, "positions maps each sharded"),
        ({"positions": torch.arange(8)}, ArgumentTypeError, "positions maps each sharded"),
        ({"positions": {1: [0, 1]}}, ArgumentTypeError, r"and not 1 to \[0, 1\]"),
        ({"positions": {"1": torch.arange(8)}}, ArgumentTypeError, "and not '1' to an object"),
        ({"p": "0.1"}, ArgumentTypeError, "p must be a number from 0 to 1, not '0.1'"),
        ({"p": None}, ArgumentTypeError, "p must be a number from 0 to 1, not None"),
        ({"stream": 3}, ArgumentTypeError, "stream must be the name of the dropout"),
        ({"batch_dim": "0"}, ArgumentTypeError, "batch_dim must be the number of a dimension"),
        ({"x": [1.0, 2.0]}, ArgumentTypeError, r"x must be a tensor, not \[1.0, 2.0\]"),
        ({"x": ONES.numpy()}, ArgumentTypeError, "x must be a tensor, not an object"),
        ({"x": ONES.long()}, ArgumentTypeError, "tensor of torch.int64, but dropout divides"),
        ({"examples": torch.arange(4)}, ArgumentError, "indices of examples and not keys"),
    ],
)
def test_invalid_dropout_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        per_example_dropout(**{"x": ONES, "p": 0.3, "examples": KEYS, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, "drop"), "p must be a number"),
        ((0.1, 3), "stream must be the name"),
        ((0.1, "drop", "0"), "batch_dim must be the number"),
    ],
)
def test_the_module_refuses_invalid_settings_when_it_is_made(arguments, message):
    with pytest.raises(ArgumentTypeError, match=message):
        PerExampleDropout(*arguments)


def test_keys_are_accepted_where_their_values_cannot_be_read():
    def dropped(row, key):
        return per_example_dropout(row[None], 0.3, key[None])[0]

    rows = ONES.reshape(len(KEYS), -1)
    whole = per_example_dropout(rows, 0.3, KEYS)

    assert torch.equal(torch.vmap(dropped)(rows, KEYS), whole)


def test_a_layout_that_is_one_placement_is_refused():
    with pytest.raises(ArgumentTypeError, match="layout must be a tuple of placements"):
        logical_positions(Shard(1, "tp"), (2, 4), {"tp": 0}, {"tp": 2})  # type: ignore[arg-type]
