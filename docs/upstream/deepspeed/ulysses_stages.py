"""Ulysses: with the same loss, stages 0 to 2 and stage 3 train with gradients that differ by sp.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 ulysses_stages.py
"""

import deepspeed
import deepspeed.runtime.sequence_parallel.parallel_state_sp as mpu
import torch
from torch.distributed.nn.functional import all_gather

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

rank = torch.distributed.get_rank()
mpu.initialize_sequence_parallel(2)
group = mpu.get_sequence_parallel_group()
ratios = {"documented loss": [], "mean of the own part": []}
for loss_of, stage in [(name, stage) for name in ratios for stage in (0, 1, 2, 3)]:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(8, 1, bias=False), torch.randn(1, 6, 8)
    before = model.weight.detach().clone()
    gradient = torch.autograd.grad(model(x).square().mean(), model.weight)[0]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
        mpu=mpu,
    )
    local = x.chunk(2, dim=1)[rank]  # this rank holds half of the sequence
    loss = engine(local).square().mean()
    if loss_of == "documented loss":  # the mean over the sequence, on every rank
        losses = all_gather(loss, group=group)
        tokens = all_gather(torch.tensor(local.shape[1]), group=group)
        loss = sum(a * b for a, b in zip(losses, tokens, strict=True)) / sum(tokens)
    engine.backward(loss)
    engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        update = before - model.weight.detach()
    ratios[loss_of].append(round(float(update.norm() / gradient.norm()), 4))
print(f"rank {rank}: update over the right one, at stages 0 to 3: {ratios}")
raise SystemExit(0 if all(max(each) / min(each) < 1.001 for each in ratios.values()) else 3)
