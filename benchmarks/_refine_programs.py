"""Random training programs with their parallel forms, for bench_refine_random.py.

`drawn` makes a program of blocks that a seed chooses, and the same program for the ranks of a
mesh.  Activations are [batch, sequence, width]; the batch is cut over dp and ep, the sequence over
cp, and over tp where sequence parallelism is on.
"""

from __future__ import annotations

import random

from _refine_ends import Ends
from _refine_writer import Program

KINDS = ("forward", "gradients", "sgd", "momentum", "adamw")


class Drawn(Ends):
    """The blocks of one program, and around them the loop, the loss and the update."""

    def program(self) -> Program:
        self.kind = self.chance.choices(KINDS, (2, 5, 2, 2, 4))[0]
        trains = self.kind != "forward"
        self.micro = self.chance.choice([1, 1, 2, 3]) if trains else 1
        self.batch = self.n_batch * self.micro * self.chance.randint(1, 2)
        self.seq_micro = self.chance.choice([1, self.micro])
        self.mean = self.chance.random() < 0.5  # gradients are averaged, or losses scaled before
        self.write.line("total = 0.0")
        at = len(self.write.sequential)
        self.write.line(f"for k in range({self.seq_micro}):", f"for k in range({self.micro}):")
        self.write.indent = "        "
        self.body()
        if not trains and self.chance.random() < 0.5:
            self.finish_forward()
        else:
            self.loss(trains)
        self.declare(at)
        self.write.indent = "    "
        if "h" not in self.outputs:
            self.report()
        if trains:
            self.gradients()
        results = ", ".join(f'"{name}": {name}' for name in self.outputs)
        self.write.line(f"return {{{results}}}")
        style = f" {self.micro} micro-batches" if self.micro > 1 else ""
        title = f"{self.kind} of {' '.join(self.parts)} on {self.where()}{style}"
        return Program(
            title,
            self.mesh,
            list(self.inputs.values()),
            self.outputs,
            self.write.sequential,
            self.write.parallel,
            self.write.faults,
        )

    def where(self) -> str:
        text = " ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        return f"{text} sp" if self.sp else text

    def declare(self, at: int) -> None:
        """Writes the parameters in front of the loop."""
        lines = [f'    {name} = t["{name}"].detach().requires_grad_()' for name in self.parameters]
        self.write.sequential[at:at] = lines
        self.write.parallel[at:at] = lines
        moved = []
        for fault in self.write.faults:
            shifted = {n + len(lines) if n >= at else n: s for n, s in fault.lines.items()}
            moved.append(type(fault)(fault.kind, shifted))
        self.write.faults[:] = moved

    def gradients(self) -> None:
        """Gradients of all parameters are reduced, clipped, and used for an update."""
        names = [f"g_{name}" for name in self.parameters]
        self.write.line(f"{', '.join(names)}, = acc")
        order = list(self.parameters)
        self.chance.shuffle(order)
        axes = [axis for axis in ("dp", "cp", "ep") if self.n(axis) > 1]
        self.zero = self.kind in ("sgd", "momentum", "adamw") and self.n("dp") > 1
        self.zero = self.zero and self.chance.random() < 0.5
        for name in order:
            self.reduced(name, axes)
        if self.kind != "gradients" and self.chance.random() < 0.4:
            self.clip(order)
        for name in order:
            if self.kind == "gradients":
                self.outputs[f"g_{name}"] = self.inputs[name].cut
            else:
                self.update(name)

    def sharded(self, name: str) -> bool:
        """Whether the optimizer of a parameter is cut over dp."""
        given = self.inputs[name]
        if not self.zero or not given.shape:
            return False
        local = given.shape[0]
        for dim, axis in given.cut:
            local //= self.mesh[axis] if dim == 0 else 1
        return local % self.n("dp") == 0

    def reduced(self, name: str, axes: list[str]) -> None:
        g = f"g_{name}"
        op = "avg" if self.mean else "sum"
        other = "sum" if self.mean else "avg"
        if name in self.unsummed and self.sp:
            self.write.line(
                "pass",
                f'{g} = c.all_reduce({g}, "tp")',
                gradient_over_tp_not_reduced="pass",
                gradient_over_tp_averaged=f'{g} = c.all_reduce({g}, "tp", "avg")',
            )
        if name in self.rank_zero:
            self.write.line(
                "pass", f'{g} = c.all_reduce({g}, "tp")', bias_gradient_not_reduced="pass"
            )
        for axis in axes:
            if axis in (cut for _, cut in self.inputs[name].cut):
                if self.mean:
                    text = f'{g} = {g} / c.size("{axis}")'
                    self.write.line("pass", text, gradient_of_a_part_not_scaled="pass")
                continue
            wrong = f'{g} = c.all_reduce({g}, "{axis}", "{other}")'
            faults = {
                "gradient_not_reduced": "pass",
                "gradient_reduced_by_another_operation": wrong,
            }
            if not self.mean:
                faults["gradient_reduced_twice"] = (
                    f'{g} = c.all_reduce(c.all_reduce({g}, "{axis}"), "{axis}")'
                )
            if len(self.mesh) > 1:
                wrong = f'{g} = c.all_reduce({g}, "{self.other(axis)}", "{op}")'
                faults["gradient_reduced_over_another_group"] = wrong
            if axis == "dp" and self.sharded(name):
                self.write.line(
                    "pass",
                    f'{g} = c.reduce_scatter({g}, 0, "dp", "{op}")',
                    gradient_cut_but_not_reduced=f'{g} = c.own({g}, 0, "dp")',
                    gradient_reduced_by_another_operation=(
                        f'{g} = c.reduce_scatter({g}, 0, "dp", "{other}")'
                    ),
                )
            else:
                self.write.line("pass", f'{g} = c.all_reduce({g}, "{axis}", "{op}")', **faults)

    def clip(self, names: list[str]) -> None:
        self.parts.append("clip")
        for name in names:
            self.write.line(f"s_{name} = g_{name}.pow(2).sum()")
            axes = [axis for _, axis in self.inputs[name].cut]
            axes += ["dp"] if self.sharded(name) else []
            for axis in axes:
                self.write.line(
                    "pass",
                    f's_{name} = c.all_reduce(s_{name}, "{axis}")',
                    norm_not_reduced="pass",
                )
        whole = [name for name in names if not self.inputs[name].cut and not self.sharded(name)]
        square = " + ".join(f"s_{name}" for name in names)
        faults = {}
        if whole and self.n("tp") > 1:
            counted = square.replace(f"s_{whole[0]}", f'c.all_reduce(s_{whole[0]}, "tp")', 1)
            faults["replica_counted_twice_in_the_norm"] = f"norm = ({counted}).sqrt()"
        self.write.line(f"norm = ({square}).sqrt()", None, **faults)
        self.outputs["norm"] = ()
        limit = self.chance.choice(["0.05", "0.7"])
        self.write.line(f"scale = ({limit} / (norm + 1e-6)).clamp(max=1.0)")
        for name in names:
            self.write.line(f"g_{name} = g_{name} * scale")

    def update(self, name: str) -> None:
        given, line = self.inputs[name], self.write.line
        cut = given.cut + (((0, "dp"),) if self.sharded(name) else ())
        sharded = self.sharded(name)
        g, p = f"g_{name}", f"p_{name}"
        if sharded:
            line(
                f"{p} = {name}.detach()",
                f'{p} = c.own({name}.detach(), 0, "dp")',
                slice_of_another_rank=f'{p} = c.own({name}.detach(), 0, "dp", 1)',
            )
        else:
            line(f"{p} = {name}.detach()")
        if self.kind == "adamw":
            self.input(f"m_{name}", given.shape, cut)
            self.input(f"v_{name}", given.shape, cut, "positive")
            line(f'mean_{name} = 0.9 * t["m_{name}"] + 0.1 * {g}')
            line(f'square_{name} = 0.95 * t["v_{name}"] + 0.05 * {g} * {g}')
            line(f"d_{name} = (square_{name} / (1 - 0.95**3)).sqrt() + 1e-8")
            new = f"q_{name} = {p} * (1 - 0.01 * 0.1) - 0.01 * {{}} / d_{name}"
            line(
                new.format(f"(mean_{name} / (1 - 0.9**3))"),
                None,
                update_without_bias_correction=new.format(f"mean_{name}"),
            )
            self.outputs[f"mean_{name}"] = self.outputs[f"square_{name}"] = cut
        elif self.kind == "momentum":
            self.input(f"m_{name}", given.shape, cut)
            line(f'mean_{name} = 0.9 * t["m_{name}"] + {g}')
            line(
                f"q_{name} = {p} - 0.02 * mean_{name}",
                None,
                update_of_the_gradient_alone=f"q_{name} = {p} - 0.02 * {g}",
            )
            self.outputs[f"mean_{name}"] = cut
        else:
            line(f"q_{name} = {p} - 0.1 * {g}")
        if sharded:
            line(
                f"n_{name} = q_{name}",
                f'n_{name} = c.all_gather(q_{name}, 0, "dp")',
                stale_parameter_gathered=f'n_{name} = c.all_gather({p}, 0, "dp")',
                parameter_not_gathered=f"n_{name} = {name}.detach()",
            )
        else:
            line(f"n_{name} = q_{name}", None)
        self.outputs[f"n_{name}"] = given.cut


def drawn(seed: int) -> Program:
    """The program of a seed."""
    return Drawn(random.Random(seed)).program()
