"""Stage 1 with overlap_comm: what the last micro-batch does not use is not averaged.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 stage1_overlap_unused_last.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, both):
        hidden = torch.tanh(self.a(x))
        return (self.b(hidden) if both else hidden).square().mean()


rank = torch.distributed.get_rank()
torch.manual_seed(0)
model, xs = Model(), torch.randn(2, 4, 4)
before = model.b.weight.detach().clone()
gradient = torch.autograd.grad(sum(model(x, True) for x in xs) / 4, model.b.weight)[0]
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1, "overlap_comm": True},
        "zero_allow_untested_optimizer": True,
    },
)
for both in (True, False):  # the second micro-batch does not use model.b
    engine.backward(engine(xs[rank], both))
    engine.step()
error = float((before - model.b.weight.detach() - gradient).norm() / gradient.norm())
print(f"relative error of the update {error:.4f}")
raise SystemExit(0 if error < 1e-4 else 3)
