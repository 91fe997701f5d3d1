"""Training steps, computed in two ways: equal if they are the same, else with an exact factor."""

import math
from collections import defaultdict
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.arithmetic import Doubles, ExactMode, Residues, factor

WIDTH, VOCABULARY, LENGTH = 4, 6, 4


def run(program, model, data, numbers):
    torch.manual_seed(0)
    model = model()
    mode = ExactMode(numbers)
    mode.enter_(*model.parameters(), *model.buffers())
    entered = [mode.enter(each) for each in data]
    with mode:
        result = program(model, *entered)
    return [each.detach() for each in result]


def exact(program, model, *data):
    """The tensors that a program returns on residues, with decisions of its own real run."""
    doubles = Doubles()
    run(program, model, data, doubles)
    return run(program, model, data, Residues(0, doubles.decisions.replay()))


def equal(first, second):
    return all(a.equal(b) for a, b in zip(first, second, strict=True))


def reals(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)).double()


def gradients(forward):
    def program(model, x, target):
        loss = functional.mse_loss(forward(model, x), target)
        loss.backward()
        return [loss, *(each.grad for each in model.parameters())]

    return program


def split(model, x):
    """Tensor parallel over two ranks: columns of the first layer, rows of the second."""
    up, _, down = model
    parts = [
        functional.gelu(x @ w.t() + b) @ v.t()
        for w, b, v in zip(
            up.weight.chunk(2), up.bias.chunk(2), down.weight.chunk(2, 1), strict=True
        )
    ]
    return sum(parts) + down.bias


def without_one_part(model, x):
    up, _, down = model
    return functional.gelu(x @ up.weight[:3].t() + up.bias[:3]) @ down.weight[:, :3].t() + down.bias


def recomputed(model, x):
    return checkpoint(model, x, use_reentrant=False)


DATA = reals(3, 4), reals(3, 4).flip(0)


@pytest.mark.parametrize("forward", [split, recomputed])
def test_an_mlp_in_parts_or_recomputed_has_the_same_gradients(forward):
    reference = exact(gradients(lambda model, x: model(x)), mlp, *DATA)
    assert equal(exact(gradients(forward), mlp, *DATA), reference)


def test_a_missing_partial_sum_changes_the_loss():
    reference = exact(gradients(lambda model, x: model(x)), mlp, *DATA)
    wrong = exact(gradients(without_one_part), mlp, *DATA)
    assert not wrong[0].equal(reference[0])
    assert factor(wrong[0], reference[0]) is None


def accumulated(share):
    def program(model, x, target):
        for part, right in zip(x.chunk(3), target.chunk(3), strict=True):
            (functional.mse_loss(model(part), right) * share).backward()
        return [each.grad for each in model.parameters()]

    return program


def test_micro_batches_add_up_to_the_batch_and_a_wrong_mean_is_an_exact_factor():
    reference = exact(gradients(lambda model, x: model(x)), mlp, *DATA)[1:]
    assert equal(exact(accumulated(1 / 3), mlp, *DATA), reference)
    wrong = exact(accumulated(1.0), mlp, *DATA)
    assert [factor(a, b) for a, b in zip(wrong, reference, strict=True)] == [3] * 4
    less = exact(accumulated(2 / 9), mlp, *DATA)
    assert factor(less[0], reference[0]) == Fraction(2, 3)


def trained(make, clip=None):
    def program(model, x, target):
        optimizer = make(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            functional.mse_loss(model(x), target).backward()
            if clip is not None:
                clip(model.parameters())
            optimizer.step()
        return list(model.parameters())

    return program


def by_hand(parameters, lr=0.01, decay=0.01):
    """AdamW as its paper writes it: corrected moments, root of the corrected second moment."""

    class Hand:
        def __init__(self, parameters):
            self.parameters, self.steps = list(parameters), 0
            self.state: dict = defaultdict(dict)

        def zero_grad(self):
            for each in self.parameters:
                each.grad = None

        @torch.no_grad()
        def step(self):
            self.steps += 1
            for each in self.parameters:
                state = self.state[each]
                m = state["m"] = 0.9 * state.get("m", 0) + (1 - 0.9) * each.grad
                v = state["v"] = 0.999 * state.get("v", 0) + (1 - 0.999) * each.grad**2
                m, v = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
                each.mul_(1 - lr * decay)
                each.sub_(lr * m / (torch.sqrt(v) + 1e-8))

    return Hand(parameters)


def adamw(foreach):
    return lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=foreach)


