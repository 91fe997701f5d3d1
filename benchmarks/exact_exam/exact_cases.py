"""The cases of the exam: a program, a Point, a bug, what a report should name, and a source.

Each program has its bugs by the argument `bug`; without it, it is the healthy twin.  The sources are
issues and pull requests by "owner/repository#number", and papers by their arXiv number.
`exact_plain.py` checks the exam itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A bug of a program at a Point.

    `names` are patterns of fnmatch for the modules and parameters at which a report may start; none
    if the bug concerns all parameters alike.  `kind` is TrainVerify's class of the bug, or another
    word.
    """

    module: str
    bug: str
    point: dict[str, Any]
    kind: str
    names: tuple[str, ...]
    source: str
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.module.removeprefix('exact_')}-{self.bug}"

    @property
    def twin(self) -> str:
        """The name of the healthy twin: the program, the Point and the arguments."""
        words = [f"{key}{value}" for key, value in (self.point | self.args).items()]
        return "-".join([self.module.removeprefix("exact_"), "healthy", *words])


COMMUNICATION, DEVICE, PARTITION, SCALE, SCHEDULE, CUT, DANGLING, OPTIMIZER, RECOMPUTE = (
    "communication",
    "device assignment",
    "partitioning",
    "scaling",
    "scheduling",
    "C1 uncuttable",
    "C2 dangling",
    "optimizer",
    "recomputation",
)


def _rows() -> Iterator[Case]:
    """All cases, program by program."""
    for module, point, args, bugs in _TABLE:
        for bug, kind, names, source in bugs:
            yield Case(module, bug, point, kind, tuple(names.split()), source, args)


