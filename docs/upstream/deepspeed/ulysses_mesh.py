"""Ulysses through mesh_param: gradients are not summed over the ranks of a sequence.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 ulysses_mesh.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

rank = torch.distributed.get_rank()
torch.manual_seed(0)
model, x = torch.nn.Linear(8, 1, bias=False), torch.randn(1, 6, 8)
before = model.weight.detach().clone()
gradient = torch.autograd.grad(model(x).square().mean(), model.weight)[0]
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    config={"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0},
    mesh_param=(1, 2),  # data parallel, sequence parallel
)
local = x.chunk(2, dim=1)[rank]  # this rank holds half of the sequence
engine.backward(engine(local).square().sum() / x.shape[1])  # its part of the mean
engine.step()
update = before - model.weight.detach()
others = [torch.empty_like(update) for _ in range(2)]
torch.distributed.all_gather(others, update)
drift = float((others[0] - others[1]).norm() / gradient.norm())
error = float((update - gradient).norm() / gradient.norm())
print(f"rank {rank}: relative error of the update {error:.3f}, ranks apart by {drift:.3f}")
raise SystemExit(0 if error < 1e-4 and drift == 0 else 3)
