"""torch_autocast in float16, stages 1 to 3: clipped before the loss scale is taken out.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 autocast_float16_clip.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

torch.manual_seed(0)
x, ratios = torch.randn(4, 8), {}
for stage in (0, 1, 2, 3):
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1, bias=False)
    before = model.weight.detach().clone()
    gradient = torch.autograd.grad(model(x).square().mean(), model.weight)[0]
    right = gradient * min(1.0, 0.1 / float(gradient.norm()))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.1,
            "torch_autocast": {"enabled": True, "dtype": "float16"},
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    engine.backward(engine(x).float().square().mean())
    engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        ratios[stage] = float((model.weight.detach() - before).norm() / right.norm())
    norm = engine.get_global_grad_norm()
    print(f"stage {stage}: reported norm {norm}, right {float(gradient.norm()):.4f}")
print(f"update over the right one, by stage: {ratios}; 1/65536 = {1 / 65536:.2e}")
raise SystemExit(0 if all(abs(ratio - 1) < 0.01 for ratio in ratios.values()) else 3)
