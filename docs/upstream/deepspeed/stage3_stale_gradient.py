"""Stage 3: a parameter that a step does not use gets the gradient of an earlier step.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 stage3_stale_gradient.py
"""

import itertools

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


moved = {}
for stage in (0, 1, 2, 3):
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 4)
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
    weights = []
    for both in (True, False, False):  # the second step does not use model.b
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            weights.append(model.b.weight.detach().clone())
        engine.backward(engine(x, both))
        engine.step()
    first, second = (float((b - a).norm()) for a, b in itertools.pairwise(weights))
    moved[stage] = round(second / first, 4)
print(f"update of the parameter in a step that does not use it, over the one before: {moved}")
raise SystemExit(0 if not any(moved.values()) else 3)
