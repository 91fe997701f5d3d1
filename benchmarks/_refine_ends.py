"""How the random programs of bench_refine_random.py begin and end: embeddings and losses."""

from __future__ import annotations

from _refine_blocks import Blocks


class Ends(Blocks):
    """A body of blocks between an embedding and a loss."""

    words = 0
    tied = ""
    divided = False  # whether the vocabulary of the tied embedding is cut

    def body(self) -> None:
        line = self.write.line
        if self.chance.random() < 0.45:
            self.embedding()
        else:
            self.input("x", (self.batch, self.length, self.width), self.rows())
            self.chunk("x")
            line("h = x")
        last = ""
        for number in range(self.chance.choice([1, 1, 2])):
            line(f"h{number} = h")
            if self.chance.random() < 0.7:
                self.norm("n", "h")
            else:
                line("n = h")
            blocks = [self.mlp, self.mlp, self.attention, self.attention, self.convolution]
            if self.n("ep") > 1:
                blocks = [self.mlp, self.attention, self.routed, self.routed]
            self.chance.choice(blocks)()
            if self.chance.random() < 0.3:
                self.parts.append("scalar")
                shape: tuple[int, ...] = self.chance.choice([(), (1,)])
                gate = self.parameter("g", shape, local=True)
                line(f"y = y * torch.tanh({gate})")
            if self.chance.random() < 0.8:
                faults = {"stale_tensor": f"h = {last} + y"} if last else {}
                line("h = h + y", None, **faults)
            else:
                line("h = y")
            last = f"h{number}"
        if self.chance.random() < 0.5:
            self.norm("h", "h")

    def embedding(self) -> None:
        line, tp = self.write.line, self.n("tp")
        cut = tp > 1 and self.chance.random() < 0.7
        self.parts.append("cut-embedding" if cut else "embedding")
        self.words = tp * self.chance.randint(2, 4) if cut else self.chance.randint(5, 11)
        rows = self.cut((0, "dp"), (0, "ep"), (1, "cp"))
        if self.sp and not cut:
            rows = self.rows()
        self.input("ids", (self.batch, self.length), rows, "ids", self.words)
        self.chunk("ids")
        if not cut:
            table = self.parameter("emb", (self.words, self.width), local=True)
            line(f"h = F.embedding(ids, {table})")
        else:
            table = self.parameter("emb", (self.words, self.width), (0, "tp"))
            own = self.words // tp
            line(
                "pass",
                f'i = ids - c.index("tp") * {own}',
                words_of_another_rank=f'i = ids - (c.index("tp") + 1) % {tp} * {own}',
            )
            line("pass", f"ok = (i >= 0) & (i < {own})", words_not_masked="ok = i == i")
            line(
                f"h = F.embedding(ids, {table})",
                f"h = F.embedding(i.clamp(0, {own - 1}), {table}) * ok.unsqueeze(-1)",
            )
            self.leave("h")
        self.divided = cut
        if self.chance.random() < 0.5 and (cut or not self.sp):
            self.tied = table
        if self.chance.random() < 0.5:
            self.parts.append("positions")
            places = self.cut((0, "cp")) or (((0, "tp"),) if self.sp else ())
            position = self.parameter("pos", (self.length, self.width), *places)
            line(f"h = h + {position}")

    def finish_forward(self) -> None:
        self.write.line("h = h")
        self.outputs["h"] = self.rows()

    def loss(self, trains: bool) -> None:
        if self.tied or self.chance.random() < 0.5:
            self.cross_entropy()
        else:
            self.squares()
        if self.mean:
            self.write.line(
                f"loss = loss / {self.seq_micro}",
                f"loss = loss / {self.micro}",
                loss_not_divided_by_micro_batches="loss = loss",
            )
        self.write.line("total = total + loss.detach()")
        if trains:
            names = ", ".join(self.parameters)
            self.write.line(f"grads = torch.autograd.grad(loss, [{names}])")
            text = "acc = grads if k == 0 else [_a + _g for _a, _g in zip(acc, grads)]"
            faults = {"last_micro_batch_alone": "acc = grads"} if self.micro > 1 else {}
            self.write.line(text, None, **faults)

    def report(self) -> None:
        """The loss of all ranks."""
        op = "avg" if self.mean else "sum"
        other = "sum" if self.mean else "avg"
        for axis in self.cut((0, "dp"), (0, "cp"), (0, "ep")):
            self.write.line(
                "pass",
                f'total = c.all_reduce(total, "{axis[1]}", "{op}")',
                loss_not_reduced="pass",
                loss_reduced_by_another_operation=(
                    f'total = c.all_reduce(total, "{axis[1]}", "{other}")'
                ),
            )
        self.outputs["total"] = ()

    def squares(self) -> None:
        self.parts.append("mse")
        self.input("target", (self.batch, self.length, self.width), self.rows())
        self.chunk("target")
        count = self.batch * self.length * self.width
        total = "((h - target) ** 2).sum()"
        if not self.mean:
            local = count // self.batch * self.batch
            for axis in self.mesh:
                local //= self.mesh[axis] if axis != "tp" or self.sp else 1
            self.write.line(
                f"loss = {total} / {count}",
                None,
                loss_divided_by_local_count=f"loss = {total} / {local}",
            )
        else:
            self.write.line("loss = F.mse_loss(h, target)")
        if self.sp:
            op = "avg" if self.mean else "sum"
            # The gradient of an average is divided by the number of ranks.
            text = 'loss = c.reduce(loss{}, "tp")'
            self.write.line(
                "loss = loss",
                text.format(f" / {self.n('tp')}" if op == "avg" else ""),
                loss_reduced_by_another_operation=text.format(
                    "" if op == "avg" else f" / {self.n('tp')}"
                ),
                loss_not_reduced="loss = loss",
            )

    def cross_entropy(self) -> None:
        line, tp = self.write.line, self.n("tp")
        words = self.words or tp * self.chance.randint(2, 4)
        if self.tied:
            head, cut = self.tied, self.divided
            self.parts.append("tied-head")
        else:
            cut = tp > 1 and words % tp == 0 and self.chance.random() < 0.7
            head = self.parameter("head", (words, self.width), *([(0, "tp")] if cut else []))
            self.parts.append("cut-head" if cut else "head")
        rows = self.cut((0, "dp"), (0, "ep"), (1, "cp"))
        self.input("want", (self.batch, self.length), rows, "ids", words)
        self.chunk("want")
        if cut:
            self.enter("z", "h")
        elif self.sp:
            line(
                "z = h",
                'z = c.gather(h, 1, "tp")',
                gradient_of_a_gather_reduced_twice='z = c.gather_sum(h, 1, "tp")',
            )
        else:
            line("z = h")
        line(f"z = F.linear(z, {head})")
        count = self.batch * self.length
        if cut and self.chance.random() < 0.7:
            self.cut_loss(words // tp, count)
            return
        if cut:
            line(
                "z = z",
                'z = c.gather(z, 2, "tp")',
                gradient_of_a_gather_reduced_twice='z = c.gather_sum(z, 2, "tp")',
            )
        call = "F.cross_entropy(z.flatten(0, 1), want.flatten(){})"
        if self.mean:
            line(f"loss = {call.format('')}")
        else:
            total = call.format(', reduction="sum"')
            line(f"loss = {total} / {count}")

    def cut_loss(self, own: int, count: int) -> None:
        """The loss over a vocabulary of which each rank of tp has a part."""
        self.parts[-1] += "-cut-loss"
        line = self.write.line
        line(
            "pass",
            'top = c.all_reduce(z.detach().amax(-1), "tp", "max")',
            maximum_not_reduced="top = z.detach().amax(-1)",
        )
        line("pass", "z = z - top.unsqueeze(-1)")
        line(
            "pass",
            'norm_z = c.reduce(z.exp().sum(-1), "tp")',
            missing_all_reduce="norm_z = z.exp().sum(-1)",
            doubled_all_reduce='norm_z = c.reduce(c.reduce(z.exp().sum(-1), "tp"), "tp")',
            sum_reduced_again_in_the_backward=(
                'norm_z = c.reduce(c.copy(z.exp().sum(-1), "tp"), "tp")'
            ),
        )
        line(
            "pass",
            f'j = want - c.index("tp") * {own}',
            words_of_another_rank=f'j = want - (c.index("tp") + 1) % {self.n("tp")} * {own}',
        )
        line("pass", f"hit = (j >= 0) & (j < {own})", words_not_masked="hit = j == j")
        line("pass", f"mine = z.gather(-1, j.clamp(0, {own - 1}).unsqueeze(-1)).squeeze(-1) * hit")
        line(
            "pass",
            'mine = c.reduce(mine, "tp")',
            missing_all_reduce="mine = mine",
            average_for_sum='mine = c.reduce(mine, "tp", "avg")',
        )
        call = "F.cross_entropy(z.flatten(0, 1), want.flatten()"
        if self.mean:
            line(f"loss = {call})", "loss = (norm_z.log() - mine).mean()")
        else:
            line(
                f'loss = {call}, reduction="sum") / {count}',
                f"loss = (norm_z.log() - mine).sum() / {count}",
            )
