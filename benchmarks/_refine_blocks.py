"""The blocks of the random programs of bench_refine_random.py, sequential and parallel.

Each block writes its lines twice, and notes the faults that one may plant in the parallel ones.
"""

from __future__ import annotations

import random

from _refine_writer import Input, Writer

ACTIVATIONS = (
    "F.gelu({})",
    'F.gelu({}, approximate="tanh")',
    "F.silu({})",
    "F.relu({})",
    "F.relu({}).square()",
    "torch.tanh({})",
    "torch.sigmoid({})",
    "F.softplus({})",
    "F.leaky_relu({}, 0.1)",
    "F.elu({})",
)
MESHES: tuple[dict[str, int], ...] = (
    {"tp": 2}, {"tp": 2}, {"tp": 3}, {"tp": 4},
    {"dp": 2}, {"dp": 3}, {"cp": 2}, {"cp": 3}, {"ep": 2}, {"ep": 3},
    {"dp": 2, "tp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}, {"cp": 2, "tp": 2},
)  # fmt: skip


class Blocks:
    """What a program is made of so far."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.mesh = dict(chance.choice(MESHES))
        self.sp = self.n("tp") > 1 and self.n("cp") == 1 and chance.random() < 0.5
        self.write = Writer()
        self.parts: list[str] = []
        self.inputs: dict[str, Input] = {}
        self.parameters: list[str] = []
        self.outputs: dict[str, tuple[tuple[int, str], ...]] = {}
        self.unsummed: set[str] = set()  # their gradients are terms of a sum over tp, with sp
        self.rank_zero: set[str] = set()  # only the first rank of tp uses them
        self.heads = self.n("tp") * chance.choice([1, 1, 2, 3])
        self.head_size = chance.choice([2, 4, 6])
        self.width = chance.choice([5, 6, 7, 9, 10, 12])
        if self.n("tp") == 4:
            self.heads, self.head_size = 4, 2
        self.experts = self.n("ep") * chance.choice([1, 2])
        piece = self.n("cp") * (self.n("tp") if self.sp else 1) * self.experts
        self.length = piece * chance.randint(1, max(1, 7 // piece))
        if self.length // piece == 1 and piece < 4:
            self.length *= 2
        self.n_batch = self.n("dp") * self.n("ep")
        self.micro = self.seq_micro = 1
        self.batch = 0
        self.mean = False
        self.table = ""

    def n(self, axis: str) -> int:
        return self.mesh.get(axis, 1)

    def cut(self, *wanted: tuple[int, str]) -> tuple[tuple[int, str], ...]:
        """The steps over axes that the mesh has."""
        return tuple(step for step in wanted if self.n(step[1]) > 1)

    def rows(self) -> tuple[tuple[int, str], ...]:
        """How batch and sequence of an activation are cut."""
        steps = self.cut((0, "dp"), (0, "ep"), (1, "cp"))
        return (*steps, (1, "tp")) if self.sp else steps

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        cut: tuple[tuple[int, str], ...] = (),
        kind: str = "float",
        high: int = 0,
    ) -> str:
        self.inputs[name] = Input(name, shape, cut, kind, high)
        return name

    def parameter(
        self, name: str, shape: tuple[int, ...], *cut: tuple[int, str], local: bool = False
    ) -> str:
        """A new parameter; `local` if the ranks of tp use it for their part of the sequence."""
        name = f"{name}{len(self.parts)}"
        self.parameters.append(name)
        if local:
            self.unsummed.add(name)
        return self.input(name, shape, self.cut(*cut))

    def other(self, axis: str) -> str:
        return next((each for each in self.mesh if each != axis), "")

    def chunk(self, name: str) -> None:
        """A micro-batch of an input that has one value for each token."""
        self.write.line(
            f'{name} = t["{name}"].chunk({self.seq_micro})[k]',
            f'{name} = t["{name}"].chunk({self.micro})[k]',
            first_micro_batch_again=f'{name} = t["{name}"].chunk({self.micro})[0]',
        )

    # Regions of tensor parallelism.

    def enter(self, into: str, of: str) -> None:
        line, tp = self.write.line, self.n("tp") > 1
        if self.sp:
            line(
                f"{into} = {of}",
                f'{into} = c.gather_sum({of}, 1, "tp")',
                gradient_of_a_gather_not_reduced=f'{into} = c.gather({of}, 1, "tp")',
            )
        elif tp:
            faults = {"gradient_of_a_region_not_reduced": f"{into} = {of}"}
            if len(self.mesh) > 1:
                faults["gradient_of_a_region_over_another_group"] = (
                    f'{into} = c.copy({of}, "{self.other("tp")}")'
                )
            line(f"{into} = {of}", f'{into} = c.copy({of}, "tp")', **faults)
        else:
            line(f"{into} = {of}")

    def leave(self, y: str) -> None:
        line = self.write.line
        if self.sp:
            line(
                f"{y} = {y}",
                f'{y} = c.scatter_sum({y}, 1, "tp")',
                result_cut_but_not_reduced=f'{y} = c.own({y}, 1, "tp")',
                average_for_sum=f'{y} = c.scatter_sum({y}, 1, "tp", "avg")',
            )
        elif self.n("tp") > 1:
            faults = {
                "missing_all_reduce": f"{y} = {y}",
                "doubled_all_reduce": f'{y} = c.reduce(c.reduce({y}, "tp"), "tp")',
                "average_for_sum": f'{y} = c.reduce({y}, "tp", "avg")',
                "reduced_and_reduced_again_in_the_backward": (
                    f'{y} = c.reduce(c.copy({y}, "tp"), "tp")'
                ),
            }
            if len(self.mesh) > 1:
                faults["all_reduce_over_another_group"] = (
                    f'{y} = c.reduce({y}, "{self.other("tp")}")'
                )
            line(f"{y} = {y}", f'{y} = c.reduce({y}, "tp")', **faults)

    def biased(self, y: str) -> None:
        """Leaves a region and adds a bias, before the sum on one rank or after it on all."""
        choice = self.chance.choice(["none", "after", "after", "before"])
        if choice == "none":
            self.leave(y)
        elif choice == "after" or self.n("tp") == 1:
            self.leave(y)
            bias = self.parameter("b", (self.width,), local=True)
            self.write.line(f"{y} = {y} + {bias}")
        else:
            bias = self.parameter("b", (self.width,))
            self.rank_zero.add(bias)
            self.write.line(
                f"{y} = {y} + {bias}",
                f'{y} = {y} + {bias} * float(c.index("tp") == 0)',
                bias_of_one_rank_added_on_all=f"{y} = {y} + {bias}",
            )
            self.leave(y)

    # Blocks: each takes n and makes y.

    def mlp(self) -> None:
        inner = self.n("tp") * self.chance.choice([2, 3, 5])
        act = self.chance.choice(ACTIVATIONS)
        line = self.write.line
        self.parts.append("mlp")
        if self.n("tp") > 1 and not self.sp and self.chance.random() < 0.25:
            self.parts[-1] = "dtensor-mlp"
            up = self.parameter("up", (self.width, inner), (1, "tp"))
            down = self.parameter("down", (inner, self.width), (0, "tp"))
            act = self.chance.choice(ACTIVATIONS[:4])
            call = f'c.tensor_mlp(n, {up}, {down}, lambda _u: {act.format("_u")}, "tp"'
            line(
                f"y = {act.format(f'(n @ {up})')} @ {down}",
                f"y = {call})",
                missing_all_reduce=f"y = {call}, reduced=False)",
                doubled_all_reduce=f'y = c.reduce({call}), "tp")',
            )
            return
        self.enter("a", "n")
        gated = self.chance.random() < 0.4
        if self.chance.random() < 0.5:
            up = self.parameter("up", (inner, self.width), (0, "tp"))
            bias = self.parameter("ub", (inner,), (0, "tp"))
            line(f"u = F.linear(a, {up}, {bias})")
        else:
            up = self.parameter("up", (self.width, inner), (1, "tp"))
            line(f"u = a @ {up}")
        if gated:
            self.parts[-1] = "gated-mlp"
            gate = self.parameter("gate", (inner, self.width), (0, "tp"))
            line(f"r = F.linear(a, {gate})")
            line(
                f"u = {act.format('r')} * u",
                None,
                gate_and_value_swapped=f"u = {act.format('u')} * r",
            )
        else:
            line(f"u = {act.format('u')}")
        if self.chance.random() < 0.5:
            down = self.parameter("down", (inner, self.width), (0, "tp"))
            line(f"y = u @ {down}")
        else:
            down = self.parameter("down", (self.width, inner), (1, "tp"))
            line(f"y = F.linear(u, {down})")
        self.biased("y")

    def attention(self) -> None:
        line, size = self.write.line, self.head_size
        tp, cp, whole = self.n("tp"), self.n("cp"), self.length
        options = [n for n in range(tp, self.heads + 1, tp) if self.heads % n == 0]
        shared = self.chance.choice(options)
        self.parts.append("attention" if shared == self.heads else "grouped-attention")
        self.enter("a", "n")
        for name, count in (("q", self.heads), ("k_", shared), ("v", shared)):
            weight = self.parameter("w" + name[0], (count * size, self.width), (0, "tp"))
            line(f"{name} = F.linear(a, {weight}).unflatten(-1, (-1, {size})).transpose(1, 2)")
        if self.chance.random() < 0.5:
            self.rotate()
        if cp > 1:
            for name in ("k_", "v"):
                line(
                    f"{name} = {name}",
                    f'{name} = c.gather_sum({name}, 2, "cp")',
                    gradient_of_a_gather_not_reduced=f'{name} = c.gather({name}, 2, "cp")',
                )
        if shared != self.heads:
            times = self.heads // shared
            for name in ("k_", "v"):
                line(
                    f"{name} = {name}.repeat_interleave({times}, 1)",
                    None,
                    groups_of_heads_in_another_order=f"{name} = {name}.repeat(1, {times}, 1, 1)",
                )
        causal = self.chance.random() < 0.6
        local = whole // cp
        if causal:
            mask = "keep = torch.ones({}, {}, dtype=torch.bool).tril({})"
            start = f'c.index("cp") * {local}' if cp > 1 else "0"
            faults = {"mask_off_by_one": mask.format(local, whole, f"{start} + 1")}
            if cp > 1:
                faults["mask_without_offset"] = mask.format(local, whole, "0")
            line(mask.format(whole, whole, 0), mask.format(local, whole, start), **faults)
        fused = self.chance.random() < 0.3
        if fused:
            self.parts[-1] += "-sdpa"
            call = "o = F.scaled_dot_product_attention(q, k_, v{})"
            mask = ", attn_mask=keep" if causal else ""
            wrong = f"{mask}, scale=1 / math.sqrt({size * 2})"
            line(call.format(mask), None, scale_of_another_head_size=call.format(wrong))
        else:
            score = "s = q @ k_.transpose(-1, -2) / math.sqrt({})"
            line(score.format(size), None, scale_of_another_head_size=score.format(2 * size))
            if causal:
                line('s = s.masked_fill(~keep, float("-inf"))')
            line("w = torch.softmax(s, -1)")
            line("o = w @ v")
        line(
            "o = o.transpose(1, 2).flatten(2)",
            None,
            transposition_left_out="o = o.reshape(o.size(0), o.size(2), -1)",
        )
        out = self.parameter("wo", (self.width, self.heads * size), (1, "tp"))
        line(f"y = F.linear(o, {out})")
        self.biased("y")

    def rotate(self) -> None:
        """Turns queries and keys by the tables of their positions."""
        self.parts[-1] += "-rotary"
        half = self.head_size // 2
        if not self.table:
            self.table = self.chance.choice(["halves", "pairs"])
            for name in ("cos", "sin"):
                self.input(name, (self.length, half), self.cut((0, "cp")))
        turned = "({0} * t['cos'] - {1} * t['sin'], {1} * t['cos'] + {0} * t['sin'])"
        for name in ("q", "k_"):
            if self.table == "halves":
                first, second = f"{name}[..., :{half}]", f"{name}[..., {half}:]"
                text = f"{name} = torch.cat({turned.format(first, second)}, -1)"
                swapped = f"{name} = torch.cat({turned.format(second, first)}, -1)"
            else:
                first, second = f"{name}[..., 0::2]", f"{name}[..., 1::2]"
                text = f"{name} = torch.stack({turned.format(first, second)}, -1).flatten(-2)"
                swapped = f"{name} = torch.stack({turned.format(second, first)}, -1).flatten(-2)"
            self.write.line(text, None, halves_swapped_in_the_rotation=swapped)

    def convolution(self) -> None:
        self.parts.append("conv")
        line, cp = self.write.line, self.n("cp")
        inner, kernel = self.n("tp") * self.chance.choice([2, 3]), self.chance.choice([1, 3])
        self.enter("a", "n")
        if cp > 1:
            line(
                "a = a",
                'a = c.gather_sum(a, 1, "cp")',
                gradient_of_a_gather_not_reduced='a = c.gather(a, 1, "cp")',
            )
        weight = self.parameter("cw", (inner, self.width, kernel), (0, "tp"))
        bias = self.parameter("cb", (inner,), (0, "tp"))
        line(f"u = F.conv1d(a.transpose(1, 2), {weight}, {bias}, padding={kernel // 2})")
        line(f"u = {self.chance.choice(ACTIVATIONS).format('u')}.transpose(1, 2)")
        if cp > 1:
            line(
                "u = u",
                'u = c.own(u, 1, "cp")',
                slice_of_another_rank='u = c.own(u, 1, "cp", 1)',
            )
        down = self.parameter("cd", (self.width, inner), (1, "tp"))
        line(f"y = F.linear(u, {down})")
        self.biased("y")

    def routed(self) -> None:
        """Experts, each for the tokens of its part of the sequence."""
        self.parts.append("experts")
        line, experts, inner = self.write.line, self.experts, self.chance.choice([3, 4])
        up = self.parameter("eu", (experts, self.width, inner), (0, "ep"))
        down = self.parameter("ed", (experts, inner, self.width), (0, "ep"))
        ranks, here = self.n("ep"), experts // self.n("ep")
        line(f"a = n.unflatten(1, ({experts}, -1)).transpose(0, 1)")
        sorted_by_expert = f".unflatten(0, ({ranks}, {here})).transpose(0, 1).flatten(1, 3)"
        line(
            "a = a.flatten(1, 2)",
            f'a = c.exchange(a, "ep"){sorted_by_expert}',
            tokens_not_sent=f"a = a{sorted_by_expert}",
        )
        line(f"u = torch.bmm(a, {up})")
        line(f"u = {self.chance.choice(ACTIVATIONS).format('u')}")
        line(f"y = torch.bmm(u, {down})")
        back = f"y.unflatten(1, ({ranks}, n.size(0), -1)).transpose(0, 1).flatten(0, 1)"
        line(
            "y = y.unflatten(1, (n.size(0), -1))",
            f'y = c.exchange({back}, "ep")',
            tokens_not_sent_back=f"y = {back}",
        )
        line("y = y.transpose(0, 1).flatten(1, 2)")

    def norm(self, into: str, of: str) -> None:
        kind = self.chance.choice(["layer", "rms", "fused-rms"])
        self.parts.append(kind)
        weight = self.parameter("nw", (self.width,), local=True)
        if kind == "layer":
            bias = self.parameter("nb", (self.width,), local=True)
            self.write.line(f"{into} = F.layer_norm({of}, ({self.width},), {weight}, {bias})")
        elif kind == "rms":
            mean = f"{of}.pow(2).mean(-1, keepdim=True)"
            self.write.line(f"{into} = {of} * torch.rsqrt({mean} + 1e-5) * {weight}")
        else:
            self.write.line(f"{into} = F.rms_norm({of}, ({self.width},), {weight}, 1e-5)")
