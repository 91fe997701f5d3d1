"""The RNG rules and expect_rng follow the roles of mesh axes, whatever the axes are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.sweep.expectation import expect_rng
from tests.support.replay.ledger_traces import hold, mask, write

HYBRID = Mesh("dp_replicate", "dp_shard", roles={"dp_replicate": "dp", "dp_shard": "dp"})
TWO_TP = Mesh("tp_outer", "tp_inner", roles={"tp_outer": "tp", "tp_inner": "tp"})


def checks(judgement) -> list[str]:
    return [finding.check for finding in judgement.findings]


def at_hybrid(replicate: int, shard: int) -> Point:
    return Point.of({"dp_replicate": replicate, "dp_shard": shard}, mesh=HYBRID)


def judged(path: Path, point: Point, ledger, *rules):
    return judge_rng(write(path, point, ledger), None, rules)


@pytest.mark.parametrize(("replicate", "shard"), [(1, 2), (2, 1), (2, 2)])
def test_one_seed_is_found_along_every_axis_with_the_role_dp(tmp_path: Path, replicate, shard):
    point = at_hybrid(replicate, shard)

    one_seed = judged(tmp_path / "a", point, lambda at: [mask(1, microbatch=at["dp"])])
    own = judged(tmp_path / "b", point, lambda at: [mask(at["dp"], microbatch=at["dp"])])

    assert checks(one_seed) == ["rng:dp_same_dropout"]
    assert checks(own) == []


def test_a_finding_names_the_axis_if_only_one_has_the_role(tmp_path: Path):
    judgement = judged(tmp_path / "a", at_hybrid(1, 2), lambda at: [mask(1, microbatch=at["dp"])])

    [finding] = judgement.findings
    assert finding.message.startswith("ranks 0, 1 of dp_shard draw the same dropout")


def test_expect_rng_applies_a_role_to_all_mesh_axes_that_have_it(tmp_path: Path):
    def drawn(name, number):
        rules = [expect_rng("drop", same="dp"), expect_rng("other", different="dp")]
        return judged(
            tmp_path / name,
            at_hybrid(2, 2),
            lambda at: [mask(1, microbatch=at["dp"]), mask(number(at), module="other")],
            *rules,
        )

    assert checks(drawn("apart", lambda at: 10 + at["dp"])) == []
    assert checks(drawn("alike", lambda at: 10)) == ["rng:expected"]
    assert checks(drawn("half", lambda at: 10 + at["dp_shard"])) == ["rng:expected"]


def test_masks_of_a_tensor_that_is_sharded_over_one_of_two_tp_axes(tmp_path: Path):
    """Ranks along the sharding axis need different masks, ranks along the other equal ones."""
    output = TensorId(0, 0, "activation", "drop", "output")

    def drawn(name, number):
        point = Point.of({"tp_outer": 2, "tp_inner": 2}, mesh=TWO_TP)
        trace = write(tmp_path / name, point, lambda at: [mask(number(at), shape=(4, 4))])
        hold(trace, output, lambda at: at["tp"], (Shard(1, "tp_inner"),))
        return checks(judge_rng(trace))

    assert drawn("right", lambda at: 9 * at["tp_inner"]) == []
    assert drawn("alike", lambda at: 0) == ["rng:tp_same_dropout"]
    assert drawn("apart", lambda at: 9 * at["tp"]) == ["rng:tp_different_dropout"]


def test_initial_values_must_agree_along_the_axes_that_do_not_shard_them(tmp_path: Path):
    weight = TensorId(INITIAL, None, "param", "", "weight")

    def drawn(name, number):
        trace = write(
            tmp_path / name,
            at_hybrid(2, 2),
            lambda at: [mask(number(at), phase="initialisation", microbatch=None)],
        )
        hold(trace, weight, number, (Shard(0, "dp_shard"),))
        return checks(judge_rng(trace))

    assert drawn("right", lambda at: 9 * at["dp_shard"]) == []
    assert drawn("wrong", lambda at: 9 * at["dp"]) == ["rng:initialisation"]