_MLP = [
    ("row_unreduced", COMMUNICATION, "blocks.1.fall", "arXiv 2506.09280"),
    ("column_grad", COMMUNICATION, "blocks.1.rise* blocks.1.norm*", "NovaSky-AI/SkyRL#1886"),
    ("row_bias", COMMUNICATION, "blocks.1.fall*", "awslabs/slapo#10"),
    ("wrong_group", COMMUNICATION, "", "arXiv 2506.15961"),
    ("reduced_twice", COMMUNICATION, "", "huggingface/picotron#5"),
    ("norm_in_both", COMMUNICATION, "blocks.*.norm*", "NVIDIA/Megatron-LM#443"),
]
_FROZEN = [
    ("frozen_no_sum", COMMUNICATION, "up* enter*", "NVIDIA/Megatron-LM#670"),
    ("adapter_no_sum", COMMUNICATION, "up* enter*", "modelscope/mcore-bridge#173"),
    ("adapter_scale", SCALE, "down*", "OpenPipe/ART#619"),
    ("adapter_after_sum", COMMUNICATION, "down*", "NVIDIA-NeMo/Megatron-Bridge#5634"),
]
_VOCAB = [
    ("global_rank", DEVICE, "table*", "arXiv 2506.15961"),
    ("padded_offset", PARTITION, "criterion loss", "arXiv 2506.09280"),
    ("smoothing_local", SCALE, "criterion loss", "NVIDIA/Megatron-LM#737"),
    ("z_loss_local", COMMUNICATION, "criterion loss", "NVIDIA/TransformerEngine#2707"),
    ("gathered_again", COMMUNICATION, "criterion loss", "NVIDIA/Megatron-LM#7452"),
    ("max_dropped", COMMUNICATION, "criterion loss", "NVIDIA/Megatron-LM#7466"),
    ("tied_twice", COMMUNICATION, "table*", "arXiv 2506.15961"),
]
_HEADS = [
    ("qkv_straight", PARTITION, "attention.fused*", "awslabs/slapo#46"),
    ("qkv_reversed", PARTITION, "attention.fused*", "tenstorrent/tt-metal#52818"),
    ("heads_scale", SCALE, "attention*", "arXiv 2506.15961"),
]
_SHARED = [
    ("shared_no_sum", COMMUNICATION, "attention.shared*", "bigcode-project/Megatron-LM#37"),
    ("norm_no_sum", COMMUNICATION, "attention.query_norm*", "NVIDIA-NeMo/RL#3716"),
]
_SEQUENCE = [
    ("norm_no_sum", COMMUNICATION, "last*", "NVIDIA/Megatron-LM#1446"),
    ("bias_no_sum", COMMUNICATION, "block.down*", "NVIDIA/Megatron-LM#236"),
    ("gather_split", COMMUNICATION, "block.up* block.norm*", "awslabs/slapo#20"),
    ("scatter_sum", COMMUNICATION, "embed*", "NVIDIA/Megatron-LM#1635"),
    ("norm_mean", SCALE, "last* block.norm*", "EleutherAI/gpt-neox#1259"),
    ("local_mean", CUT, "head*", "arXiv 2506.15961"),
    ("gather_order", PARTITION, "block.up*", "NVIDIA/TransformerEngine#530"),
]
_CLIP = [
    ("shard_norm", COMMUNICATION, "grad_norm*", "facebookresearch/fairscale#167"),
    ("replicas_counted", COMMUNICATION, "grad_norm*", "NVIDIA-NeMo/RL#3788"),
    ("norm_of_norms", SCALE, "grad_norm*", "facebookresearch/fairscale#167"),
    ("before_reduction", SCHEDULE, "", "NVIDIA-NeMo/Automodel#3477"),
]
_ZERO = [
    ("mean_of_means", SCALE, "", "pytorch/torchtitan#2318"),
    ("decay_flat", OPTIMIZER, "first.weight second.weight", "ServiceNow/Fast-LLM#545"),
    ("shard_order", PARTITION, "", "arXiv 2506.15961"),
    ("average_stale", SCHEDULE, "average", "OpenRLHF/OpenRLHF#1357"),
    ("state_restart", OPTIMIZER, "", "arXiv 2506.15961"),
    ("unscattered", COMMUNICATION, "", "arXiv 2506.15961"),
]
_TOKENS = [
    ("mean_of_means", SCALE, "", "huggingface/transformers#34191"),
    ("rank_tokens", SCALE, "", "huggingface/transformers#34373"),
    ("not_divided", SCALE, "", "verl-project/verl#3332"),
    ("last_only", SCHEDULE, "", "NVIDIA-NeMo/Automodel#3530"),
    ("tokens_late", SCALE, "", "meta-pytorch/torchtune#1875"),
    ("weighted_twice", SCALE, "", "pytorch/torchtitan#2318"),
]
_RING = [
    ("positions", PARTITION, "attention*", "NVIDIA/Megatron-LM#560"),
    ("own_block", PARTITION, "attention*", "vllm-project/vllm-omni#767"),
    ("no_rescale", SCALE, "attention*", "meta-pytorch/attention-gym#200"),
    ("stale_keys", SCHEDULE, "attention* embed*", "huggingface/diffusers#14265"),
    ("row_sum", SCALE, "attention* embed*", "huggingface/picotron#37"),
    ("cp_times", SCALE, "", "NVIDIA/Megatron-LM#906"),
    ("shift_after_cut", PARTITION, "loss head*", "huggingface/transformers#36607"),
    ("gradients_stay", COMMUNICATION, "attention* embed*", "arXiv 2506.15961"),
]
_ULYSSES = [
    ("order", PARTITION, "attention*", "arXiv 2309.14509"),
    ("norm_early", COMMUNICATION, "attention*", "ByteDance-Seed/VeOmni#419"),
    ("not_returned", COMMUNICATION, "attention*", "arXiv 2309.14509"),
    ("mean_of_ranks", SCALE, "", "hiyouga/LlamaFactory#10475"),
    ("conv_cut", CUT, "convolution*", "state-spaces/mamba#597"),
    ("conv_grad", DANGLING, "convolution* embed*", "NVIDIA/Megatron-LM#5917"),
]
_PIPELINE = [
    ("last_first", SCHEDULE, "layers.* embed*", "pytorch/pytorch#139404"),
    ("tied_no_sum", COMMUNICATION, "embed*", "NVIDIA/Megatron-LM#844"),
    ("local_number", DEVICE, "layers.2", "huggingface/transformers#24381"),
    ("grads_cleared", SCHEDULE, "layers.* embed*", "NVIDIA-NeMo/Automodel#3530"),
    ("targets_shifted", SCHEDULE, "loss", "arXiv 2506.15961"),
    ("skip_dropped", DANGLING, "embed*", "arXiv 2506.15961"),
]
_PIPELINE_AGAIN = [("buffer_reused", SCHEDULE, "layers.* norm*", "deepspeedai/DeepSpeed#2800")]
_PIPELINE_CLIP = [
    ("stage_norm", COMMUNICATION, "grad_norm*", "pytorch/torchtitan#649"),
    ("tied_counted", COMMUNICATION, "grad_norm*", "NVIDIA/Megatron-LM#844"),
]
_MOE = [
    ("expert_scale", SCALE, "moe.experts.*", "deepspeedai/DeepSpeed#6546"),
    ("combine_order", PARTITION, "moe*", "arXiv 2506.15961"),
    ("gate_after", PARTITION, "moe*", "arXiv 2506.15961"),
    ("aux_local", COMMUNICATION, "loss moe*", "databricks/megablocks#85"),
    ("aux_scale", SCALE, "loss moe*", "NVIDIA/Megatron-LM#5047"),
    ("expert_offset", DEVICE, "moe*", "arXiv 2506.15961"),
    ("router_no_sum", COMMUNICATION, "moe.router*", "facebookresearch/fairseq#4220"),
]
_IMAGES = [
    ("local_statistics", COMMUNICATION, "norm*", "ptrblck/pytorch_misc#5"),
    ("mean_variance", SCALE, "norm*", "leggedrobotics/rsl_rl#226"),
    ("statistics_detached", DANGLING, "norm* first*", "arXiv 2506.15961"),
    ("running_local", COMMUNICATION, "norm.running", "NVIDIA-Merlin/HugeCTR#181"),
    ("gather_detached", DANGLING, "second* loss output", "mlfoundations/open_clip#616"),
    ("own_index", DEVICE, "loss", "mlfoundations/open_clip#616"),
]
_IMAGES_UNEVEN = [("unweighted", SCALE, "norm*", "pytorch/pytorch#22192")]
_RECOMPUTE = [
    ("state_moved", RECOMPUTE, "block*", "NVIDIA-NeMo/Speech#14861"),
    ("other_gelu", RECOMPUTE, "block.gelu block.rise*", "arXiv 2506.15961"),
    ("twice_summed", COMMUNICATION, "block*", "arXiv 2506.15961"),
]
_RECOMPUTE_SHARDED = [
    ("other_group", RECOMPUTE, "block*", "NVIDIA/Megatron-LM#7452"),
    ("shard_order", PARTITION, "block*", "NVIDIA/Megatron-LM#7452"),
]

