"""A trace of several ranks is translated through a view, to be compared with another Run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe import Point, relations
from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.errors import ArgumentError, RelationError
from pytest_trainsafe.judges.metamorphic.relations.views import Cropped, Folded, Merged, Scaled
from pytest_trainsafe.judges.metamorphic.translate import shapes_of, translated
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import SINGLE, Record, draw, write

ROWS, WIDTH = 2, 6
OUTPUT = TensorId(0, 0, "activation", "fc1", "output")
WEIGHT = TensorId(0, None, "param", "fc1", "weight")


def records_of(microbatches: int = 4) -> list[Record]:
    """One output, its gradient, a loss and a gradient of a weight in each micro-batch."""
    records = []
    for index in range(microbatches):
        for kind in ("activation", "activation_grad"):
            id = TensorId(0, index, kind, "fc1", "output")
            value = draw(f"{kind} {index}", (ROWS, WIDTH))
            records.append(Record(id, value, (Shard(1, "tp"),)))
        places = TensorId(0, index, "activation_grad", "places", "output")
        records.append(Record(places, draw(f"places {index}", (1, WIDTH))))
        loss = TensorId(0, index, "loss", "", "loss")
        records.append(Record(loss, draw(f"loss {index}", ())))
        grad = TensorId(0, index, "param_grad", "fc1", "weight")
        records.append(Record(grad, draw(f"grad {index}", (WIDTH, 3)), (Shard(0, "tp"),)))
    records.append(Record(WEIGHT, draw("weight", (WIDTH, 3)), (Shard(0, "tp"),)))
    return records


def recorded(folder: Path, point: Point, microbatches: int = 4) -> Trace:
    return write(folder, records_of(microbatches), point, "float64")


def value(trace: Trace, id: TensorId) -> torch.Tensor:
    merged = logical_tensor(trace, id)
    assert merged.tensor is not None
    assert not merged.findings
    return merged.tensor


@pytest.mark.parametrize("point", [SINGLE, Point.of(tp=2), Point.of(dp=2)], ids=str)
def test_merged_joins_micro_batches_on_every_rank(point, tmp_path):
    trace = recorded(tmp_path / "trace", point)
    like = {
        OUTPUT: (2 * ROWS, WIDTH),
        TensorId(0, 1, "activation_grad", "fc1", "output"): (2 * ROWS, WIDTH),
        TensorId(0, 0, "activation_grad", "places", "output"): (1, WIDTH),
    }

    found = translated(trace, Merged(2), like, relations.Split())

    both = [draw(f"activation {index}", (ROWS, WIDTH)) for index in range(4)]
    assert torch.equal(value(found, OUTPUT), torch.cat(both[:2]))
    grads = [draw(f"activation_grad {index}", (ROWS, WIDTH)) for index in range(4)]
    second = TensorId(0, 1, "activation_grad", "fc1", "output")
    assert torch.equal(value(found, second), torch.cat(grads[2:]))
    # All samples share the one row of `places`, so its gradients add up.
    places = TensorId(0, 0, "activation_grad", "places", "output")
    assert torch.equal(
        value(found, places), draw("places 0", (1, WIDTH)) + draw("places 1", (1, WIDTH))
    )
    loss = TensorId(0, 1, "loss", "", "loss")
    assert torch.equal(value(found, loss), (draw("loss 2", ()) + draw("loss 3", ())) / 2)
    grad = TensorId(0, 0, "param_grad", "fc1", "weight")
    assert torch.equal(value(found, grad), draw("grad 0", (WIDTH, 3)) + draw("grad 1", (WIDTH, 3)))
    assert torch.equal(value(found, WEIGHT), draw("weight", (WIDTH, 3)))


def test_merging_micro_batches_of_different_dp_ranks_is_refused(tmp_path):
    trace = recorded(tmp_path / "trace", Point.of(dp=2))

    with pytest.raises(RelationError, match=r"are on dp ranks 0 and 1; let ctx\.microbatches"):
        translated(trace, Merged(4), {}, relations.Split())


def test_dp_ranks_may_share_a_micro_batch_if_the_relation_merges_none(tmp_path):
    trace = recorded(tmp_path / "trace", Point.of(dp=2))
    shared = {**trace.ranks[0].tensors, **trace.ranks[1].tensors}
    for rank in trace.ranks:
        rank.tensors = dict(shared)

    found = translated(trace, None, {}, relations.Order(ignore=("places",)))

    assert {id.module for id in found.ids()} == {"fc1", ""}


@pytest.mark.parametrize("point", [SINGLE, Point.of(tp=2)], ids=str)
def test_cropped_shortens_longer_dimensions_even_if_they_are_sharded(point, tmp_path):
    trace = recorded(tmp_path / "trace", point)
    like = {**shapes_of(trace), OUTPUT: (ROWS, 4), WEIGHT: (4, 3)}

    found = translated(trace, Cropped(4, WIDTH), like, relations.Vocabulary())

    assert torch.equal(value(found, OUTPUT), draw("activation 0", (ROWS, WIDTH))[:, :4])
    assert torch.equal(value(found, WEIGHT), draw("weight", (WIDTH, 3))[:4])
    other = TensorId(0, 1, "activation", "fc1", "output")
    assert torch.equal(value(found, other), draw("activation 1", (ROWS, WIDTH)))


def test_cropped_shortens_each_row_of_a_flat_tensor_or_its_outermost_dimension(tmp_path):
    id = TensorId(0, 0, "activation", "fc1", "output")
    flat = torch.arange(10.0, dtype=torch.float64)
    trace = write(tmp_path / "trace", [Record(id, flat)], SINGLE, "float64")

    rows = translated(trace, Cropped(3, 5), {id: (6,)}, relations.Padding())
    samples = translated(trace, Cropped(3, 5, outermost=True), {id: (6,)}, relations.Padding())

    assert value(rows, id).tolist() == [0, 1, 2, 5, 6, 7]
    assert value(samples, id).tolist() == [0, 1, 2, 3, 4, 5]


def test_folded_averages_outputs_and_sums_gradients_and_scaled_divides_gradients(tmp_path):
    trace = recorded(tmp_path / "trace", SINGLE)
    gradient = TensorId(0, 0, "activation_grad", "fc1", "output")
    like = {**shapes_of(trace), OUTPUT: (1, WIDTH), gradient: (1, WIDTH)}

    folded = translated(trace, Folded(2), like, relations.Repeat())
    scaled = translated(trace, Scaled(4.0), shapes_of(trace), relations.LossScale())

    assert torch.equal(value(folded, OUTPUT)[0], draw("activation 0", (ROWS, WIDTH)).mean(0))
    assert torch.equal(value(folded, gradient)[0], draw("activation_grad 0", (ROWS, WIDTH)).sum(0))
    assert torch.equal(value(scaled, gradient), draw("activation_grad 0", (ROWS, WIDTH)) / 4)
    assert torch.equal(value(scaled, OUTPUT), draw("activation 0", (ROWS, WIDTH)))


def test_merged_tensors_have_equal_hashes_if_the_view_is_equal_and_else_other_hashes(tmp_path):
    first = recorded(tmp_path / "first", SINGLE)
    second = recorded(tmp_path / "second", SINGLE)
    like = {OUTPUT: (2 * ROWS, WIDTH)}

    def digest(trace: Trace, view: Merged) -> str:
        return translated(trace, view, like, relations.Split()).ranks[0].tensors[OUTPUT].hash

    one, same = digest(first, Merged(2)), digest(second, Merged(2))
    other = digest(first, Merged(2, "sum"))

    assert one == same
    assert one != other  # another view made it, so the values must be compared
    assert one not in {event.hash for event in first.ranks[0].tensors.values()}


def test_a_view_that_returns_keep_for_several_parts_is_refused(tmp_path):
    class Keeps(Merged):
        def combine(self, id, parts, like):
            return relations.KEEP

    with pytest.raises(ArgumentError, match=r"Keeps.combine returned 'keep' .* has 2 parts"):
        translated(recorded(tmp_path / "trace", SINGLE), Keeps(2), {}, relations.Split())
