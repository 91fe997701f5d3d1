"""The rows on the Points that `--trainsafe-init` tries."""

#: Averages over dp, and clips by a function of its own.
AVERAGING = """
import torch
import torch.distributed as dist

def clip_by_norm(ctx, model, max_norm, report):
    norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()
    if report:
        ctx.before_clip(norm, max_norm)
    for parameter in model.parameters():
        parameter.grad.mul_(max_norm / norm)

def train(ctx, report=False):
    group = ctx.group("dp")
    size = dist.get_world_size(group)
    model = torch.nn.Linear(4, 1).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(4):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(10 * step + index)
                    x = torch.randn(3, 4, generator=generator).to(ctx.device, ctx.dtype)
                    loss = (model(x) - 1).pow(2).mean() / (4 // size)
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= size
            clip_by_norm(ctx, model, 0.01, report)
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_program_that_averages_and_clips_is_told_to_report_its_norm(folder, first, rows_of):
    """Clipping hides whether the reduction averages, so the loss is not accused."""
    folder.makepyfile(averaging=AVERAGING)
    found = rows_of(first("averaging:train"))
    assert "(averaging.py:" in found["norm"]
    assert "call ctx.before_clip(norm, limit) before gradients are clipped" in found["norm"]
    assert found["dp=2"].startswith("lacks perhaps the annotations `gradients: {mean: [dp]}` and ")
    assert "call ctx.before_clip(norm, limit) before gradients are clipped" in found["dp=2"]


def test_with_its_norm_the_annotations_are_proposed(folder, first, rows_of):
    folder.makepyfile(reporting=AVERAGING.replace("report=False", "report=True"))
    found = rows_of(first("reporting:train"))
    assert "norm" not in found
    assert "perhaps" not in found["dp=2"]
    assert "mean" in found["dp=2"]
