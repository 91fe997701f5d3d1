"""Stage 0: gradient_clipping leaves the gradients of sparse embeddings as they are.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 sparse_clip.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

ratios = {}
for sparse in (False, True):
    torch.manual_seed(0)
    model, x = torch.nn.Embedding(6, 4, sparse=sparse), torch.tensor([1, 3, 3])
    before = model.weight.detach().clone()
    gradient = torch.autograd.grad(model(x).square().sum(), model.weight)[0].to_dense()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": 3,
            "gradient_clipping": float(gradient.norm()) / 10,  # ten times less than the norm
        },
    )
    engine.backward(engine(x).square().sum())
    engine.step()
    update = (model.weight.detach() - before).norm()
    ratios["sparse" if sparse else "dense"] = round(float(update / gradient.norm()), 4)
print(f"update over the gradient, which is to be clipped to 0.1: {ratios}")
raise SystemExit(0 if abs(ratios["sparse"] - 0.1) < 1e-3 else 3)
