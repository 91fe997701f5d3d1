"""A fake process group says what rank this is, and goes away."""

import torch.distributed as dist

from pytest_trainsafe.compat.fake_group import fake_group


def test_a_fake_group_has_a_rank_among_many_while_it_is_active():
    with fake_group(2, 4):
        assert (dist.get_rank(), dist.get_world_size()) == (2, 4)
    assert not dist.is_initialized()
