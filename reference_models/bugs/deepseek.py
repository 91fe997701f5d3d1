"""Bugs of the parts that a DeepSeek has and other models have not.  None is one of TTrace's.

Each is the bug of its origin, or a similar one; then the description says what the origin had.
"""

from __future__ import annotations

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models.bugs.bug import Bug

#: One layer, with experts, and one step, where these suffice.
_ONE = {"layers": 1, "dense_layers": 0, "steps": 1}


def _over_tp(point: Point) -> bool:
    return point.size("tp") > 1


BUGS = (
    Bug(
        name="mla-latent-grads",
        ttrace=0,
        category="MC",
        origin="https://github.com/bigcode-project/Megatron-LM/issues/35",
        what=(
            "All tp ranks project their heads' keys and values from the same latent vector, but "
            "the gradient of this vector is not summed over tp. (The origin is the same omission "
            "for keys and values that all heads share.)"
        ),
        when="tp > 1",
        triggers=_over_tp,
        module="mtp.transformer_layer.self_attention.kv_layernorm",
        tensor="output",
        kind="activation_grad",
        phase="backward",
        faults=("*.linear_kv_up_proj",),
        pattern="partial sum",
        program="deepseek",
        arguments=_ONE,
    ),
    Bug(
        name="mla-shared-key-grads",
        ttrace=0,
        category="MC",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/1699",
        what=(
            "The key that carries the positions is one for all heads. Each tp rank uses it for its "
            "own heads, but its gradient is not summed over tp."
        ),
        when="tp > 1",
        triggers=_over_tp,
        module="mtp.transformer_layer.self_attention.linear_kv_down_proj",
        tensor="output",
        kind="activation_grad",
        phase="backward",
        faults=("*.self_attention",),
        program="deepseek",
        arguments=_ONE,
    ),
    Bug(
        name="mla-rope-blocks",
        ttrace=0,
        category="WD",
        origin="https://github.com/HabanaAI/DeepSpeed/pull/10",
        what=(
            "The projection of the queries has the elements without positions of all heads first, "
            "and then the rotated ones of all heads. Its rows are divided over tp as if there were "
            "one block, so the first ranks rotate elements that must not be rotated. (In the "
            "origin, a projection of latent attention was divided that must be whole.)"
        ),
        when="tp > 1",
        triggers=_over_tp,
        module="decoder.layers.0.self_attention.linear_q_up_proj",
        tensor="output",
        kind="activation",
        phase="forward",
        faults=("*.linear_q_up_proj",),
        program="deepseek",
        arguments=_ONE,
    ),
    Bug(
        name="shared-expert-twice",
        ttrace=0,
        category="WC",
        origin="https://github.com/sgl-project/sglang/pull/35535",
        what=(
            "The output of the shared experts, which is already summed over tp, is summed over tp "
            "again. (The origin is an engine for inference.)"
        ),
        when="tp > 1",
        triggers=_over_tp,
        module="decoder.layers.0.mlp.shared_experts.linear_fc2",
        tensor="output",
        kind="activation",
        phase="forward",
        faults=("*.shared_experts.linear_fc2",),
        program="deepseek",
        arguments=_ONE,
    ),
    Bug(
        name="router-bias-counts",
        ttrace=0,
        category="MC",
        origin="https://github.com/pytorch/torchtitan/pull/4154",
        what=(
            "With sp each tp rank chooses experts for its shard of the sequence, but the choices "
            "are not counted over tp. Each rank changes the biases of its routers by its own "
            "counts, so the ranks' biases drift apart."
        ),
        when="sp with tp > 1",
        triggers=lambda point: bool(point.get("sp", False)) and point.size("tp") > 1,
        module="decoder.layers.0.mlp.selection",
        tensor="bias",
        kind="buffer",
        phase="unheld",
        faults=("*.selection.bias",),
        program="deepseek",
        arguments=_ONE,
    ),
    Bug(
        name="router-bias-weights",
        ttrace=0,
        category="WD",
        origin="https://github.com/PaddlePaddle/PaddleFormers/pull/3452",
        what=(
            "In the code for experts that are divided over ranks, the weights of a token's experts "
            "follow from their scores with the biases added, which may enter the choice only. The "
            "biases are zero in the first step. (In the origin, the code for experts on one rank "
            "had the bug.)"
        ),
        when="tp > 1 or ep > 1, from the second step on",
        triggers=lambda point: point.size("tp") > 1 or int(point.get("ep", 1)) > 1,
        module="decoder.layers.0.mlp.weights",
        tensor="output",
        kind="activation",
        phase="forward",
        faults=("*.mlp.weights",),
        step=1,
        program="deepseek",
        arguments={**_ONE, "steps": 2},
    ),
    Bug(
        name="mtp-shift-local",
        ttrace=0,
        category="WD",
        origin="https://github.com/NVIDIA/Megatron-LM/pull/4495",
        what=(
            "The targets of the further token are the next targets within a rank's part of the "
            "sequence. At the end of each chunk of the part, they are those of another chunk, or "
            "none. (In the origin, only sequences of odd lengths are affected.)"
        ),
        when="cp > 1",
        triggers=lambda point: point.size("cp") > 1,
        module="mtp.following",
        tensor="output",
        kind="activation",
        phase="forward",
        faults=("mtp.following",),
        program="deepseek",
        arguments=_ONE,
    ),
    Bug(
        name="mtp-loss-scale",
        ttrace=0,
        category="WD",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/3943",
        what=(
            "The gradient of the loss of the further token is divided by the size of cp, as if a "
            "later step multiplied it. All losses are right."
        ),
        when="cp > 1",
        triggers=lambda point: point.size("cp") > 1,
        module="mtp.cross_entropy",
        tensor="output",
        kind="activation_grad",
        phase="backward",
        faults=("mtp",),
        pattern="scaled",
        program="deepseek",
        arguments=_ONE,
    ),
    Bug(
        name="mtp-embedding-grads",
        ttrace=0,
        category="MC",
        origin="https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5380",
        what=(
            "The last stage embeds the targets with a copy of the embedding, but the gradients of "
            "the two copies are not added, so the copies drift apart."
        ),
        when="pp > 1",
        triggers=lambda point: point.size("pp") > 1,
        module="embedding.word_embeddings",
        tensor="weight",
        kind="param_grad",
        phase="weights",
        faults=("embedding.word_embeddings.weight",),
        program="deepseek",
        arguments={"layers": 2, "steps": 1},
    ),
)
