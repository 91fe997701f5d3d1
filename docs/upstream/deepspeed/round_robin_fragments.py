"""round_robin_gradients: safe_get_full_fp32_param returns values of other parameters.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 round_robin_fragments.py
"""

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters()),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 1, "round_robin_gradients": True},
    },
)
errors = {
    name: float((safe_get_full_fp32_param(p) - p.detach()).norm() / p.detach().norm())
    for name, p in model.named_parameters()
}
print({name: round(error, 3) for name, error in errors.items()})
# In float32, master weight and parameter are the same number.
raise SystemExit(0 if not any(errors.values()) else 3)
