"""Training loops that other projects publish, in one process and on synthetic data.

The loops and models do not use pytest-trainsafe.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

CLASSES, LENGTH, WORDS = 3, 12, 40


def texts(count: int) -> TensorDataset:
    """Rows of tokens, and the class of each."""
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(WORDS, (count, LENGTH), generator=draw)
    return TensorDataset(ids, ids.sum(dim=1) % CLASSES)


class Named(Dataset[dict[str, torch.Tensor]]):
    """The same texts as dictionaries, as `transformers.Trainer` takes them."""

    def __init__(self, count: int, labels: str) -> None:
        self.texts, self.labels = texts(count), labels

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, kind = self.texts[index]
        return {"input_ids": ids, "labels": ids if self.labels == "tokens" else kind}


def trainer_of_gpt2() -> None:
    """`transformers.Trainer`: GPT-2, accumulation, warm-up, evaluation, checkpoints."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            num_train_epochs=2,
            learning_rate=1e-3,
            warmup_steps=2,
            eval_strategy="epoch",
            save_strategy="epoch",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        data = Named(16, "tokens")
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data).train()


def fine_tuned_bert() -> None:
    """The loop of transformers' course: BERT, AdamW, a linear schedule, an evaluation."""
    from transformers import BertConfig, BertForSequenceClassification, get_scheduler

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
    )
    model = BertForSequenceClassification(config)
    loader = DataLoader(texts(24), batch_size=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=12)
    for _ in range(2):
        model.train()
        for ids, kinds in loader:
            model(input_ids=ids, labels=kinds).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        for ids, _ in loader:
            with torch.no_grad():
                model(input_ids=ids)


def frozen_resnet() -> None:
    """Transfer learning: only the head of a ResNet of transformers is trained."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        num_labels=CLASSES,
    )  # fmt: skip
    model = ResNetForImageClassification(config)
    for parameter in model.resnet.parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.SGD(model.classifier.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    for epoch in range(3):
        for number in range(3):
            draw = torch.Generator().manual_seed(10 * epoch + number)
            pixels = torch.randn(6, 3, 16, 16, generator=draw)
            optimizer.zero_grad()
            model(pixel_values=pixels, labels=torch.arange(6) % CLASSES).loss.backward()
            optimizer.step()
        schedule.step()


def accelerated() -> None:
    """accelerate's documented loop: bfloat16 autocast, accumulation, clipping, a schedule."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import set_seed

    # The process has one state, which `transformers.Trainer` has set to float32.
    AcceleratorState._reset_state(reset_partial_state=True)
    set_seed(7)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Flatten(), nn.Linear(8 * LENGTH, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    loader = DataLoader(texts(24), batch_size=4, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for _ in range(2):
        model.train()
        for ids, kinds in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(ids), kinds)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        for ids, _ in loader:
            with torch.no_grad():
                accelerator.gather_for_metrics(model(ids).argmax(dim=-1))


def lightning_module() -> None:
    """Lightning's Trainer: two optimizers stepped by hand, as its documentation has a GAN."""
    import lightning.pytorch as pl

    class Gan(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.make, self.judge = nn.Linear(4, 6), nn.Linear(6, 1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            first, second = self.optimizers()
            real = batch[0]
            made = self.make(torch.randn(len(real), 4))
            self.toggle_optimizer(first)
            fooled = nn.functional.softplus(-self.judge(made)).mean()
            first.zero_grad()
            self.manual_backward(fooled)
            first.step()
            self.untoggle_optimizer(first)
            self.toggle_optimizer(second)
            scores = self.judge(real), self.judge(made.detach())
            loss = (nn.functional.softplus(-scores[0]) + nn.functional.softplus(scores[1])).mean()
            second.zero_grad()
            self.manual_backward(loss)
            second.step()
            self.untoggle_optimizer(second)

        def configure_optimizers(self) -> Any:
            return [
                torch.optim.Adam(self.make.parameters(), lr=1e-2, betas=(0.5, 0.999)),
                torch.optim.Adam(self.judge.parameters(), lr=1e-2, betas=(0.5, 0.999)),
            ]

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
            self.head = nn.Linear(16, CLASSES)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.head(self.net(batch[0])), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            loss = nn.functional.cross_entropy(self.head(self.net(batch[0])), batch[1])
            self.log("val_loss", loss)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
            }

    points = torch.randn(24, 6, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(TensorDataset(points, torch.arange(24) % CLASSES), batch_size=8)
    with tempfile.TemporaryDirectory() as folder:
        for module, clip in ((Gan(), None), (Classifier(), 1.0)):
            trainer = pl.Trainer(
                default_root_dir=folder,
                accelerator="cpu",
                max_epochs=2,
                gradient_clip_val=clip,
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                log_every_n_steps=1,
            )
            trainer.fit(module, loader, *([loader] if clip else []))


def scaled_vision() -> None:
    """PyTorch's recipe of automatic mixed precision, around a masked autoencoder of pictures."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    config = ViTMAEConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
        image_size=16,
        patch_size=4,
    )
    model = ViTMAEForPreTraining(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        draw = torch.Generator().manual_seed(step)
        pixels = torch.randn(4, 3, 16, 16, generator=draw)
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            loss = model(pixel_values=pixels).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


LOOPS = (
    *(trainer_of_gpt2, fine_tuned_bert, frozen_resnet, accelerated, lightning_module),
    scaled_vision,
)
