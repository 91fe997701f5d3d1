"""A program with sizes, whose bugs show at some of them only."""

PROGRAM = '''
"""A layer of which tp ranks hold columns; its loss is the mean of all outputs."""

import torch
import torch.distributed as dist

from pytest_trainsafe import divides, requires, sizes

LAYOUTS = {
    "parameters": {"up.weight": {"tp_dim": 0}},
    "modules": {"": {"output": {"tp_dim": 1}}, "up": {"output": {"tp_dim": 1}}},
}


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@sizes("rows", "width")
@requires(divides("width", "tp"))
def train(ctx, rows=48, width=96, bug=""):
    group, size = ctx.group("tp"), ctx.point.size("tp")
    wrong = bug if size > 1 else ""
    net = torch.nn.Sequential()
    net.add_module("up", torch.nn.Linear(4, width // size, bias=False, dtype=ctx.dtype))
    ctx.initialize(net, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    ctx.watch(net, optimizer, annotations=LAYOUTS)
    generator = torch.Generator().manual_seed(7)
    with ctx.step():
        with ctx.microbatch(0):
            y = net(torch.randn(rows, 4, generator=generator, dtype=ctx.dtype))
            outputs = y.square()
            if wrong == "first column":
                outputs = outputs[:, :1]
            total = outputs.sum()
            if size > 1:
                total = Summed.apply(total, group)
            # The mean over rows and columns.
            loss = total / (rows * rows if wrong == "rows for columns" else rows * width)
            if wrong == "long" and rows > 40:
                loss = loss * 2
            ctx.loss(loss)
            loss.backward()
        optimizer.step()
'''
