"""Every test is in exactly one shard; shards are about equal and the same on every machine."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.sweep.plan.balance import shards, weights

WEIGHTS = st.dictionaries(st.text(max_size=8), st.integers(0, 10_000), max_size=30)


@given(WEIGHTS, st.integers(1, 9))
def test_every_test_is_in_exactly_one_shard(weight, count):
    made = shards(weight, count)

    assert len(made) == count
    assert sorted(test for shard in made for test in shard) == sorted(weight)


@given(WEIGHTS, st.integers(1, 9))
def test_no_shard_is_heavier_than_an_equal_share_plus_one_test(weight, count):
    loads = [sum(weight[test] for test in shard) for shard in shards(weight, count)]

    assert max(loads) <= sum(weight.values()) / count + max(weight.values(), default=0)


@given(WEIGHTS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_shards_do_not_depend_on_the_order_of_collection(weight, count, random):
    shuffled = list(weight.items())
    random.shuffle(shuffled)

    assert shards(dict(shuffled), count) == shards(weight, count)


def test_tests_of_weight_zero_are_distributed_evenly():
    assert [len(shard) for shard in shards(dict.fromkeys("abcdef", 0), 3)] == [2, 2, 2]


def test_shards_do_not_depend_on_hash_randomisation():
    script = (
        "from pytest_trainsafe.sweep.plan.balance import shards; "
        "print(shards({f't[{n}]': n * 7919 % 13 for n in range(40)}, 7))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(printed) == 1
    assert "t[0]" in printed.pop()


def test_an_unmeasured_test_weighs_the_mean_of_the_others():
    ranks = {"a": 1, "b": 2, "c": 4}

    assert weights({"a": 1.0, "b": 4.0, "c": None}, ranks) == {"a": 1000, "b": 4000, "c": 2500}
    assert weights(dict.fromkeys("abc"), ranks) == {"a": 1000, "b": 2000, "c": 4000}
