"""How the packs of this folder are learned: from which programs, and which invariants they take.

`make packs` observes the programs and writes the packs; `judges/learn/use/general.py` says which
invariants are general enough.  What holds on each rank alone is in one pack, that of its subject;
what holds between ranks is in the pack of each parallelism that it holds for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.registry import relations

__all__ = ["DEEPSPEED_APIS", "RECIPES", "Recipe"]

#: Programs of two ranks that replicate parameters, and those that split layers.
REPLICATED = (
    *("replicas", "replicas_language", "replicas_images", "replicas_scaled", "averaged"),
    "sharded_states",
    *("llama dp=2", "moe dp=2"),
)
SPLIT = (
    *("tensor_parallel", "tensor_parallel_mixed", "llama tp=2", "moe tp=2"),
    *("llama dp=2 tp=2", "moe dp=2 tp=2"),
)
SHARDED = ("sharded.classifier", "sharded.language", "sharded.images")
SCALED = (
    *("scaled", "scaled_sentences", "scaled_autoencoder", "scaled_gan", "replicas_scaled"),
    *("mixed_precision", "segmentation", "overflow", "resumed"),
)
#: Programs that train with DeepSpeed.
DEEPSPEED = (
    *("deepspeed_gpt", "deepspeed_gpt.pipeline"),
    *("deepspeed.images", "deepspeed.language", "deepspeed.autoencoder", "deepspeed.partitioned"),
    *("deepspeed.loader", "deepspeed.own_backward", "deepspeed.experts", "deepspeed.mixture"),
    *("deepspeed.staged", "deepspeed.tied", "deepspeed.alone"),
)
#: The same GPT with experts, and with split sequences.
DEEPSPEED_OTHERS = ("deepspeed_gpt.moe", "deepspeed_gpt.ulysses")
#: What is observed of DeepSpeed: the functions that its documentation gives to a training loop, and
#: the collectives by which its ranks communicate.  What these call inside DeepSpeed (some 350
#: functions) differs between releases.
DEEPSPEED_APIS = (
    "deepspeed.initialize",
    *(
        f"deepspeed.DeepSpeedEngine.{method}"
        for method in (
            *("forward", "backward", "step", "zero_grad", "set_gradient_accumulation_boundary"),
            *("scale", "set_train_batch_size", "save_checkpoint", "load_checkpoint"),
        )
    ),
    *("deepspeed.PipelineEngine.train_batch", "deepspeed.PipelineEngine.eval_batch"),
    *(
        f"deepspeed.comm.{name}"
        for name in (
            *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_coalesced"),
            *("reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "barrier"),
            *("all_to_all_single", "all_reduce_coalesced"),
        )
    ),
)
#: Programs of two ranks that share no parameters, or some of them only.
OTHERS = ("experts", "pipeline")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one pack is learned.

    `takes` says whether an invariant is about the pack's subject.  `programs` are those that must
    show it, () for all but those in `without`; `beside` are others that it must not contradict.
    """

    name: str
    takes: Callable[[Invariant], bool]
    programs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def _names(invariant: Invariant) -> tuple[str, ...]:
    claim = invariant.claim
    return tuple(claim.text(each) for each in ("api", "inner", "variable") if claim.text(each))


def _several(invariant: Invariant) -> bool:
    """Whether it compares ranks."""
    return relations()[invariant.claim.relation].several


def _communicates(invariant: Invariant) -> bool:
    begins = ("torch.distributed", "torch.nn.parallel", "sampler")
    return any(name.startswith(begins) for name in _names(invariant))


def _scales(invariant: Invariant) -> bool:
    """Whether it is about a gradient scaler, or holds in autocast only."""
    autocast = dict(invariant.within).get("autocast", (None,))
    return None not in autocast or any(
        "GradScaler" in name or name.startswith("scaler") for name in _names(invariant)
    )


def _with_deepspeed(invariant: Invariant) -> bool:
    """Whether it is about a program that DeepSpeed trains, and not about DeepSpeed's own code.

    The following differs between releases of DeepSpeed or of torch: which functions of torch it
    calls, how it communicates below `deepspeed.comm`, which arguments of a collective it passes by
    name, into which tensors it partitions parameters, and when it takes away their gradients.
    """
    claim = invariant.claim
    calls_torch = claim.relation == "contain" and bool(claim.text("inner"))
    below = any(name.startswith("torch.distributed") for name in _names(invariant))
    place = claim.text("place")
    by_name = claim["form"] == "collective" and not place.startswith("arg.args.")
    partitioned = claim.text("variable") == "torch.Tensor" or claim["attribute"] == "grad"
    # The slips are those of loops that call torch: the engine steps partitions of its own.
    slip = claim.relation == "slip"
    return not (calls_torch or below or by_name or partitioned or slip)


def _alone(invariant: Invariant) -> bool:
    """Whether it is about what every program of PyTorch does, on one rank or on several."""
    subjects = (_several, _communicates, _scales)
    return not any(each(invariant) for each in subjects)


def _between(invariant: Invariant) -> bool:
    return _several(invariant) or _communicates(invariant)


RECIPES = (
    Recipe("pytorch", _alone, without=(*DEEPSPEED, *DEEPSPEED_OTHERS)),
    Recipe("ddp", _between, REPLICATED, (*SPLIT, *OTHERS)),
    Recipe("tensor_parallel", _between, SPLIT, (*REPLICATED, *OTHERS)),
    Recipe("fsdp", _between, SHARDED),
    Recipe("amp", _scales, SCALED),
    Recipe("deepspeed", _with_deepspeed, DEEPSPEED, DEEPSPEED_OTHERS),
)
