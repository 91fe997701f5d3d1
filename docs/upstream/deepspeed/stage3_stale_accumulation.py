"""Stage 3: accumulation begins from the last step's gradient where the first micro-batch has none.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 stage3_stale_accumulation.py
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
for stage in (0, 1, 2, 3):
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 4)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.0,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    for _ in range(2):
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            copy = Model()
            copy.load_state_dict({k: v.detach().clone() for k, v in model.state_dict().items()})
        (copy(x, True) / 2).backward()
        for both in (False, True):  # the first micro-batch does not use model.b
            engine.backward(engine(x, both))
            engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        update = float((model.b.weight.detach() - copy.b.weight.detach()).norm())
    ratios[stage] = round(update / float(copy.b.weight.grad.norm()), 4)
print(f"update of the second step over the right one, by stage: {ratios}")
raise SystemExit(0 if all(abs(ratio - 1) < 1e-3 for ratio in ratios.values()) else 3)
