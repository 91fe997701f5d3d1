"""Data-parallel programs with tensors that a comparison of real floating-point numbers may pass over.

Complex weights (Fourier layers: Li et al., 2021), integer outputs, infinities of a mask, NaN in rows that nobody uses,
tensors in objects of own classes, sparse gradients, parameters without a gradient, shared modules, forwards that are
called directly, tables and counters in buffers, running statistics.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pytest_trainsafe import Context, consistent_tensor

BATCH, LENGTH, WIDTH, VOCABULARY, TOTAL = 2, 6, 16, 24, 4


class Fourier(nn.Module):
    """Mixes positions by complex weights in the frequency domain."""

    def __init__(self, dtype: torch.dtype, fault: str) -> None:
        super().__init__()
        self.fault = fault
        kind = torch.complex128 if dtype == torch.float64 else torch.complex64
        real, imaginary = (
            consistent_tensor(f"fourier.{part}", (LENGTH // 2 + 1, WIDTH)).mul(0.25)
            for part in "ri"
        )
        self.weight = nn.Parameter(torch.complex(real.float(), imaginary.float()).to(kind))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        out = torch.fft.irfft(torch.fft.rfft(wide, dim=1) * self.weight, n=LENGTH, dim=1)
        return out.to(x.dtype)


class Spectrum(nn.Module):
    """The complex spectrum itself is a module's output."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        out = torch.fft.rfft(x if x.dtype != torch.bfloat16 else x.float(), dim=1)
        return out.conj() if self.fault == "conjugate" else out  # fault: conjugate


class Power(nn.Module):
    """The spectrum's absolute values, which a conjugate does not change."""

    def __init__(self, spectrum: Spectrum) -> None:
        super().__init__()
        self.spectrum = spectrum

    def forward(self, x: Tensor) -> Tensor:
        return self.spectrum(x).abs().mean(1, keepdim=True).to(x.dtype) * 0.1 + x


class Bucket(nn.Module):
    """A number for each token, which only a table behind it sees."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, tokens: Tensor) -> Tensor:
        modulus = 5 if self.fault == "bucket" else 4  # fault: bucket
        return tokens % modulus


class Scores(nn.Module):
    """Attention scores with infinities where a query may not look."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2) / WIDTH**0.5
        if self.fault == "infinite_scores":
            scores = scores * 1.01  # fault: infinite_scores
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, float("-inf"))


class Undefined(nn.Module):
    """Divides by counts that are zero for padding, whose rows are NaN and are not used."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        with torch.no_grad():
            divided = torch.ones_like(x) * (counts / counts).unsqueeze(-1)
        if self.fault == "undefined_rows":
            divided = divided * 1.01  # fault: undefined_rows
        return x.detach() * divided


class Pair:
    """An output that is an object of a class of the program's own."""

    def __init__(self, hidden: Tensor, gate: Tensor) -> None:
        self.hidden, self.gate = hidden, gate


class Paired(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.scale = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: Tensor) -> Pair:
        gate = torch.sigmoid(x * self.scale)
        if self.fault == "detached_gate":
            gate = gate.detach()  # fault: detached_gate
        return Pair(x, gate)


