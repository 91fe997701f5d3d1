"""What a message must mention to name the true cause of a case of the exam.

Each case of `learn_exam` has patterns, which were written before the exam was counted for the first
time; those of its other sets are in `_exam2_causes.py` and the like.  The sentences of
relations that were added later have patterns of their own (`_LATER`).  A message names the cause if
one of the patterns matches the broken rule or the record that breaks it.  This is a mechanical
test: it asks for the API, the attribute or the object of the cause, not for an explanation.
"""

from __future__ import annotations

import re

import _exam2_causes
import _exam3_causes
import _exam4_causes
import _exam5_causes
import _exam6_causes
import _exam7_causes
import _exam8_causes

_LOADER = r"DataLoader|[Ss]ampler|randperm|shuffle"
_SEED = r"seed|[Gg]enerator"
_HELD = r"\bholds?\b|in_optimizer|Parameter is updated|updates data of (some|every)|params"
_GRADS = r"zero_grad|\bgrad\b.*cleared|cleared.*\bgrad\b"
_GRAD = r"\bgrad of\b|\bgrad\b|backward"
_RATE = r"\blr\b|_last_lr|lr_scheduler|last_epoch|_step_count|scheduler"
_CLIP = r"clip_grad|norm of .*grad|grad.* norm"
_TIED = r"shared|tied|storage|torch\.nn\.Parameter.*(number|names)|load_state_dict|Embedding"
_FROZEN = r"requires_grad|\bholds?\b|in_optimizer"
_NORMS = r"running_mean|running_var|num_batches_tracked|batch_norm|BatchNorm|training"
_AVERAGE = r"AveragedModel|average|ema|shadow|lerp|deepcopy|\bdata\b.*(changes|every step|within)"
_MODE = r"training|\.eval\b|\.train\b|dropout|batch_norm|running_|phase"
_INIT = r"torch\.nn\.init|_\b.*init|init\.|normal_|uniform_|copy_|load_state_dict"
_RANKS = r"on (all |the )?ranks|all_reduce|equally often|broadcast|DistributedDataParallel"

_PATTERNS = {
    "data_worker_seeds": (_LOADER, _SEED),
    "data_set_epoch": (r"set_epoch", _LOADER),
    "data_same_on_ranks": (r"DataLoader.*ranks", r"differs? (between|on) .*ranks"),
    "data_shuffle_off": (_LOADER,),
    "data_first_batch": (_LOADER, r"__iter__"),
    "data_reseeded_epochs": (_SEED, _LOADER),
    "data_labels_apart": (_LOADER, _SEED),
    "optimizer_replaced_layer": (_HELD, r"grad .*(cleared|None)"),
    "optimizer_plain_list": (_HELD, r"grad .*(cleared|None)"),
    "optimizer_no_zero_grad": (_GRADS,),
    "optimizer_gan_leftover": (_GRADS,),
    "optimizer_decay_groups": (r"weight_decay",),
    "optimizer_missing_group": (_HELD, r"param_groups", r"grad .*(cleared|None)"),
    "optimizer_zero_grad_per_epoch": (_GRADS,),
    "scheduler_per_batch": (_RATE,),
    "scheduler_never_stepped": (_RATE,),
    "scheduler_order": (_RATE,),
    "scheduler_per_process": (_RATE,),
    "scheduler_twice": (_RATE,),
    "scheduler_or_optimizer": (r"optim\..*step", r"Parameter"),
    "amp_clip_scaled": (r"unscale_", r"clip_grad"),
    "amp_scaler_per_epoch": (r"GradScaler", r"scaler", r"scale"),
    "amp_stale_cache": (r"autocast",),
    "amp_backward_inside": (r"autocast", r"backward"),
    "clipping_before_backward": (_CLIP,),
    "clipping_after_step": (_CLIP,),
    "clipping_exhausted": (_CLIP,),
    "clipping_micro_batch": (_CLIP,),
    "clipping_some_modules": (_CLIP,),
    "tying_never": (_TIED,),
    "tying_assigned": (_TIED, r"assign"),
    "tying_resized": (_TIED,),
    "freezing_module_flag": (_FROZEN,),
    "freezing_norm_statistics": (_NORMS,),
    "freezing_overwritten": (_FROZEN,),
    "freezing_undone_by_train": (_NORMS,),
    "freezing_forward_no_grad": (r"no_grad|grad_enabled|requires_grad", _GRAD),
    "freezing_decayed": (r"requires_grad|frozen", r"Parameter.*only inside", r"data of"),
    "ema_only_at_end": (_AVERAGE,),
    "ema_not_restored": (_AVERAGE, r"copy_", r"data of"),
    "ema_without_buffers": (_AVERAGE, r"buffer", _NORMS),
    "ema_before_step": (_AVERAGE, r"before .*step"),
    "ema_evaluated_without": (_AVERAGE, r"phase"),
    "lora_merged_twice": (r"merge", r"data of"),
    "lora_base_trained": (_FROZEN,),
    "lora_adapters_frozen": (_FROZEN,),
    "accumulation_not_divided": (r"backward", r"loss", r"norm"),
    "accumulation_tail_dropped": (r"optim\..*step", _GRADS, r"backward"),
    "accumulation_cleared": (_GRADS,),
    "accumulation_token_mean": (r"loss", r"cross_entropy", r"backward"),
    "accumulation_carried_over": (_GRADS, r"backward"),
    "accumulation_every_step": (r"optim\..*step", r"backward"),
    "resume_cold_optimizer": (r"optimizer\.state", r"load_state_dict", r"\bstep of\b"),
    "resume_cold_scheduler": (_RATE, r"load_state_dict"),
    "resume_wrong_keys": (r"load_state_dict", r"missing|unexpected"),
    "resume_same_order": (_LOADER, _SEED),
    "resume_rate_reset": (_RATE, r"load_state_dict"),
    "evaluation_left_in_eval": (_MODE,),
    "evaluation_in_train_mode": (_MODE,),
    "evaluation_functional_dropout": (r"dropout", r"training"),
    "evaluation_with_graph": (r"no_grad|grad_enabled|requires_grad",),
    "evaluation_updates_norm": (_MODE,),
    "initialisation_after_load": (_INIT,),
    "initialisation_each_fit": (_INIT,),
    "initialisation_second_pass": (_INIT,),
    "distributed_module_bypass": (_RANKS, r"\.module\b|forward"),
    "distributed_no_sync": (r"no_sync", _RANKS, r"sync"),
    "distributed_unbroadcast": (_RANKS,),
    "distributed_token_mean": (_RANKS, r"loss|cross_entropy"),
    "distributed_sequence_norm": (_RANKS,),
    "distributed_router_drift": (_RANKS,),
    "distributed_fsdp_optimizer": (_HELD, r"DTensor", r"Parameter"),
    "distributed_fsdp_forward_first": (_HELD, r"DTensor", r"Parameter"),
    "distributed_gather_detached": (r"all_gather", _GRAD),
    "distributed_unused_expert": (_GRAD, _RANKS),
    "distributed_local_plateau": (_RATE, _RANKS),
}

