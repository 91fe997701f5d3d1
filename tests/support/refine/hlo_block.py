"""A transformer block with grouped-query attention and rotary positions, as HLO text.

The whole block, or one rank's program of tensor parallelism.  Batch and key-value heads of a rank
are equally many, and the sequence is as long as a head: sizes that a shrinking must tell apart.
"""

import math

BATCH, LENGTH, HIDDEN, WIDTH, HEAD = 4, 64, 1024, 4096, 64
HEADS, GROUPS = 32, 8


class Module:
    """Collects instructions; each method returns the name of its result."""

    def __init__(self):
        self.lines, self.shapes, self.inputs = [], {}, 0

    def put(self, kind, shape, operands, attributes="", dtype="f32"):
        name = f"{kind}.{len(self.lines)}"
        typed = f"{dtype}[{','.join(map(str, shape))}]"
        inside = ", ".join(f"%{each}" for each in operands)
        self.lines.append(f"  %{name} = {typed} {kind}({inside}){attributes}")
        self.shapes[name] = tuple(shape)
        return name

    def input(self, name, *shape):
        self.lines.append(f"  %{name} = f32[{','.join(map(str, shape))}] parameter({self.inputs})")
        self.inputs += 1
        self.shapes[name] = shape
        return name

    def literal(self, value, dtype="f32"):
        name = f"constant.{len(self.lines)}"
        self.lines.append(f"  %{name} = {dtype}[] constant({value})")
        self.shapes[name] = ()
        return name

    def both(self, kind, a, b):
        return self.put(kind, self.shapes[a], [a, b])

    def view(self, x, *shape):
        return self.put("reshape", shape, [x])

    def spread(self, x, shape, dims, dtype="f32"):
        return self.put("broadcast", shape, [x], f", dimensions={{{dims}}}", dtype)

    def part(self, x, dim, start, end):
        shape = list(self.shapes[x])
        ranges = [f"[0:{size}]" for size in shape]
        ranges[dim], shape[dim] = f"[{start}:{end}]", end - start
        return self.put("slice", shape, [x], f", slice={{{', '.join(ranges)}}}")

    def dot(self, a, b, left, right, batch=((), ())):
        free = [
            [size for dim, size in enumerate(self.shapes[x]) if dim not in (*own, inner)]
            for x, own, inner in ((a, batch[0], left), (b, batch[1], right))
        ]
        shape = [self.shapes[a][dim] for dim in batch[0]] + free[0] + free[1]
        text = f", lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}"
        for side, own in zip(("lhs", "rhs"), batch, strict=True):
            text += f", {side}_batch_dims={{{','.join(map(str, own))}}}" if own else ""
        return self.put("dot", shape, [a, b], text)

    def reduced(self, kind, x, start):
        shape = self.shapes[x][:-1]
        text = f", dimensions={{{len(shape)}}}, to_apply=%{kind}s"
        return self.put("reduce", shape, [x, self.literal(start)], text)

    def text(self, result):
        self.lines[-1] = self.lines[-1].replace("  %", "  ROOT %", 1)
        assert self.lines[-1].startswith(f"  ROOT %{result} ")
        regions = [
            f"%{kind}s (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n"
            f"  %b = f32[] parameter(1)\n  ROOT %c = f32[] {kind}(%a, %b)\n}}\n"
            for kind in ("add", "maximum")
        ]
        body = "\n".join(self.lines)
        return (
            "HloModule block\n\n" + "\n".join(regions)
            + f"\nENTRY %main (x: f32[]) -> f32[] {{\n{body}\n}}\n"
        )  # fmt: skip