def test_adamw_is_the_same_as_a_loop_as_foreach_and_by_hand():
    loop = exact(trained(adamw(False)), mlp, *DATA)
    assert equal(exact(trained(adamw(True)), mlp, *DATA), loop)
    assert equal(exact(trained(by_hand), mlp, *DATA), loop)
    assert not equal(exact(trained(torch.optim.SGD), mlp, *DATA), loop)


def momentum(foreach):
    return lambda each: torch.optim.SGD(each, lr=0.1, momentum=0.9, foreach=foreach)


def test_sgd_with_momentum_is_the_same_as_a_loop_and_as_foreach():
    loop = exact(trained(momentum(False)), mlp, *DATA)
    assert equal(exact(trained(momentum(True)), mlp, *DATA), loop)


def branch(limit):
    def clip(parameters):
        gradients = [each.grad for each in parameters]
        norm = torch.sqrt(sum((each**2).sum() for each in gradients))
        if norm > limit:
            for each in gradients:
                each.mul_(limit / (norm + 1e-6))

    return clip


def clamp(limit):
    return lambda parameters: nn.utils.clip_grad_norm_(parameters, limit)


@pytest.mark.parametrize("limit", [0.01, 100.0])
def test_clipping_by_a_branch_is_clipping_by_a_clamp(limit):
    step = momentum(False)
    assert equal(
        exact(trained(step, branch(limit)), mlp, *DATA),
        exact(trained(step, clamp(limit)), mlp, *DATA),
    )


def test_another_limit_of_the_norm_is_noticed():
    step = momentum(False)
    assert not equal(
        exact(trained(step, clamp(0.01)), mlp, *DATA),
        exact(trained(step, clamp(0.02)), mlp, *DATA),
    )


class Block(nn.Module):
    """Token embedding, layer norm, causal attention with two heads, and a language model's head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.double()

    def heads(self, tokens, norm):
        x = self.embedding(tokens)
        q, k, v = self.qkv(norm(x)).chunk(3, -1)
        return x, *(each.unflatten(-1, (2, 2)).transpose(0, 1) for each in (q, k, v))

    def logits(self, x, mixed):
        x = x + self.out(mixed.transpose(0, 1).flatten(-2))
        return x @ self.embedding.weight.t()


TOKENS = torch.tensor([1, 5, 0, 3])
TARGETS = torch.tensor([5, 0, 3, 2])


def reference(model, tokens, targets):
    x, q, k, v = model.heads(tokens, model.norm)
    mixed = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    loss = functional.cross_entropy(model.logits(x, mixed), targets)
    loss.backward()
    return [loss, *(each.grad for each in model.parameters())]


def online(q, k, v, rescale=True):
    """Blocks of two keys with a running maximum, as ring attention computes it."""
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    largest = torch.full((*q.shape[:2], 1), -math.inf, dtype=torch.float64)
    total, mixed = torch.zeros_like(q[..., :1]), torch.zeros_like(q)
    for start in range(0, LENGTH, 2):
        scores = q @ k[:, start : start + 2].transpose(1, 2) / math.sqrt(2)
        scores = scores.masked_fill(~allowed[:, start : start + 2], -math.inf)
        now = torch.maximum(largest, scores.amax(-1, keepdim=True)).detach()
        weights = torch.exp(scores - now)
        old = torch.exp(largest - now) if rescale else 1
        total = total * old + weights.sum(-1, keepdim=True)
        mixed = mixed * old + weights @ v[:, start : start + 2]
        largest = now
    return mixed / total


def parallel(rescale=True, scale=1.0):
    """The same written out: the norm by its formula, the vocabulary in two parts."""

    def program(model, tokens, targets):
        def norm(x):
            centred = x - x.mean(-1, keepdim=True)
            deviation = torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
            return centred / deviation * model.norm.weight + model.norm.bias

        x, q, k, v = model.heads(tokens, norm)
        parts = model.logits(x, online(q, k, v, rescale)).chunk(2, -1)
        largest = torch.maximum(*(each.amax(-1, keepdim=True) for each in parts)).detach()
        parts = [each - largest for each in parts]
        total = torch.stack([torch.exp(each).sum(-1) for each in parts]).sum(0)
        chosen = torch.cat(parts, -1).gather(1, targets[:, None])[:, 0]
        loss = (torch.log(total) - chosen).mean()
        (loss * scale).backward()
        return [loss, *(each.grad for each in model.parameters())]

    return program


def test_a_block_of_attention_is_the_same_online_and_with_its_vocabulary_in_parts():
    assert equal(
        exact(parallel(), Block, TOKENS, TARGETS), exact(reference, Block, TOKENS, TARGETS)
    )


def test_attention_by_the_math_path_is_attention_by_the_kernel():
    def by_math(model, tokens, targets):
        with sdpa_kernel(SDPBackend.MATH):
            return reference(model, tokens, targets)

    assert equal(exact(by_math, Block, TOKENS, TARGETS), exact(reference, Block, TOKENS, TARGETS))


@pytest.mark.parametrize("heads_first", [True, False])
def test_attention_and_its_gradients_lie_in_memory_as_torch_lays_them(heads_first):
    """A graph's views of them are those that torch takes."""

    def attended(q, k, v):
        q, k, v = (each.requires_grad_() for each in (q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            y = functional.scaled_dot_product_attention(q, k, v)
        return [y, *torch.autograd.grad(y.sum(), (q, k, v))]

    shapes = [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)]
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    if not heads_first:
        inputs = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in inputs]
    real = attended(*inputs)
    mode = ExactMode(Doubles())
    entered = [mode.enter(each.detach()) for each in inputs]
    with mode:
        found = attended(*entered)
    assert [each.stride() for each in found] == [each.stride() for each in real]


