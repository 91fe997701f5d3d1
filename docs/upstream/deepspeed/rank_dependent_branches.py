"""Stages 1 and 2: gradients of different parameters are added where ranks use different ones.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 rank_dependent_branches.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList([torch.nn.Linear(4, 4, bias=False) for _ in range(2)])

    def forward(self, x, branch):
        return self.branches[branch](x).square().mean()


rank, errors = torch.distributed.get_rank(), {}
for stage in (0, 1, 2):
    torch.manual_seed(0)
    model, xs = Model(), torch.randn(2, 4, 4)
    before = [layer.weight.detach().clone() for layer in model.branches]
    loss = sum(model(x, branch) for branch, x in enumerate(xs)) / 2
    right = torch.autograd.grad(loss, [layer.weight for layer in model.branches])
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    engine.backward(engine(xs[rank], rank))  # each rank takes another branch
    engine.step()
    updates = [b - layer.weight.detach() for b, layer in zip(before, model.branches, strict=True)]
    pairs = zip(updates, right, strict=True)
    errors[stage] = [round(float((u - g).norm() / g.norm()), 4) for u, g in pairs]
print(f"relative errors of the updates of the two branches, by stage: {errors}")
raise SystemExit(0 if all(error < 1e-4 for stage in errors.values() for error in stage) else 3)
