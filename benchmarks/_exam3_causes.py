"""What a message must mention to name the true cause of a case of the third set of the exam.

The writer of the set wrote these patterns before the set was counted, and had not seen a message of
the judge.  They are searched for without regard to case.
"""

from __future__ import annotations

#: That something differs between ranks, in either order of the words.
_APART = (
    r"(ranks?|replicas?|processes)\b.*(differ|diverg|apart|equal|agree|same|drift|in sync)",
    r"(differ|diverg|apart|equal|agree|same|drift).*\b(ranks?|replicas?|processes)\b",
)

#: That a parameter gets no gradient or no update.
_UNTRAINED = (
    r"\bgrad(ient)?s?\b.*\b(none|zero|missing|absent)\b",
    r"\b(no|none|zero|without|missing|never)\b.*\bgrad(ient)?s?\b",
    r"\b(never|not) (be )?(trained|updated|chang|moved|learn)",
)

PATTERNS: dict[str, list[str]] = {
    "whale_calls": [
        r"sampler", r"multinomial", r"weights?\b.*\b(class|length|number|sample|row)",
        r"\b(indices|index|rows?|samples?|examples?)\b.*\b(only|few|two|never|distinct|repeat|same)",
        r"\b(only|few|two|never|distinct|repeat\w*|same)\b.*\b(indices|rows?|samples?|examples?)\b",
        r"DataLoader.*(repeat|duplicat|distinct)",
    ],
    "ticket_triage": [
        r"\bview\b|reshape|transpos|permut", r"\bh_n\b|hidden state|last state|final state",
        r"(mix|interleav|leak|mingl|blend).*(example|sample|batch|row)",
        r"(example|sample|row)s?\b.*(independ|depends? on (an)?other)",
        r"batch (dim|axis|order)",
    ],
    "depth_and_normals": [
        r"log_vars?\b", r"criterion", r"UncertaintyLoss",
        r"optimizer.*\b(miss|lack|omit|without|does not|no\b|not)",
        r"\b(not|no|outside|missing)\b.*\boptimizer",
        *_UNTRAINED,
    ],
    "sharp_images": [
        r"\bcritic\b|discriminator|optimizer_d\b", r"second optimizer|optimizer (1|2)\b",
        r"(optimizer|\bAdam\b).*\b(never|not|no|without|missing|skip\w*|stops?)\b.*\bstep",
        r"\.step\b.*\b(never|not called|missing|fewer|less often|skip\w*|no longer)\b",
        r"(zero_grad|backward)\b.*\bwithout\b.*\bstep",
        r"\b(never|not) (be )?(trained|updated|chang|moved|learn)",
    ],
    "three_hospitals": [
        r"create_graph", r"autograd\.grad|autograd_grad",
        r"second.?order|double.?backward|higher.?order", r"penalty|\bspread\b", r"grad_fn",
        r"(requires_grad|differentiable).*(false|not|no\b)|not differentiable|detached|no graph",
    ],
    "box_finder": [
        r"param_?groups?|group \d|groups?\b.*\b(rate|lr)\b", r"warm.?up",
        r"(\blr\b|\brates?\b).*(bias|norm|group|fall|decreas|ris|increas|start)",
        r"(bias|norm|group).*(\blr\b|learning rate)",
    ],
    "poem_decoder": [
        r"bfloat16|bf16|float32|\bdtype\b|precision|autocast|\bhalf\b", r"\bround",
        r"master (weight|cop)",
        r"(norm|weight|param\w*|value)s?\b.*(unchanged|(not|never|n't) (chang|updat|mov)|stays?\b)",
    ],
    "draft_head": [
        r"\bclip", r"norm\b.*\b(ranks?|local|shards?|global)\b",
        r"\b(ranks?|local|shards?|global)\b.*norm",
        r"all_reduce", r"to_local|DTensor", r"grad.*\bscaled?\b|scal\w+.*\bgrad",
    ],
    "staged_translator": [
        r"embedding", r"\btied\b|\btying\b|\bties\b|\bshare[sd]?\b", r"all_reduce|synchroni[sz]",
        r"(stages?|copies)\b.*(differ|diverg|apart|equal|agree|same|drift)",
        *_APART,
    ],
    "expert_mixer": [
        r"\bgate\b|router|routing", r"top.?k\b", r"weight.*\b(always )?(1|1\.0|one|constant)\b",
        r"normali[sz]",
        *_UNTRAINED,
    ],
    "cart_balancer": [
        r"target", r"moving_nn", r"alias|\bsame (object|module|tensor|storage|param|network|data)",
        r"\bshare[sd]?\b.*(storage|memory|param|data)|(storage|memory|param\w*|data)\b.*\bshare[sd]?\b",
        r"\b(copied|copy)\b.*(lag|every|each)|lags? behind",
    ],
    "style_adapters": [
        r"checkpoint|reentrant|recomput", r"lora_|adapter", r"requires?_(input_)?(grad|require)",
        r"embed_tokens", *_UNTRAINED,
    ],
    "ocean_grid": [
        r"running_(mean|var)|num_batches_tracked|running stat", r"Batch_?Norm",
        r"checkpoint|recomput", r"statistics",
        r"\b(twice|two times|2 times|second time)\b.*(forward|update|batch|step)",
    ],
    "sensor_imputer": [
        r"state_dict", r"deepcopy|\bcop(y|ied)\b|\bcloned?\b|snapshot", r"alias|reference",
        r"\bshare[sd]?\b.*(storage|memory|param|data)|same storage", r"\bbest\b",
        r"restor|load(ed|ing|s)?\b.*(no effect|unchanged|nothing|same|equal)",
    ],
    "two_towers": [
        r"load_state_dict", r"exp_avg|moments?\b|momentum|optimizer.?s? state|state of .*optimizer",
        r"\b(order|position|index)\b.*(param|state|optimizer)|(param\w*|state|optimizer)\b.*\border",
        r"swap|exchang|permut|mismatch|wrong param",
    ],
    "atom_sets": [
        r"padding|\bpad\b", r"normal_", r"(row|index) 0\b",
        r"Embedding.*(zero|init)|zero.*Embedding", r"init_params|initiali[sz]ation",
    ],
    "spam_filter": [
        r"accumulat", r"micro.?batch",
        r"backward\b.*(\.step\b|\b(times|before|between|per|for each) .*\b(step|update))",
        r"(\.step\b|\bstep\w* (of|by) .*optimizer).*\bbackward",
        r"zero_grad.*(backward|\.step\b)",
    ],
    "bird_finetune": [
        r"DistributedDataParallel|\bDDP\b|reducer", r"requires_grad", r"unfr(ee|o)z|thaw",
        r"all_?reduc|synchroni[sz]|averaged?\b", r"backbone", r"add_param_group", *_APART,
    ],
    "wide_reader": [
        r"fully_shard|FSDP", r"DTensor", r"\broot\b", r"lm_head|embed_tokens", r"\bshard",
        r"reduce|synchroni[sz]", *_APART,
    ],
    "column_row": [
        r"\bbias\b", r"\b(half|halved|divid\w+|factor|0\.5|1/2)\b.*\bgrad",
        r"\bgrad.*\b(half|halved|divided|factor)\b", r"RowwiseLinear", r"tensor.?parallel.*grad",
    ],
}  # fmt: skip