_Bugs = list[tuple[str, str, str, str]]
_TABLE: list[tuple[str, dict[str, Any], dict[str, Any], _Bugs]] = [
    ("exact_mlp", {"tp": 2, "dp": 2}, {}, _MLP),
    ("exact_frozen", {"tp": 2}, {}, _FROZEN),
    ("exact_vocab", {"tp": 2, "dp": 2}, {}, _VOCAB),
    ("exact_heads", {"tp": 2}, {}, _HEADS),
    ("exact_heads", {"tp": 2}, {"fused": False}, _SHARED),
    ("exact_sequence", {"tp": 2, "sp": True}, {}, _SEQUENCE),
    ("exact_clip", {"tp": 2, "dp": 2}, {}, _CLIP),
    ("exact_zero", {"dp": 2}, {}, _ZERO),
    ("exact_tokens", {"dp": 2}, {}, _TOKENS),
    ("exact_ring", {"cp": 2}, {}, _RING),
    ("exact_ulysses", {"cp": 2}, {}, _ULYSSES),
    ("exact_pipeline", {"pp": 2}, {}, _PIPELINE),
    ("exact_pipeline", {"pp": 2, "recompute": True}, {}, _PIPELINE_AGAIN),
    ("exact_pipeline", {"pp": 2}, {"clip": True}, _PIPELINE_CLIP),
    ("exact_moe", {"dp": 2, "ep": 2}, {}, _MOE),
    ("exact_images", {"dp": 2}, {}, _IMAGES),
    ("exact_images", {"dp": 2}, {"count": 5}, _IMAGES_UNEVEN),
    ("exact_recompute", {"tp": 2, "recompute": True}, {}, _RECOMPUTE),
    (
        "exact_recompute",
        {"tp": 2, "dp": 2, "recompute": True},
        {"sharded": True},
        _RECOMPUTE_SHARDED,
    ),
]

CASES: list[Case] = list(_rows())
_MORE_POINTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("exact_mlp", {"tp": 4}, {}),
    ("exact_frozen", {"tp": 4}, {}),
    ("exact_vocab", {"tp": 3}, {}),
    ("exact_sequence", {"tp": 4, "sp": True}, {"length": 8}),
    ("exact_clip", {"tp": 4}, {}),
    ("exact_zero", {"dp": 3}, {"count": 3}),
    ("exact_tokens", {"dp": 4}, {}),
    ("exact_ring", {"cp": 4}, {}),
    ("exact_pipeline", {"pp": 2}, {"count": 5}),
    ("exact_moe", {"dp": 4, "ep": 4}, {}),
]
#: A case for each healthy twin: the first one with this program, Point and arguments.  Those of
#: more Points have no bug.
TWINS: list[Case] = list(
    {case.twin: case for case in reversed(CASES)}.values(),
)[::-1] + [Case(module, "", point, "", (), "", args) for module, point, args in _MORE_POINTS]
