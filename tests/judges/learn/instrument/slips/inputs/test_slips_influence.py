"""Logits that see later tokens, results of other examples and losses of padding are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.learn.slips import sgd, slips_of

ROWS, LENGTH, WORDS, WIDTH = 5, 9, 11, 6


class Attends(nn.Module):
    """A language model with attention that is written with operators of tensors."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.mask = mask

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        later = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
        scores = h @ h.transpose(1, 2)
        if self.mask == "causal":
            scores = scores.masked_fill(later, -1e9)
        if self.mask == "inverted":
            scores = scores.masked_fill(later.t(), -1e9)
        if self.mask == "one too late":
            scores = scores.masked_fill(torch.ones_like(later).triu(2).bool(), -1e9)
        found: Tensor = self.head(h + scores.softmax(-1) @ h)
        return found


class Convolves(nn.Module):
    """A language model of which a convolution sees the future, unless it is padded on the left."""

    def __init__(self, left: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2 if left else 1)

    def forward(self, tokens: Tensor) -> Tensor:
        mixed = self.conv(self.embed(tokens).transpose(1, 2))[..., : tokens.shape[1]]
        found: Tensor = self.head(mixed.transpose(1, 2))
        return found


def trained(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    optimizer = sgd(model)
    for _ in range(4):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "sees"),
    [
        (lambda: Attends("causal"), False),
        (lambda: Attends("none"), True),
        (lambda: Attends("inverted"), True),
        (lambda: Attends("one too late"), True),
        (lambda: Convolves(left=True), False),
        (lambda: Convolves(left=False), True),
    ],
)
@pytest.mark.parametrize("flat", [False, True])
def test_logits_that_depend_on_the_next_token(
    make: Callable[[], nn.Module], sees: bool, flat: bool
) -> None:
    def program() -> None:
        model = make()

        def loss() -> Tensor:
            x = torch.randint(1, WORDS, (ROWS, LENGTH))
            logits, labels = model(x[:, :-1]), x[:, 1:]
            if flat:
                return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            return F.cross_entropy(logits.transpose(1, 2), labels)

        trained(model, loss)

    assert slips_of(program) == ["future-seen"] * sees


class Restores(nn.Module):
    """An autoencoder of tokens: all of them make one code, which is read back."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.code, self.back = nn.Linear(WIDTH * LENGTH, 8), nn.Linear(8, WORDS * LENGTH)

    def forward(self, tokens: Tensor) -> Tensor:
        code = torch.tanh(self.code(self.embed(tokens).flatten(1)))
        found: Tensor = self.back(code).unflatten(1, (LENGTH, WORDS))
        return found


@pytest.mark.parametrize(("make", "wrong"), [(Restores, False), (lambda: Attends("causal"), True)])
def test_labels_that_are_the_tokens_are_wrong_for_a_causal_model(
    make: Callable[[], nn.Module], wrong: bool
) -> None:
    def program() -> None:
        model = make()

        def loss() -> Tensor:
            x = torch.randint(1, WORDS, (ROWS, LENGTH))
            return F.cross_entropy(model(x).flatten(0, 1), x.flatten())

        trained(model, loss)

    assert slips_of(program) == ["labels-shifted"] * wrong


class Writes(nn.Module):
    """Writes a text again of which an encoder has made one code."""

    def __init__(self, once: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.reads = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.writes = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.once = once

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        code = self.reads(h)[1]
        again = h[:, :-1] if self.once else self.embed(tokens[:, :-1])
        found: Tensor = self.head(self.writes(again, code)[0])
        return found


@pytest.mark.parametrize("once", [False, True])
def test_a_decoder_may_write_what_an_encoder_has_read(once: bool) -> None:
    def program() -> None:
        model = Writes(once)

        def loss() -> Tensor:
            x = torch.randint(1, WORDS, (ROWS, LENGTH))
            return F.cross_entropy(model(x).flatten(0, 1), x[:, 1:].flatten())

        trained(model, loss)

    assert slips_of(program) == []


class Reads(nn.Module):
    """Reads sequences; `how` says what happens between two layers."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4) if how == "normed" else nn.Identity()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.how == "viewed":
            h = h.transpose(0, 1).reshape(len(x), -1, 4)
        h = self.norm(h.transpose(1, 2)).transpose(1, 2)
        found: Tensor = self.last(torch.tanh(h).mean(1))
        if self.how == "compared":
            return found @ found.t()
        return found


