"""Stage 0 in half precision: the optimizer has taken a step before training begins.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 stage0_initial_step.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

torch.manual_seed(0)
model = torch.nn.Linear(8, 1, bias=False)
x = torch.randn(4, 8).bfloat16()
master = model.weight.detach().bfloat16().float().clone().requires_grad_()
before = master.detach().clone()
reference = torch.optim.AdamW([master], lr=0.1, weight_decay=0.1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": True},
    },
)
weight = engine.optimizer.fp32_groups[0][0]
initial = float((weight.detach() - before).norm() / before.norm())
engine.backward(engine(x).mean())
master.grad = model.weight.grad.float()
engine.step()
reference.step()
ratio = float((weight.detach() - before).norm() / (master - before).detach().norm())
steps = int(engine.optimizer.optimizer.state[weight]["step"])
print(f"before the first step the weights have moved by {initial:.2e} of their norm")
print(f"after it, the update is {ratio:.3f} of the right one, and the optimizer is at step {steps}")
raise SystemExit(0 if steps == 1 and initial == 0 and abs(ratio - 1) < 0.01 else 3)
