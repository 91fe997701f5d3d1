"""Stage 0: gradients of sparse embeddings are multiplied by gradient_predivide_factor.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 sparse_predivide.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

torch.manual_seed(0)
model, x = torch.nn.Embedding(6, 4, sparse=True), torch.tensor([1, 3, 3])
before = model.weight.detach().clone()
gradient = torch.autograd.grad(model(x).square().mean(), model.weight)[0].to_dense()
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    config={
        "train_micro_batch_size_per_gpu": 3,
        "gradient_clipping": 0.0,
        "gradient_predivide_factor": 2.0,
    },
)
engine.backward(engine(x).square().mean())  # the same on each rank
engine.step()
ratio = float((model.weight.detach() - before).norm() / gradient.norm())
print(f"update is {ratio:.4f} of the right one")
raise SystemExit(0 if abs(ratio - 1) < 1e-3 else 3)
