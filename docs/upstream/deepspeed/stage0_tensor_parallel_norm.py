"""Stage 0 in half precision, tp=2: the gradient norm leaves out what tp rank 1 holds.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 stage0_tensor_parallel_norm.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj, self.down_proj = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down_proj(self.up_proj(x))


SPECS = [
    {"patterns": [r".*up_proj\.weight$"], "partition_type": "column"},
    {"patterns": [r".*down_proj\.weight$"], "partition_type": "row"},
]
torch.manual_seed(0)
model, x = torch.nn.Sequential(Block(), Block()), torch.randn(4, 8)
model(x).square().mean().backward()
right = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9))
model.zero_grad()
config = {"use_default_specs": False, "layer_specs": SPECS}
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": True},
        "tensor_parallel": {"autotp_size": 2, "partition_config": config},
    },
)
engine.backward(engine(x.bfloat16()).float().square().mean())
engine.step()
norm = float(engine.get_global_grad_norm())
print(f"gradient norm {norm:.4f}, right {right:.4f}")
raise SystemExit(0 if abs(norm / right - 1) < 0.02 else 3)
