"""DeepSpeed 6714 (TrainCheck, Table 5): one pipeline stage makes one more all-reduce.

https://github.com/deepspeedai/DeepSpeed/issues/6714: with pipeline parallelism, fp16 and experts on
one stage only, FP16_Optimizer's check for overflows makes an additional all-reduce over all ranks
where the model has experts.  The other stages do not, and training hangs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, faulty: bool = False, steps: int = 3, patience: float = 60.0) -> Outcome:
    """Train a pipeline of two stages.

    In the Outcome, `facts["reductions"]` has the number of all-reduces that this rank completed in
    each step.  With the error the ranks wait for each other, and RuntimeError is raised after
    `patience` seconds.
    """
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(ctx.seed)
    ctx.group("pp")  # starts torch.distributed
    # A separate group, because a timeout closes the connections of its group.
    group = dist.new_group(list(range(ctx.world_size)))
    first, wait = ctx.rank == 0, timedelta(seconds=patience)
    lower = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    upper = nn.Linear(8, 3)
    model = lower if first else upper
    experts = {id(each) for each in lower.parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch({"lower": lower} if first else {"upper": upper}, optimizer, level="step")

    def send(tensor: torch.Tensor, to: int) -> None:
        work = dist.isend(tensor.contiguous(), to, group=group)
        assert work is not None
        work.wait(wait)

    def receive(tensor: torch.Tensor, source: int) -> torch.Tensor:
        work = dist.irecv(tensor, source, group=group)
        assert work is not None
        work.wait(wait)
        return tensor

    def reduce_flag(flag: torch.Tensor) -> None:
        work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group, async_op=True)
        assert work is not None
        work.wait(wait)
        outcome.facts["reductions"][-1] += 1

    def overflows() -> bool:
        flag = torch.zeros(())
        for parameter in model.parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                flag.fill_(1.0)
        if faulty and any(id(each) in experts for each in model.parameters()):
            reduce_flag(flag)
        reduce_flag(flag)
        return bool(flag)

    outcome = Outcome(facts={"reductions": []})
    for _ in range(steps):
        with ctx.step():
            outcome.facts["reductions"].append(0)
            inputs = torch.randn(16, 8)
            if first:
                hidden = lower(inputs)
                send(hidden.detach(), 1)
                hidden.backward(receive(torch.empty(16, 8), 1))
            else:
                hidden = receive(torch.empty(16, 8), 0).requires_grad_()
                loss = F.cross_entropy(upper(hidden), inputs[:, :3].argmax(dim=1))
                loss.backward()  # type: ignore[no-untyped-call]
                assert hidden.grad is not None
                send(hidden.grad, 0)
                outcome.losses.append(loss.item())
            if not overflows():
                optimizer.step()
            optimizer.zero_grad()
    return outcome