def block(ranks=1, *, reduce=True, shift=0):
    """The text of the block on one of `ranks` ranks.

    Without `reduce`, the sum over ranks of the second projection is missing; `shift` moves where
    the values begin in the fused projection.
    """
    m = Module()
    heads, groups, width = HEADS // ranks, GROUPS // ranks, WIDTH // ranks
    rows = LENGTH * BATCH
    x = m.input("x", rows, HIDDEN)
    angles = m.input("angles", LENGTH, HEAD // 2)
    queries, keys = heads * HEAD, groups * HEAD
    fused = m.dot(x, m.input("qkv", HIDDEN, queries + 2 * keys), 1, 0)
    q = m.part(fused, 1, 0, queries)
    k = m.part(fused, 1, queries, queries + keys)
    v = m.part(fused, 1, queries + keys - shift, queries + 2 * keys - shift)
    q = _turned(m, m.view(q, LENGTH, BATCH, heads, HEAD), angles)
    k = _turned(m, m.view(k, LENGTH, BATCH, groups, HEAD), angles)
    k, v = (_repeated(m, each, heads // groups) for each in (k, v))
    scores = m.dot(q, k, 3, 3, ((1, 2), (1, 2)))
    shape = m.shapes[scores]
    weights = _softmax(m, m.both("divide", scores, m.spread(m.literal(8), shape, "")))
    y = m.dot(weights, v, 3, 0, ((0, 1), (1, 2)))
    y = m.put("transpose", (LENGTH, BATCH, heads, HEAD), [y], ", dimensions={2,0,1,3}")
    y = m.dot(m.view(y, rows, queries), m.input("out", queries, HIDDEN), 1, 0)
    x = m.both("add", x, _summed(m, y, ranks))
    up = m.dot(x, m.input("up", HIDDEN, width), 1, 0)
    gate = m.dot(x, m.input("gate", HIDDEN, width), 1, 0)
    gate = m.both("multiply", gate, m.put("logistic", m.shapes[gate], [gate]))
    y = m.dot(m.both("multiply", gate, up), m.input("down", width, HIDDEN), 1, 0)
    return m.text(m.both("add", x, _summed(m, y, ranks if reduce else 1)))


def _turned(m, x, angles):
    shape = (*m.shapes[x][:3], HEAD // 2)
    low, high = m.part(x, 3, 0, HEAD // 2), m.part(x, 3, HEAD // 2, HEAD)
    cos, sin = (
        m.spread(m.put(kind, m.shapes[angles], [angles]), shape, "0,3")
        for kind in ("cosine", "sine")
    )
    first = m.both("subtract", m.both("multiply", low, cos), m.both("multiply", high, sin))
    second = m.both("add", m.both("multiply", high, cos), m.both("multiply", low, sin))
    return m.put("concatenate", m.shapes[x], [first, second], ", dimensions={3}")


def _repeated(m, x, times):
    """Each group's keys or values for all of its query heads."""
    groups = math.prod(m.shapes[x]) // (LENGTH * BATCH * HEAD)
    x = m.view(x, LENGTH, BATCH, groups, HEAD)
    x = m.spread(x, (LENGTH, BATCH, groups, times, HEAD), "0,1,2,4")
    return m.view(x, LENGTH, BATCH, groups * times, HEAD)


def _softmax(m, scores):
    """Causal: a score of a later position is -30000."""
    shape = m.shapes[scores]
    number = m.put("iota", (LENGTH, LENGTH), [], ", iota_dimension=0", "s32")
    other = m.put("iota", (LENGTH, LENGTH), [], ", iota_dimension=1", "s32")
    mask = m.put("compare", (LENGTH, LENGTH), [number, other], ", direction=GE", "pred")
    mask = m.spread(mask, shape, "2,3", "pred")
    low = m.spread(m.literal(-30000), shape, "")
    scores = m.put("select", shape, [mask, scores, low])
    top = m.spread(m.reduced("maximum", scores, "-inf"), shape, "0,1,2")
    powers = m.put("exponential", shape, [m.both("subtract", scores, top)])
    total = m.spread(m.reduced("add", powers, 0), shape, "0,1,2")
    return m.both("divide", powers, total)


def _summed(m, x, ranks):
    if ranks == 1:
        return x
    groups = ",".join(map(str, range(ranks)))
    return m.put("all-reduce", m.shapes[x], [x], f", replica_groups={{{{{groups}}}}}, "
                 "to_apply=%adds")  # fmt: skip


def relation(ranks):
    """How the ranks' inputs make those of the whole block."""
    queries, keys = HEADS // ranks * HEAD, GROUPS // ranks * HEAD
    return {
        "mesh": {"tp": ranks},
        "inputs": {
            "x, angles": "replica",
            "qkv": f"concat 1 parts {queries}+{keys}+{keys}",
            "out, down": "concat 0",
            "up, gate": "concat 1",
        },
    }
