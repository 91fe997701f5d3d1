"""Stage 0 in half precision: the gradient norm, and so clipping, leaves out every expert.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 stage0_expert_norm.py
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


model = Model(ep=1, seed=1)
groups = {"params": list(model.parameters()), "name": "all"}
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(split_params_into_different_moe_groups_for_optimizer(groups), lr=1.0),
    config={
        "train_micro_batch_size_per_gpu": 16,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": True},
    },
)
torch.manual_seed(2)
engine.backward(engine(torch.randn(1, 16, 8).bfloat16()))
gradients = [p.grad.float() for p in model.parameters() if p.grad is not None]
right = float(torch.stack([g.norm() for g in gradients]).norm())
engine.step()
norm = float(engine.get_global_grad_norm())
print(f"gradient norm {norm:.4f}, right {right:.4f}")
raise SystemExit(0 if abs(norm / right - 1) < 0.02 else 3)