def test_online_attention_that_forgets_to_rescale_is_noticed():
    wrong = exact(parallel(rescale=False), Block, TOKENS, TARGETS)
    assert not wrong[0].equal(exact(reference, Block, TOKENS, TARGETS)[0])


def test_a_loss_scaled_twice_gives_gradients_exactly_twice_as_large():
    right = exact(reference, Block, TOKENS, TARGETS)
    wrong = exact(parallel(scale=2.0), Block, TOKENS, TARGETS)
    assert wrong[0].equal(right[0])
    assert [factor(a, b) for a, b in zip(wrong[1:], right[1:], strict=True)] == [2] * 7


def network():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 2, 2),
        nn.Flatten(),
    ).double()


def convolved(model, x):
    """The first convolution by channels of its input, as a model that splits them computes it."""
    first, *rest = model
    parts = [
        functional.conv2d(x[:, each : each + 1], first.weight[:, each : each + 1], padding=1)
        for each in range(2)
    ]
    x = sum(parts) + first.bias[:, None, None]
    for layer in rest:
        x = layer(x)
    return x


def test_a_convolutional_network_is_the_same_by_channels():
    data = reals(2, 2, 4, 4), reals(2, 2)
    reference = exact(gradients(lambda model, x: model(x)), network, *data)
    assert equal(exact(gradients(convolved), network, *data), reference)


def test_a_recurrent_network_is_the_same_written_out():
    def whole(model, x):
        model(x)[0].sum().backward()
        return [each.grad for each in model.parameters()]

    def written_out(model, x):
        hidden = cell = torch.zeros(2, 3, dtype=torch.float64)
        total = torch.zeros((), dtype=torch.float64)
        for row in x:
            gates = row @ model.weight_ih_l0.t() + model.bias_ih_l0
            gates = gates + hidden @ model.weight_hh_l0.t() + model.bias_hh_l0
            i, f, g, o = gates.chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            total = total + hidden.sum()
        total.backward()
        return [each.grad for each in model.parameters()]

    def lstm():
        return nn.LSTM(2, 3).double()

    data = reals(3, 2, 2)
    assert equal(exact(whole, lstm, data), exact(written_out, lstm, data))
