"""Stage 3 without reduce-scatter: a gradient_predivide_factor of dp divides twice.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 stage3_predivide.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

torch.manual_seed(0)
model, x = torch.nn.Linear(8, 1, bias=False), torch.randn(4, 8)
before = model.weight.detach().clone()
gradient = torch.autograd.grad(model(x).square().mean(), model.weight)[0]  # the same on each rank
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "gradient_predivide_factor": 2.0,
        "zero_optimization": {"stage": 3, "reduce_scatter": False},
        "zero_allow_untested_optimizer": True,
    },
)
engine.backward(engine(x).square().mean())
engine.step()
with deepspeed.zero.GatheredParameters(list(model.parameters())):
    ratio = float((model.weight.detach() - before).norm() / gradient.norm())
print(f"update is {ratio:.4f} of the right one")
raise SystemExit(0 if abs(ratio - 1) < 1e-3 else 3)
