"""Stage 0 in float32, ep=2: clipped by the mean of the norms of what each rank holds.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 stage0_expert_parallel_clip.py
"""

import deepspeed
import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")


class Model(torch.nn.Module):
    def __init__(self, ep, seed):
        super().__init__()
        torch.manual_seed(0)
        self.dense = torch.nn.Linear(8, 8)
        torch.manual_seed(seed)
        expert = torch.nn.Linear(8, 8)
        self.moe = MoE(8, expert, num_experts=2, ep_size=ep, k=1, drop_tokens=False, use_rts=False)

    def forward(self, x):
        return self.moe(self.dense(x))[0].float().square().mean()


rank = torch.distributed.get_rank()
model = Model(ep=2, seed=1 + rank)  # every rank holds another expert
groups = {"params": list(model.parameters()), "name": "all"}
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(split_params_into_different_moe_groups_for_optimizer(groups), lr=1.0),
    config={"train_micro_batch_size_per_gpu": 16, "gradient_clipping": 0.001},
)
torch.manual_seed(2 + rank)
engine.backward(engine(torch.randn(1, 16, 8)))
squares = torch.zeros(2)  # of what every rank holds, of experts
for name, parameter in model.named_parameters():
    squares[int("experts" in name)] += parameter.grad.square().sum()
torch.distributed.all_reduce(squares[1:])
right = float(squares.sum().sqrt())
gradient, before = model.dense.weight.grad.clone(), model.dense.weight.detach().clone()
engine.step()
used = float(0.001 * gradient.norm() / (before - model.dense.weight.detach()).norm())
print(f"rank {rank}: clipped by the norm {used:.4f}, right {right:.4f}")
raise SystemExit(0 if abs(used / right - 1) < 1e-3 else 3)
