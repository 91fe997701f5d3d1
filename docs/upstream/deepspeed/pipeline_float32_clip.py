"""PipelineEngine in float32 at stage 0: all stages clip by the norm of the first stage alone.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 pipeline_float32_clip.py
"""

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")


class Layer(torch.nn.Linear):
    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__(8, 8, bias=False)


def loss(output, target):
    return (output - target).square().mean()


x, y = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(9))
plain = torch.nn.Sequential(Layer(0), Layer(1))
before = plain[torch.distributed.get_rank()].weight.detach().clone()
loss(plain(x), y).backward()
right = float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01))
torch.optim.SGD(plain.parameters(), lr=1.0).step()
expected = plain[torch.distributed.get_rank()].weight.detach() - before

net = PipelineModule([LayerSpec(Layer, 0), LayerSpec(Layer, 1)], num_stages=2, loss_fn=loss)
engine, *_ = deepspeed.initialize(
    model=net,
    optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    config={"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.01},
)
engine.train_batch(iter([(x, y)]))
update = next(net.parameters()).detach() - before
ratio = float(update.norm() / expected.norm())
print(f"stage {engine.stage_id}: norm of all {right:.4f}, update {ratio:.3f} of the right one")
raise SystemExit(0 if abs(ratio - 1) < 1e-3 else 3)
