"""torch_autocast in float16, stages 1 to 3: the loss scale never shrinks.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 autocast_float16_backoff.py
"""

import itertools

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

x, applied, scales = torch.ones(1, 8), {}, {}
for stage in (0, 1, 2, 3):
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1, bias=False)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 0.0,
            "torch_autocast": {"enabled": True, "dtype": "float16"},
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    weights = []
    for _ in range(13):
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            weights.append(model.weight.detach().clone())
        engine.backward(engine(x).float().sum() * 100)  # 100 * 65536 is more than float16 holds
        engine.step()
    applied[stage] = sum(not torch.equal(a, b) for a, b in itertools.pairwise(weights))
    scaler = engine.torch_autocast_z0_gradscaler or engine.optimizer.torch_autocast_gradscaler
    scales[stage] = scaler.get_scale()
print(f"steps of 12 that moved the weights, by stage: {applied}; loss scale: {scales}")
raise SystemExit(0 if all(count > 0 for count in applied.values()) else 3)
