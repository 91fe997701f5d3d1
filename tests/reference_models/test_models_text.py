"""The batches of training text: deterministic, and spread over the whole vocabulary."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.reference_models.datasets import text


def test_targets_are_the_next_tokens() -> None:
    tokens, targets = text.batch(5, batch_size=2, seq_len=32)

    assert tokens.shape == targets.shape == (2, 32)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_windows_of_micro_batches_and_seeds_rarely_coincide() -> None:
    batches = [text.batch(index, 2, 32, seed)[0] for index in range(50) for seed in (0, 1)]

    windows = {tuple(row.tolist()) for batch in batches for row in batch}
    assert len(windows) > 195  # of 200: the text repeats, for example runs of blanks


def test_the_same_number_gives_the_same_batch() -> None:
    assert torch.equal(text.batch(7, 2, 32, 1)[0], text.batch(7, 2, 32, 1)[0])


def test_batches_repeat_from_the_start_after_the_end_of_the_text() -> None:
    windows = (len(text.corpus()) - 1) // 32

    assert torch.equal(text.batch(windows, 1, 32)[0], text.batch(0, 1, 32)[0])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_batch_has_tokens_of_every_vocabulary_shard(ranks) -> None:
    tokens, _ = text.batch(0, 2, 32)

    assert set((tokens // (256 // ranks)).flatten().tolist()) == set(range(ranks))


def test_a_batch_longer_than_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size=2 .*seq_len=10000000 need more text"):
        text.batch(0, 2, 10_000_000)


@pytest.mark.parametrize("microbatch", range(8))
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_micro_batch_has_the_tokens_at_the_boundaries_of_vocabulary_shards(
    ranks, microbatch
) -> None:
    tokens, _ = text.batch(microbatch, 2, 32)

    shard = 256 // ranks
    edges = {rank * shard for rank in range(ranks)} | {rank * shard - 1 for rank in (1, ranks)}
    assert edges <= set(tokens.flatten().tolist())


def test_every_token_occurs_in_a_run_of_the_default_size() -> None:
    batches = [text.batch(index, 2, 32) for index in range(8)]

    assert {t for tokens, _ in batches for t in tokens.flatten().tolist()} == set(range(256))
    assert {t for _, targets in batches for t in targets.flatten().tolist()} == set(range(256))


def test_every_sequence_repeats_a_token() -> None:
    tokens, _ = text.batch(0, 2, 32)

    assert all(len(set(row.tolist())) < 32 for row in tokens)


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 37, 64])
def test_every_token_of_a_smaller_vocabulary_occurs(vocabulary) -> None:
    tokens, targets = text.batch(0, 8, 32, vocabulary=vocabulary)

    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert set(tokens.flatten().tolist()) == set(range(vocabulary))
