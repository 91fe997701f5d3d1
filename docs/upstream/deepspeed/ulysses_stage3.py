"""Ulysses at stage 3: gradients are divided by sp, which happens at no other stage.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 ulysses_stage3.py
"""

import deepspeed
import deepspeed.runtime.sequence_parallel.parallel_state_sp as mpu
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

rank = torch.distributed.get_rank()
mpu.initialize_sequence_parallel(2)
ratios = {}
for stage in (0, 1, 2, 3):
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
    engine.backward(engine(local).square().sum() / x.shape[1])  # its part of the mean
    engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        update = before - model.weight.detach()
    ratios[stage] = round(float(update.norm() / gradient.norm()), 4)
print(f"rank {rank}: update over the right one, by stage: {ratios}")
raise SystemExit(0 if all(abs(ratio - 1) < 1e-3 for ratio in ratios.values()) else 3)