@pytest.mark.parametrize(
    ("how", "slips"),
    [("plain", []), ("viewed", ["examples-mixed"]), ("normed", [])],
)
def test_a_result_that_depends_on_other_examples(how: str, slips: list[str]) -> None:
    def program() -> None:
        model = Reads(how)
        trained(
            model,
            lambda: F.cross_entropy(model(torch.randn(ROWS, 7, 3)), torch.arange(ROWS) % 2),
        )

    assert slips_of(program) == slips


@pytest.mark.parametrize("how", ["plain", "viewed", "compared"])
def test_a_loader_says_which_dimension_has_the_examples(how: str) -> None:
    def program() -> None:
        model = Reads(how)
        optimizer = sgd(model)
        loader = DataLoader(TensorDataset(torch.randn(20, 7, 3)), batch_size=ROWS)
        for (x,) in loader:
            optimizer.zero_grad()
            (model(x).square().mean() + 0.1).backward()
            optimizer.step()

    assert slips_of(program) == ["examples-mixed"] * (how == "viewed")


@pytest.mark.parametrize("kind", ["nodes of a graph", "nodes with edges of the model", "same data"])
def test_rows_that_are_no_examples_may_depend_on_each_other(kind: str) -> None:
    def program() -> None:
        first, last = nn.Linear(3, 4), nn.Linear(4, 2)
        edges = torch.rand(ROWS, ROWS).softmax(-1)
        kept = edges if kind == "nodes with edges of the model" else None

        class Mixes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last, self.edges = first, last, kept

            def forward(self, x: Tensor) -> Tensor:
                found: Tensor = self.last(torch.tanh(edges @ self.first(x).flatten(1))[:, :4])
                return found

        model = Mixes()
        nodes = torch.randn(ROWS, 7, 3)

        def loss() -> Tensor:
            x = nodes if kind == "same data" else torch.randn(ROWS, 3)
            if kind == "nodes with edges of the model":
                x = torch.randn(ROWS, 7, 3)
            return F.cross_entropy(model(x), torch.arange(ROWS) % 2)

        trained(model, loss)

    assert slips_of(program) == []


@pytest.mark.parametrize("inverted", [False, True])
def test_a_loss_of_padding_alone(inverted: bool) -> None:
    def program() -> None:
        embed, head = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Linear(WIDTH, 2)

        def loss() -> Tensor:
            x = torch.randint(1, WORDS, (ROWS, LENGTH))
            x[:, 6:] = 0
            read = (x == 0 if inverted else x != 0)[..., None]
            mean = (embed(x) * read).sum(1) / read.sum(1)
            return F.cross_entropy(head(mean), torch.arange(ROWS) % 2)

        trained(nn.ModuleList([embed, head]), loss)

    assert ("padding-attended" in slips_of(program)) == inverted


class Passes(torch.autograd.Function):
    """The identity, which counts its backwards."""

    backwards = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Passes.backwards += 1
        return gradient


class Passed(Attends):
    """The same as its base, through a function of the program."""

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = Passes.apply(super().forward(tokens))
        return found


@pytest.mark.parametrize("own", ["hook", "function"])
def test_a_question_changes_no_gradient_and_runs_no_code_of_the_program(own: str) -> None:
    def run() -> tuple[list[Tensor], int]:
        torch.manual_seed(3)
        model, calls = (Attends if own == "hook" else Passed)("none"), list[object]()
        Passes.backwards = 0

        def hook(*given: object) -> None:
            calls.append(given)

        if own == "hook":
            model.head.register_full_backward_hook(hook)
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randint(1, WORDS, (ROWS, LENGTH))
            F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
            optimizer.step()
        made = [each.detach().clone() for each in model.parameters()]
        return made, len(calls) or Passes.backwards

    found: list[tuple[list[Tensor], int]] = []
    assert slips_of(lambda: found.append(run())) == []
    weights, calls = run()
    assert all(torch.equal(*pair) for pair in zip(found[0][0], weights, strict=True))
    assert found[0][1] == calls == 3
