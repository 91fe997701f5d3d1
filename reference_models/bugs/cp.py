"""Bugs of context parallelism."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="cp-loss-scaling",
        ttrace=3,
        category="WD",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/673",
        what=(
            "The loss to differentiate is multiplied by the size of cp, although it is already "
            "divided by the tokens of the whole step. The reported loss stays right, and AdamW, "
            "which ignores the scale of gradients, hides the rest."
        ),
        when="cp > 1",
        triggers=lambda point: point.size("cp") > 1,
        module="cross_entropy",
        tensor="output",
        kind="activation_grad",
        phase="backward",
        faults=("<program>",),
        pattern="scaled",
    ),
    Bug(
        name="cp-attention-backward-layout",
        ttrace=13,
        category="WD",
        origin="https://github.com/NVIDIA/TransformerEngine/issues/1557",
        what=(
            "The backward of the attention reads the gradient of its output as if it were "
            "contiguous. It is a transposed view, so heads and tokens are mixed up in the "
            "gradients of queries, keys and values."
        ),
        when="cp > 1 with cp_method=ring, and more than one head a rank",
        triggers=lambda point: point.size("cp") > 1 and point.size("tp") < 4,
        module="decoder.layers.1.self_attention.linear_qkv",
        tensor="output",
        kind="activation_grad",
        phase="backward",
        faults=("*.core_attention",),
        arguments={"cp_method": "ring", "layers": 2, "heads": 4},
    ),
    Bug(
        name="cp-layernorm-grads",
        ttrace=14,
        category="WC",
        origin="https://github.com/NVIDIA/TransformerEngine/issues/1677",
        what=(
            "Under cp the parameters of the layer norms are marked `sequence_parallel`, since "
            "the sequence is sharded. The mark requests a sum of their gradients over tp. But "
            "every tp rank already has the whole gradient, so the sum is tp times too large. "
            "AdamW hides the error from the updates."
        ),
        when="tp > 1 and cp > 1 without sp",
        triggers=lambda point: (
            point.size("tp") > 1 and point.size("cp") > 1 and not point.get("sp", False)
        ),
        module="decoder.layers.0.input_layernorm",
        tensor="weight",
        kind="main_grad",
        phase="reduction",
        faults=("*layernorm.*",),
        pattern="scaled",
    ),
)
