"""A fake process group says what rank this is, and goes away."""

import functools
import gc

import torch.distributed as dist
import torch.distributed.tensor as dtensor

from pytest_trainsafe.compat import fake_group as room
from pytest_trainsafe.compat.fake_group import fake_group


def test_a_fake_group_has_a_rank_among_many_while_it_is_active():
    with fake_group(2, 4):
        assert (dist.get_rank(), dist.get_world_size()) == (2, 4)
    assert not dist.is_initialized()


def test_every_cache_of_dtensor_is_forgotten_also_those_that_the_garbage_collector_does_not_list():
    kind = type(functools.cache(len))
    gc.unfreeze()
    listed = [each for each in gc.get_objects() if type(each) is kind]
    gc.freeze()
    own = {id(each) for each in listed if str(each.__module__).startswith(dtensor.__name__)}
    assert own
    assert own <= {id(each) for each in room._caches()}
