"""The line that is named for a fault in a captured program, and its right twin, which is proved."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from pytest_trainsafe import TrainsafeFailure, assert_refines
from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.graphs.modules import capture

WORDS = 8


class CutEntropy(torch.autograd.Function):
    """The loss over a cut vocabulary; `first` is the first word of the rank's part."""

    @staticmethod
    def forward(ctx, logits, labels, first):
        own = logits.shape[-1]
        top = logits.max(-1)[0]
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        logits = logits - top.unsqueeze(-1)
        outside = (labels < first) | (labels >= first + own)  # forward
        local = labels.clone() - first  # forward
        local[outside] = 0  # forward
        picked = logits[torch.arange(len(labels)), local].clone()  # forward
        picked[outside] = 0.0  # forward
        dist.all_reduce(picked)  # forward
        exp = logits.exp()
        total = exp.sum(-1)
        dist.all_reduce(total)
        ctx.save_for_backward(exp / total.unsqueeze(-1), outside, local)
        return total.log() - picked  # forward

    @staticmethod
    def backward(ctx, *gradients):
        softmax, outside, local = ctx.saved_tensors
        gradient = softmax.clone()
        flat = gradient.view(-1, gradient.shape[-1])
        flat[torch.arange(len(local)), local] -= 1.0 - outside.float()
        return gradient * gradients[0].unsqueeze(-1), None, None


def entropy(tensors, offset=0):
    own = WORDS // dist.get_world_size()
    head, rank = tensors["head"].detach().requires_grad_(), dist.get_rank()
    first = rank * own + offset * (rank > 0)
    loss = CutEntropy.apply(tensors["x"] @ head.T, tensors["labels"], first).mean()
    return {"loss": loss, "gradient": torch.autograd.grad(loss, [head])[0]}


def judged(sequential, parallel, tensors, cut, relation):
    """Asks about one device and two ranks, of which each has half of the tensors in `cut`."""
    halves = {name: each[: len(each) // 2] if name in cut else each
              for name, each in tensors.items()}  # fmt: skip
    ranks = [capture(parallel, halves, rank=rank, ranks=2) for rank in range(2)]
    whole = capture(sequential, tensors)
    certificate = assert_refines(whole, ranks, relation)
    assert check(certificate, whole, ranks, seed=3) >= len(certificate.outputs)


def named(report):
    """The text of the line that a report names."""
    found = re.search(r"starts at +\S+ at (\S+):(\d+)", report)
    assert found is not None
    assert Path(found[1]).name == Path(__file__).name
    return Path(__file__).read_text().splitlines()[int(found[2]) - 1]


ENTROPY = {
    "mesh": {"tp": 2},
    "inputs": {"x, labels": "replica", "head": "concat 0"},
    "outputs": {"loss": "replica", "gradient": "concat 0"},
    "below": {"labels": WORDS},
}


def entropy_of(offset):
    tensors = {"x": torch.zeros(6, 5), "labels": torch.zeros(6, dtype=torch.int64)}
    tensors["head"] = torch.zeros(WORDS, 5)
    judged(entropy, lambda given: entropy(given, offset), tensors, ["head"], ENTROPY)


def test_a_loss_over_a_cut_vocabulary_is_proved():
    entropy_of(0)


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_wrong_first_word_of_a_rank_is_named_in_the_forward(offset):
    with pytest.raises(TrainsafeFailure) as caught:
        entropy_of(offset)
    assert named(str(caught.value)).endswith("# forward")


def weighted(tensors, batches=1, local=False):
    weight = tensors["w"].detach().requires_grad_()
    count, loss = tensors["mask"].sum(), torch.tensor(0.0)
    if dist.get_world_size() > 1:
        dist.all_reduce(count)
    parts = (tensors[name].chunk(batches) for name in ("x", "labels", "mask"))
    for x, labels, mask in zip(*parts, strict=True):
        each = cross_entropy(torch.tanh(x) @ weight, labels, reduction="none") * mask
        loss = loss + (each.sum() / mask.sum() / 4 if local else each.sum() / count)  # mean
    gradient = torch.autograd.grad(loss, [weight])[0]
    loss = loss.detach()
    if dist.get_world_size() > 1:
        dist.all_reduce(gradient)
        dist.all_reduce(loss)
    return {"loss": loss, "gradient": gradient}


WEIGHTED = {
    "mesh": {"dp": 2},
    "inputs": {"x, labels, mask": "concat 0", "w": "replica"},
    "outputs": {"loss": "replica", "gradient": "replica"},
    "below": {"labels": 5},
}


def weighted_of(local):
    tensors = {"x": torch.zeros(8, 4), "labels": torch.zeros(8, dtype=torch.int64)}
    tensors |= {"mask": torch.zeros(8), "w": torch.zeros(4, 5)}
    cut = ["x", "labels", "mask"]
    judged(weighted, lambda given: weighted(given, 2, local), tensors, cut, WEIGHTED)


def test_a_mean_over_the_tokens_of_all_ranks_and_microbatches_is_proved():
    weighted_of(local=False)


def test_a_mean_of_the_means_of_ranks_microbatches_is_named_at_the_mean():
    with pytest.raises(TrainsafeFailure) as caught:
        weighted_of(local=True)
    assert named(str(caught.value)).endswith("# mean")


def attention(tensors, ordered=True):
    ranks, rank = dist.get_world_size(), dist.get_rank()
    query, key, value = (tensors["x"] @ tensors[name] for name in ("q", "k", "v"))  # projected
    length = len(query) * ranks
    rows = torch.arange(length)
    if ranks > 1:
        parts = rows.chunk(2 * ranks)
        mine = torch.cat((parts[rank], parts[-1 - rank]))
        key, value = gathered(key, ordered), gathered(value, ordered)
    else:
        mine = rows
    scores = (query @ key.T).masked_fill(mine.unsqueeze(1) < rows, float("-inf"))  # scores
    return {"y": scores.softmax(-1) @ value}


def gathered(own, ordered):
    """The parts of all ranks, each of which has the first and the second in one tensor."""
    ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, own.contiguous())
    if not ordered:
        return torch.cat(ranks)
    firsts, seconds = zip(*(each.chunk(2) for each in ranks), strict=True)
    return torch.cat((*firsts, *reversed(seconds)))