#: Sentences of the relations `setup`, `mode`, `membership` and `slip`, which did not exist when the
#: exam was counted first, for the kinds of cases whose cause they say.
_TRAINS, _RUNS = r"\bis (frozen|trainable); ", r"runs in (the mode|training mode)"
_LATER = {
    "freezing": (_TRAINS, _RUNS),
    "lora": (_TRAINS,),
    "tying": (r"; also \S+",),
    "optimizer_replaced_layer": (_TRAINS,),
    "optimizer_plain_list": (_TRAINS, r"runs inside a model that contains it"),
    "optimizer_missing_group": (_TRAINS,),
    "optimizer_decay_groups": (_TRAINS,),
    "distributed_fsdp": (_TRAINS,),
    "evaluation": (_RUNS,),
    "freezing_forward_no_grad": (r"requires a gradient has one", r"the loss reaches"),
    "accumulation": (
        r"exactly \d+ times",
        r"micro-batches than before",
        r"before they are cleared",
    ),
    "clipping": (
        r"between clipping and the step",
        r"clipped",
    ),
    "lora_merged_twice": (r"a frozen parameter .* keeps its value",),
    "lora_adapters_frozen": (r"frozen at zero",),
    "distributed_unbroadcast": (r"is equal on them",),
}


def _of(case: str) -> re.Pattern[str]:
    later = [each for kind, found in _LATER.items() if case.startswith(kind) for each in found]
    return re.compile("|".join((*_PATTERNS[case], *later)))


CAUSES = {name: _of(name) for name in _PATTERNS} | {
    name: re.compile("|".join(found), re.IGNORECASE)
    for name, found in (
        _exam2_causes.PATTERNS
        | _exam3_causes.PATTERNS
        | _exam4_causes.PATTERNS
        | _exam5_causes.PATTERNS
        | _exam6_causes.PATTERNS
        | _exam7_causes.PATTERNS
        | _exam8_causes.PATTERNS
    ).items()
}


def names_cause(case: str, message: str) -> bool:
    """Whether a message mentions what causes the mistake of this case."""
    return bool(CAUSES[case].search(message))
