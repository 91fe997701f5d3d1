"""Stage 0 in float16: gradients are divided by a loss scale that the loss never had.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 stage0_float16_loss_scale.py
"""

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

if not get_accelerator().is_fp16_supported():
    print("not run: DeepSpeed trains in float16 on CPUs with native float16, and this one has none")
    raise SystemExit(77)

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

model = torch.nn.Linear(4, 1, bias=False)
before = model.weight.detach().half().float()
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "fp16": {"enabled": True, "loss_scale": 128},
    },
)
engine.backward(engine(torch.ones(1, 4).half()).sum())  # the gradient is 1 everywhere
engine.step()
update = engine.optimizer.fp32_groups[0][0].detach() - before
ratio = float(update.norm() / torch.full((1, 4), 0.5).norm())
print(f"update is {ratio:.6f} of the right one; 1/128 = {1 / 128:.6f}")
raise SystemExit(0 if abs(ratio - 1) < 0.01 else 3)
