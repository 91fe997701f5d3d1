"""After set_train_batch_size a step is taken too early: micro-batches count from the first one.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 resized_batch.py
"""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")

model = torch.nn.Linear(4, 1, bias=False)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0,
    },
)
stepped = []
for micro_batches in (2, 4, 4):  # of each step
    engine.set_train_batch_size(micro_batches)
    for _ in range(micro_batches):
        before = model.weight.detach().clone()
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()
        stepped.append(not torch.equal(before, model.weight))
steps = [number + 1 for number, step in enumerate(stepped) if step]
print(f"steps are taken after micro-batches {steps}, and should be after [2, 6, 10]")
raise SystemExit(0 if steps == [2, 6, 10] else 3)
