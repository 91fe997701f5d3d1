"""What a message must mention to name the true cause of a case of the second set of the exam.

The writer of the set wrote these patterns before the set was counted, and had not seen a message of
the judge.  They are searched for without regard to case.
"""

from __future__ import annotations

PATTERNS: dict[str, list[str]] = {
    "pitch_recogniser": [
        r"in.?place", r"__iadd__|\badd_\b", r"\bmutat", r"\bWaves\b", r"\.wave\b",
        r"(data ?set|stored (data|samples?)).*(chang|modif|writ)",
    ],
    "texture_learner": [
        r"\bcycle\b", r"shuffl", r"\b(Random)?Sampler\b",
        r"(same|repeated|identical) (order|batch)", r"(order|batch).*(repeat|identical|same)",
    ],
    "molecule_energies": [
        r"broadcast", r"24, ?24", r"unsqueeze", r"shapes?\b.*(differ|target|expand|grow|\[|\()",
    ],
    "story_decoder": [
        r"ignore_index", r"-100", r"\bEND\b", r"\beos\b", r"end (token|of)",
        r"(class|label|token|target) 0\b", r"\blabels?\b.*(never|ignored|missing|masked)",
    ],
    "review_classifier": [
        r"key_padding_mask", r"padding mask", r"mask.*(invert|opposite|revers|pad)",
        r"attention.*\bpad", r"\bpad.*attention",
    ],
    "sequence_tagger": [
        r"weight.?decay", r"param(eter)?_? ?groups?", r"norm[12]?\.weight", r"LayerNorm.*decay",
    ],
    "patch_classifier": [
        r"T_max", r"CosineAnnealing", r"(learning rate|\blr\b).*(ris|rose|increas|grow|cycl|up\b)",
        r"schedul.*(epoch|horizon|period|length|end)",
    ],
    "long_context_copier": [
        r"inv_freq", r"\brotary\b|\brope\b",
        r"(position|angle|frequenc|\bcos\b|\bsin\b).*(bfloat16|bf16|precision|round|dtype)",
    ],
    "world_model": [
        r"clip", r"generator.*(exhaust|empty|spent|used)", r"\bshorten\b",
        r"grad\w*.*norm.*(exceed|above|larger|more than|limit|max)",
    ],
    "chat_tuning": [
        r"\b(un)?tied\b|\btying\b", r"\bshar(e|es|ed|ing)\b.*(weight|parameter|tensor|storage)",
        r"(weight|parameter|tensor|storage).*\bshar(e|es|ed|ing)\b",
        r"head\.weight.*embed|embed.*head\.weight",
    ],
    "defect_tuning": [
        r"running_(mean|var)", r"running stat", r"Batch ?Norm", r"num_batches_tracked",
        r"backbone.*(train|eval)", r"frozen.*(buffer|train)",
    ],
    "ring_diffusion": [
        r"restor", r"swap_(in|out)", r"\bput back\b",
        r"(parameter|weight)s?.*(chang|writ|replac|cop).*(outside|between|average|shadow|valid)",
        r"(outside|between|average|shadow|valid).*(chang|writ|replac|cop).*(parameter|weight)",
    ],
    "adapter_tuning": [
        r"lora_", r"\badapter", r"checkpoint", r"use_reentrant",
        r"requires?_? ?grad.*(input|embed)", r"(input|embed).*requires?_? ?grad",
    ],
    "caption_decoder": [
        r"accumulat", r"micro.?batch", r"\bcounts?\b", r"reduction",
        r"(divid|normali[sz]|weigh|scal|averag|mean).*(token|window)",
        r"(token|window).*(divid|normali[sz]|weigh|scal|averag|mean)",
    ],
    "warm_start": [
        r"load_state_dict", r"\bstrict\b", r"(missing|unexpected) (key|name)", r"prefix",
        r"state_?dict.*(not|never|no|none)", r"(not|never|no|none)\b.*\b(load|restor)",
    ],
    "attention_forecaster": [
        r"drop_?out", r"dropout_p", r"scaled_dot_product_attention|\bsdpa\b",
        r"eval\w*.*(random|stochastic|differ)",
    ],
    "query_ranker": [
        r"padding_idx", r"padding (row|vector|embedding|index|token)", r"row 0\b", r"weight\[0\]",
        r"Embedding.*padding",
    ],
    "corridor_agent": [
        r"detach", r"no_grad", r"stop.?grad", r"requires_grad",
        r"(target|goal|future|bootstrap|next).*grad", r"grad.*(target|goal|future|bootstrap|next)",
    ],
    "replica_diffuser": [
        r"\.module\b", r"\bDDP\b|DistributedDataParallel", r"all.?reduce", r"synchroni[sz]",
        r"grad\w*.*(rank|replica)", r"(rank|replica)\w*.*grad",
    ],
    "shared_forecast": [
        r"plateau", r"(learning rate|\blr\b|schedul\w*).*(rank|differ)",
        r"rank.*(learning rate|\blr\b|schedul)", r"(validation|metric).*(reduc|rank|local)",
    ],
    "sharded_pretraining": [
        r"fully_shard", r"\bFSDP", r"DTensor", r"optimizer.*(param|weight)",
        r"(param|weight)\w*.*optimizer", r"(param|weight)\w*.*(never|not|no)\b.*(chang|updat|mov)",
    ],
    "split_mlp": [
        r"all.?reduce", r"\bSpread\b", r"partial",
        r"grad\w*.*(rank|replica)", r"(rank|replica)\w*.*grad",
    ],
    "routed_experts": [r"\bexperts?\b"],
    "paired_encoders": [
        r"all_?gather", r"\bgather", r"\bExchange\b", r"requires_grad|grad_fn|autograd",
        r"(no|not|without|lost|missing|lack\w*)\b.*\bgradient",
    ],
}  # fmt: skip
