"""A small MLP as text of torch.fx: sequential, and cut over two ranks of tp."""

from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.problem.declared import stated_problem

SEQUENTIAL = """
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4, 6]", up: "f32[6, 8]", down: "f32[8, 6]", ids: "i64[4]"):
        # File: mlp.py:3 in forward, code: h = gelu(x @ up)
        mm: "f32[4, 8]" = torch.ops.aten.mm.default(x, up)
        gelu: "f32[4, 8]" = torch.ops.aten.gelu.default(mm)
        # File: mlp.py:4 in forward, code: y = h @ down
        mm_1: "f32[4, 6]" = torch.ops.aten.mm.default(gelu, down)
        # File: mlp.py:5 in forward, code: return softmax(x + y)
        add: "f32[4, 6]" = torch.ops.aten.add.Tensor(x, mm_1)
        _softmax: "f32[4, 6]" = torch.ops.aten._softmax.default(add, -1, False)
        view: "f32[24]" = torch.ops.aten.view.default(_softmax, [24])
        index: "f32[4]" = torch.ops.aten.index.Tensor(view, [ids])
        return (index,)
"""

RANK = """
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4, 6]", up: "f32[6, 4]", down: "f32[4, 6]", ids: "i64[4]"):
        mm: "f32[4, 4]" = torch.ops.aten.mm.default(x, up)
        gelu: "f32[4, 4]" = torch.ops.aten.gelu.default(mm)
        mm_1: "f32[4, 6]" = torch.ops.aten.mm.default(gelu, down)
        all_reduce: "f32[4, 6]" = torch.ops._c10d_functional.all_reduce.default(mm_1, 'sum', '0')
        wait: "f32[4, 6]" = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
        add: "f32[4, 6]" = torch.ops.aten.add.Tensor(x, wait)
        _softmax: "f32[4, 6]" = torch.ops.aten._softmax.default(add, -1, False)
        view: "f32[24]" = torch.ops.aten.view.default(_softmax, [24])
        index: "f32[4]" = torch.ops.aten.index.Tensor(view, [ids])
        return (index,)
"""

RELATION = {
    "mesh": {"tp": 2},
    "inputs": {"x, ids": "replica", "up": "concat 1", "down": "concat 0"},
    "outputs": {"index": "replica"},
}


def mlp(*ranks, **changes):
    """The problem of the MLP; `ranks` are texts of ranks' graphs."""
    texts = ranks or (RANK, RANK)
    graphs = [parse_fx(text, f"rank{number}.txt") for number, text in enumerate(texts)]
    return stated_problem(parse_fx(SEQUENTIAL, "sequential.txt"), graphs, RELATION | changes)
