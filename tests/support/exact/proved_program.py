"""The program of the tests of proofs, with bugs and an operator without semantics."""

PROGRAM = '''
"""A network of two layers, of which tp ranks hold columns of the first and rows of the second."""

import torch
import torch.distributed as dist

LAYOUTS = {
    "parameters": {"up.weight": {"tp_dim": 0}, "down.weight": {"tp_dim": 1}},
    "modules": {"up": {"output": {"tp_dim": 1}}},
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


class Down(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(torch.relu(x))
        return y if self.group is None else Summed.apply(y, self.group)


def train(ctx, bug="", unknown=False, layouts=True):
    group, size = ctx.group("tp"), ctx.point.size("tp")
    net = torch.nn.Sequential()
    net.add_module("up", torch.nn.Linear(4, 8 // size, bias=False, dtype=ctx.dtype))
    net.add_module("down", Down(8 // size, 3, bias=False, dtype=ctx.dtype))
    net.down.group = None if bug == "unreduced" or size == 1 else group
    ctx.initialize(net, annotations=LAYOUTS)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    given = LAYOUTS if layouts else {"parameters": LAYOUTS["parameters"]}
    ctx.watch(net, optimizer, annotations=given)
    generator = torch.Generator().manual_seed(7)
    for number in range(2):
        with ctx.step():
            optimizer.zero_grad()
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    x = torch.randn(5, 4, generator=generator, dtype=ctx.dtype)
                    y = net(x)
                    if unknown:
                        y = y + torch.special.i0(y)
                    loss = y.square().mean()
                    if bug == "tiny" and size > 1:
                        loss = loss + loss * 1e-25
                    ctx.loss(loss)
                    loss.backward()
            norm = sum(p.grad.square().sum() for p in net.parameters())
            if size > 1:
                dist.all_reduce(norm, group=group)
            norm = norm.sqrt()
            # one side branches, the other clamps: the same function
            if size == 1:
                scale = 0.01 / norm if norm > 0.01 else torch.ones_like(norm)
            else:
                scale = (0.01 / norm).clamp(max=1.0)
            for p in net.parameters():
                p.grad.mul_(scale * 2 if bug == "twice" and size > 1 else scale)
            optimizer.step()
'''
