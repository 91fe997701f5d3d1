"""Offloaded optimizer: a gradient is lost unless the last micro-batch uses the parameter.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 offload_unused_last.py
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


ratios = {}
for stage in (1, 2, 3):
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 4)
    before = model.b.weight.detach().clone()
    gradient = torch.autograd.grad(model(x, True) / 2, model.b.weight)[0]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.0,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    for both in (True, False):  # the second micro-batch does not use model.b
        engine.backward(engine(x, both))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        ratios[stage] = round(float((model.b.weight.detach() - before).norm() / gradient.norm()), 4)
print(f"update over the right one, by stage: {ratios}")
raise SystemExit(0 if all(abs(ratio - 1) < 1e-3 for ratio in ratios.values()) else 3)
