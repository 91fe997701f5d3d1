"""A pack is learned from a script that uses `transformers.Trainer`, and checked on other seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.__main__ import main

SCRIPT = '''
import sys
import tempfile
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

seed, wrong = int(sys.argv[1].partition("=")[2]), "--wrong" in sys.argv
set_seed(seed)
config = GPT2Config(
    vocab_size=40, n_positions=12, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(40, (32, 12))]


class Frozen(Trainer):
    """Trains with the head's norm left out of the optimizer."""

    def create_optimizer(self, *given):
        found = super().create_optimizer(*given)
        for group in found.param_groups if wrong else ():
            left = {id(each) for each in model.transformer.ln_f.parameters()}
            group["params"] = [each for each in group["params"] if id(each) not in left]
        return found


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=1, use_cpu=True, report_to=[], disable_tqdm=True,
        save_strategy="no", seed=seed,
    )
    Frozen(model, arguments, train_dataset=rows).train()
'''


@pytest.mark.filterwarnings("default")
def test_a_script_with_a_trainer_is_learned_from_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    for seed in (0, 1):
        assert main(["learn", "--pack", "ours", "train.py", f"--seed={seed}"]) == 0
    assert main(["learn", "--check", "ours,pytorch", "train.py", "--seed=2"]) == 0
    capsys.readouterr()
    # Other arguments, and so another configuration: the rules that carry over are checked.
    assert main(["learn", "--check", "pytorch", "train.py", "--seed=2", "--wrong"]) == 1
    assert "the model in training" in capsys.readouterr().out