ZIGZAG = {
    "mesh": {"cp": 2},
    "inputs": {"x": "concat 0 zigzag", "q, k, v": "replica"},
    "outputs": {"y": "concat 0 zigzag"},
}


def attention_of(ordered):
    tensors = {"x": torch.zeros(8, 6)} | {name: torch.zeros(6, 4) for name in ("q", "k", "v")}
    judged(attention, lambda given: attention(given, ordered), tensors, ["x"], ZIGZAG)


def test_attention_over_a_sequence_that_is_cut_in_zigzag_is_proved():
    attention_of(ordered=True)


def test_keys_that_stay_in_the_order_of_the_ranks_are_named_at_the_scores():
    with pytest.raises(TrainsafeFailure) as caught:
        attention_of(ordered=False)
    assert named(str(caught.value)).endswith("# scores")


PAD, VOCABULARY = 41, 64


def padded(tensors, ignored=PAD):
    weight = tensors["w"].detach().requires_grad_()
    labels, ranks = tensors["labels"], dist.get_world_size()
    logits = tensors["x"] @ weight
    loss = cross_entropy(logits, labels, reduction="sum", ignore_index=ignored)
    gradient = torch.autograd.grad(loss, [weight])[0]
    if ranks > 1:
        dist.all_reduce(gradient)
    return {"gradient": gradient}


PADDED = {
    "mesh": {"dp": 2},
    "inputs": {"x, labels": "concat 0", "w": "replica"},
    "outputs": {"gradient": "replica"},
}


def padded_of(ignored):
    tensors = {"x": torch.zeros(6, 4), "labels": torch.zeros(6, dtype=torch.int64)}
    tensors["w"] = torch.zeros(4, VOCABULARY)
    judged(padded, lambda given: padded(given, ignored), tensors, ["x", "labels"], PADDED)


def test_a_loss_that_ignores_a_word_is_proved():
    padded_of(PAD)


def test_ranks_that_do_not_ignore_a_rare_word_are_refuted():
    with pytest.raises(TrainsafeFailure, match=r"aten\.nll_loss_forward at"):
        padded_of(-100)
