"""Slips in labels of tokens, masks of padding and the order of dimensions are noticed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.learn.slips import sgd, slips_of

ROWS, LENGTH, WORDS = 4, 9, 11


def tokens() -> Tensor:
    return torch.randint(1, WORDS, (ROWS, LENGTH))


class Causal(nn.Module):
    """A language model without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.embed(x))
        return found


@pytest.mark.parametrize(
    ("labels", "slips"),
    [
        ("next", []),
        ("next in the data", []),
        ("same", ["labels-shifted"]),
        ("earlier", []),
        ("next but one", ["labels-shifted"]),
        ("next and next but one", []),
        ("masked", []),
    ],
)
def test_labels_of_a_language_model(labels: str, slips: list[str]) -> None:
    def program() -> None:
        model = Causal()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            _loss(model, tokens(), labels).backward()
            optimizer.step()

    assert slips_of(program) == slips


def _loss(model: nn.Module, x: Tensor, labels: str) -> Tensor:
    def of(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    if labels == "next in the data":
        return of(model(x[:, :-1]), x[:, 1:])
    if labels == "masked":
        hidden = torch.rand(x.shape) < 0.5
        hidden[0] = True
        y = model(x.masked_fill(hidden, 0))
        return of(y, x.masked_fill(~hidden, -100))
    y = model(x)
    if labels in ("same", "earlier"):
        return of(y, x) if labels == "same" else of(y[:, 2:], x[:, :-2])
    if labels == "next but one":
        return of(y[:, :-2], x[:, 2:])
    more = of(y[:, :-2], x[:, 2:]) if labels != "next" else 0
    return of(y[:, :-1], x[:, 1:]) + more


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("kind", ["attention", "function", "numbers"])
def test_a_mask_of_padding(inverted: bool, kind: str) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, 6)
            if kind != "function":
                self.attend = nn.MultiheadAttention(6, 1, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            h, hidden = self.embed(x), (x == 0) != inverted
            if kind == "function":
                mask = ~hidden[:, None, None]
                return F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], mask)
            mask = torch.zeros(x.shape).masked_fill(hidden, -torch.inf)
            found: Tensor = self.attend(
                h, h, h, key_padding_mask=mask if kind == "numbers" else hidden
            )[0]
            return found

    def program() -> None:
        model = Reader()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            x = tokens()
            x[:, 6:] = 0
            model(x).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == ["padding-attended"] * inverted


@pytest.mark.parametrize(("first", "slips"), [(True, []), (False, ["batch-as-time"])])
@pytest.mark.parametrize("kind", ["rnn", "attention"])
def test_examples_in_the_place_of_positions(first: bool, slips: list[str], kind: str) -> None:
    def program() -> None:
        module: nn.Module = nn.GRU(4, 6, batch_first=first)
        if kind == "attention":
            module = nn.MultiheadAttention(4, 1, batch_first=first)
        head = nn.Linear(6 if kind == "rnn" else 4, 2)
        optimizer = sgd(nn.ModuleList([module, head]))
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(ROWS, LENGTH, 4)
            hidden = module(x)[0] if kind == "rnn" else module(x, x, x)[0]
            F.cross_entropy(head(hidden[:, -1]), torch.arange(ROWS) % 2).backward()
            optimizer.step()

    assert slips_of(program) == slips


def test_time_comes_first_on_purpose() -> None:
    def program() -> None:
        module, head = nn.GRU(4, 6), nn.Linear(6, 2)
        optimizer = sgd(nn.ModuleList([module, head]))
        for _ in range(3):
            optimizer.zero_grad()
            hidden = module(torch.randn(LENGTH, ROWS, 4))[0]
            F.cross_entropy(head(hidden[-1]), torch.arange(ROWS) % 2).backward()
            optimizer.step()

    assert slips_of(program) == []


@pytest.mark.parametrize(
    ("mask", "slips"),
    [("causal", []), ("none", ["future-seen"]), ("inverted", ["future-seen"])],
)
@pytest.mark.parametrize("kind", ["module", "numbers", "function"])
def test_a_language_model_with_attention(mask: str, slips: list[str], kind: str) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)
            if kind != "function":
                self.attend = nn.MultiheadAttention(6, 1, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            hidden = future.T if mask == "inverted" else future
            if kind == "function":
                own = h[:, None]
                seen = None if mask == "none" else ~hidden
                h = h + F.scaled_dot_product_attention(own, own, own, seen)[:, 0]
            else:
                given = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
                chosen = given if kind == "numbers" else hidden
                h = h + self.attend(h, h, h, attn_mask=None if mask == "none" else chosen)[0]
            found: Tensor = self.head(h)
            return found

    def program() -> None:
        model = Reader()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            _loss(model, tokens(), "next").backward()
            optimizer.step()

    assert slips_of(program) == slips


@pytest.mark.parametrize(("causal", "slips"), [(True, ["labels-shifted"]), (False, [])])
def test_attention_that_restores_what_it_reads(causal: bool, slips: list[str]) -> None:
    def program() -> None:
        model = Causal()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            x = tokens()
            h = model.embed(x)[:, None]
            h = F.scaled_dot_product_attention(h, h, h, is_causal=causal)
            F.cross_entropy(model.head(h[:, 0]).flatten(0, 1), x.flatten()).backward()
            optimizer.step()

    assert slips_of(program) == slips


def test_an_encoder_beside_a_causal_decoder_sees_all() -> None:
    def program() -> None:
        model = Causal()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            h = model.embed(tokens())[:, None]
            F.scaled_dot_product_attention(h, h, h)
            F.scaled_dot_product_attention(h, h, h, is_causal=True)
            _loss(model, tokens(), "next").backward()
            optimizer.step()

    assert slips_of(program) == []
