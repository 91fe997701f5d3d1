"""The example programs for DeepSpeed: a plain GPT, trained with AdamW and gradient clipping.

A test uses one in its marker: `@pytest.mark.trainsafe(deepspeed_gpt.train, zero=[0, 1, 2, 3])`.
Importing this module imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_trainsafe.fixtures.deepspeed import deepspeed_program
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: DeepSpeed's config.  Gradients of this model have a norm of about 1, so clipping has an effect.
CONFIG = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
    "gradient_clipping": 0.5,
    "tensor_parallel": {
        "partition_config": {
            "use_default_specs": False,
            "layer_specs": [
                {"patterns": [r".*\.([qkv]|up)_proj\.(weight|bias)$"], "partition_type": "column"},
                {"patterns": [r".*\.(o|down)_proj\.(weight|bias)$"], "partition_type": "row"},
            ],
        }
    },
}


@requires(divides("heads", "tp"))
@deepspeed_program(CONFIG, microbatches=4, steps=3)
def train(
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    seq_len: int = 16,
    batch_size: int = 2,
    tied: bool = False,
) -> Any:
    """Builds a GPT; `deepspeed_program` makes this function a program that trains the GPT.

    Returns the model and a function `batch(step, index)` that returns the tokens and targets of
    micro-batch `index`, both [batch_size, seq_len].  With `tied`, the output layer shares the
    weight of the embedding.
    """
    from pytest_trainsafe.reference_models.plain.gpt import PlainGPT, Sizes, text

    sizes = Sizes(layers, hidden, heads, seq_len=seq_len)
    model = PlainGPT(sizes, tied)
    return model, lambda step, index: text(sizes, step, index, batch_size)


@deepspeed_program(CONFIG, microbatches=4, steps=3)
def pipeline(layers: int = 2, hidden: int = 32, heads: int = 4, batch_size: int = 2) -> Any:
    """Builds a GPT for a pipeline; `deepspeed_program` makes this a program that trains the GPT.

    Returns the list of layers, a function `loss(logits, targets)`, and a function
    `batch(step, index)` that returns the tokens and targets of micro-batch `index`, which has
    `batch_size` samples.
    """
    from pytest_trainsafe.reference_models.plain.gpt import Sizes, layers_of, mean_loss, text

    sizes = Sizes(layers, hidden, heads)
    return layers_of(sizes), mean_loss, lambda step, index: text(sizes, step, index, batch_size)


#: Annotations for Ulysses, which splits the sequence; each rank's loss is the mean over its part.
_ULYSSES = {
    "cp_order": "contiguous",
    "loss": {"mean": ["cp"]},
    "modules": {"*": {"output": {"cp_dim": 1}}, "": {"output": {"local": ["cp"]}}},
}


@requires(divides("heads", "cp"), divides("seq_len", "cp"))
@deepspeed_program(CONFIG, microbatches=2, steps=2, annotations=_ULYSSES)
def ulysses(
    ctx: Context, framework: str, layers: int = 2, heads: int = 4, seq_len: int = 16
) -> Any:
    """Builds a GPT; `deepspeed_program` makes this function a program that trains the GPT.

    Each cp rank gets a part of each sequence.  If `framework` is "deepspeed" and there are several
    cp ranks, attention is Ulysses, DeepSpeed's sequence parallelism; otherwise (for the reference,
    `framework` is "torch") it is plain attention.
    Returns the model and a function `batch(step, index)` that returns this rank's part of the
    tokens and targets of micro-batch `index`.
    """
    from pytest_trainsafe.reference_models.plain.gpt import PlainGPT, Sizes, causal, text

    sizes = Sizes(layers, 32, heads, seq_len=seq_len)
    length = seq_len // ctx.point.size("cp")
    first = ctx.coordinates["cp"] * length
    mix = None
    if framework == "deepspeed" and ctx.point.size("cp") > 1:
        from deepspeed.sequence.layer import DistributedAttention

        shared = DistributedAttention(causal, ctx.group("cp"), scatter_idx=2, gather_idx=1)

        def mix(q: Any, k: Any, v: Any) -> Any:
            return shared(q, k, v, 0)

    def batch(step: int, index: int) -> Any:
        return [part[:, first : first + length] for part in text(sizes, step, index, 2)]

    return PlainGPT(sizes, mix=mix, first=first), batch


@requires(divides("experts", "ep"))
@deepspeed_program(CONFIG, microbatches=4, steps=2)
def moe(ctx: Context, framework: str, experts: int = 4, hidden: int = 32) -> Any:
    """Builds a GPT; `deepspeed_program` makes this function a program that trains the GPT.

    The first layer is a mixture of `experts` MLPs that drops no token: DeepSpeed's MoE layer if
    `framework` is "deepspeed", or a layer of plain PyTorch if it is "torch" (for the reference).
    Returns the model and a function `batch(step, index)` that returns the tokens and targets of
    micro-batch `index`.
    """
    from pytest_trainsafe.reference_models.plain.gpt import MLP, Experts, PlainGPT, Sizes, text

    sizes = Sizes(hidden=hidden)
    model = PlainGPT(sizes)
    if framework == "torch":
        model.blocks[0].mlp = Experts(sizes, experts)
    else:
        from pytest_trainsafe.reference_models.blocks.deepspeed_moe import Routed

        ranks = int(ctx.point.get("ep", 1))
        model.blocks[0].mlp = Routed(hidden, MLP(sizes), experts, ranks)
    return model, lambda step, index: text(sizes, step, index, 2)