class Model(nn.Module):
    """Tokens to logits, with one special part."""

    def __init__(self, ctx: Context, kind: str, fault: str) -> None:
        super().__init__()
        self.kind, self.fault, self.calls = kind, fault, 0
        self.ranks = ctx.point.size("dp")  # a call of a rank stands for one of each
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, sparse=kind == "sparse")
        self.block = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        match kind:
            case "complex":
                self.fourier = Fourier(ctx.dtype, fault)
            case "spectrum":
                self.power = Power(Spectrum(fault))
            case "integer":
                self.bucket, self.buckets = Bucket(fault), nn.Embedding(8, WIDTH)
            case "infinite":
                self.scores = Scores(fault)
            case "undefined":
                self.undefined = Undefined(fault)
            case "object":
                self.paired = Paired(fault)
            case "unused":
                self.unused = nn.Linear(WIDTH, WIDTH)
            case "table":  # positions up to twice the length of these batches
                table = torch.cos(torch.arange(2 * LENGTH)[:, None] / (1.0 + torch.arange(WIDTH)))
                if fault == "table":
                    table[LENGTH:] = table[:LENGTH].clone()  # fault: table
                self.register_buffer("table", table)
            case "counter":
                self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            case "statistics":
                self.statistics = nn.BatchNorm1d(WIDTH)
                if fault == "frozen_statistics" and ctx.coordinates["dp"] == 1:
                    self.statistics.momentum = 0.0  # fault: frozen_statistics

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = self.special(x, tokens)
        x = x + torch.tanh(self.block(x))
        return self.head(x)

    def special(self, x: Tensor, tokens: Tensor) -> Tensor:
        match self.kind:
            case "complex":
                return x + self.fourier(x)
            case "spectrum":
                return self.power(x)
            case "integer":
                # The table's rows are all equal at first, so that only their gradients differ.
                return x + self.buckets(self.bucket(tokens))
            case "infinite":
                return x + torch.softmax(self.scores(x), -1) @ x
            case "undefined":
                counts = (tokens % 5).to(x.dtype)
                return x + 0.1 * torch.nan_to_num(self.undefined(x, counts)).detach()
            case "object":
                pair = self.paired(x)
                return pair.hidden * pair.gate
            case "table":
                return x + self.table[: x.shape[1]].to(x.dtype)
            case "counter":
                self.seen += 2 if self.fault == "counter" else 1  # fault: counter
                return x
            case "statistics":
                return self.statistics(x.flatten(0, 1)).view_as(x)
            case "attribute":  # a schedule by a Python number, which begins after these batches
                self.calls += (
                    2 * self.ranks if self.fault == "attribute" else self.ranks
                )  # fault: attribute
                return x * (1.0 if self.calls <= 5 * TOTAL else 0.5)
            case "twice":
                x = torch.tanh(self.block(x))
                if self.fault == "second_call":
                    x = x.detach()  # fault: second_call
                return x
            case "direct":  # no hook of the module sees this call
                y = self.block.forward(x)
                return x + (y.detach() if self.fault == "direct" else y)  # fault: direct
        return x


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    tokens = torch.randint(1, VOCABULARY - 4, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def total_gradient(grad: Tensor, group: Any) -> Tensor:
    """The sum over dp; of sparse gradients the rows are gathered."""
    if not grad.is_sparse:
        dist.all_reduce(grad, group=group)
        return grad
    dense = grad.to_dense()
    dist.all_reduce(dense, group=group)
    return dense.to_sparse(1)


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def train(
    ctx: Context, fault: str = "", kind: str = "complex", steps: int = 2, optimizer: str = "sgd"
) -> None:
    """Steps of four micro-batches with SGD or AdamW."""
    fault = fault if ctx.world_size > 1 else ""
    model = Model(ctx, kind, fault)
    for parameter in model.parameters():
        if not parameter.is_complex():
            parameter.data = parameter.data.to(ctx.dtype)
    values = {
        name: value.detach().clone()
        for name, value in model.named_parameters()
        if value.is_complex()
    }
    if values:  # those are filled already
        for name, parameter in model.named_parameters():
            if name not in values:
                parameter.data = (consistent_tensor(name, tuple(parameter.shape)) * 0.25).to(
                    ctx.dtype
                )
    else:
        ctx.initialize(model, std=spread)
    if kind == "integer":
        with torch.no_grad():
            model.buckets.weight.fill_(0.125)
    if kind == "statistics":
        model.statistics.to(ctx.dtype)
    trained = torch.optim.SGD(model.parameters(), lr=0.1)
    if optimizer == "adamw":
        trained = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    ctx.watch(model, trained)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(TOTAL):
                with ctx.microbatch(index):
                    inputs, targets = batch(step, index)
                    logits = model(inputs)
                    loss = (
                        -(logits.log_softmax(-1) * one_hot(targets, VOCABULARY)).sum(-1).mean()
                        / TOTAL
                    )
                    if kind == "unused" and fault != "no_gradient":  # fault: no_gradient
                        loss = loss + 0.0 * sum(each.sum() for each in model.unused.parameters())
                    ctx.loss(loss)
                    loss.backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is None:
                    continue
                parameter.grad = total_gradient(parameter.grad, ctx.group("dp"))
                if fault == "imaginary" and name == "fourier.weight":
                    parameter.grad.imag.mul_(1.5)  # fault: imaginary
                if fault == "sparse_row" and name == "embedding.weight":
                    parameter.grad = parameter.grad.coalesce()
                    parameter.grad.values()[0].mul_(1.5)  # fault: sparse_row
                if fault == "sparse_factor" and name == "embedding.weight":
                    parameter.grad = parameter.grad * 1.01  # fault: sparse_factor
            trained.step()
            if fault == "unused_rows":
                with torch.no_grad():  # no token has these numbers
                    model.embedding.weight[-4:] *= 0.9  # fault: unused_rows
            if fault == "unused_row_state":
                for state in [trained.state[model.embedding.weight]]:
                    state["exp_avg"][-1] += 0.01  # fault: unused_row_state
            trained.zero_grad()
