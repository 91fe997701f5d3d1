"""What a message must mention to name the true cause of a case of the eighth set of the exam.

The writer of the set wrote these patterns before the set was counted, and had seen no messages of
the judge but the fragments in `_exam_causes.py`.  They are searched for without regard to case.
"""

from __future__ import annotations

from _exam_phrases import APART

PATTERNS: dict[str, list[str]] = {
    "weir_flow": [
        r"\bfused\b",
        r"\bgates?\b|gated",
        r"\bchunk|\bsplit|\bshard(s|ed|ing)?\b|\bslic",
        r"(whole|full|unsplit).*(weight|layer|model)",
    ],
    "bell_melodies": [
        r"\bgrad\b.*(clear|\bnone\b|accumulat|add|sum|stale|kept|left|reset|zero)",
        r"(clear|accumulat|stale|reset|zero_grad).*\bgrad",
        r"\bplaces?\b|buffer|inbox|\bslots?\b",
        r"\brecv\b.*grad|grad.*\b(send|recv)\b|\bsent\b.*grad",
    ],
    "long_ledgers": [
        r"\bplaces\b",
        r"position",
        r"offset",
        r"arange",
        r"(index|indices|inputs?)\b.*(embedding).*(rank|same|equal)",
        r"embedding.*(index|indices|inputs?)\b.*(rank|same|equal|differ)",
    ],
    "peat_layers": [
        r"clip",
        r"\bnorm of .*grad|grad.*\bnorm\b",
        r"\blimit\b",
        r"grad.*scal|scal.*grad",
    ],
    "kite_paths": [
        r"\bseeds?\b|manual_seed",
        r"\brng\b|generator|random",
        r"\brandn(_like)?\b|\brand\b",
        r"\bnoise\b",
        r"\btimes?\b.*(rank|replica)",
        r"(draws?|drawn|numbers).*(same|equal|differ).*(rank|replica)",
    ],
    "herb_recipes": [
        r"world.?size|number of (ranks|processes)",
        r"grad.*(divided|divisor|scal|averag|half|twice|times)",
        r"(divided|divisor|scal|averag|half|twice|times).*grad",
        r"\bloss\b.*(multipl|divided|scal|rank|token|half|twice|times)",
        r"tokens?\b",
    ],
    "post_sorting": [
        r"\bbias\b",
        r"\bwork\b",
        r"buffer",
        r"expert|router|routing",
        *APART,
    ],
    "riddle_endings": [
        r"\bpad(s|ded|ding)?\b",
        r"\bend(ing|s)?\b.*(label|token|sign|word)|\beos\b",
        r"labels?\b",
        r"targets?\b",
        r"ignore_index|-100|\bignored\b",
    ],
    "buoy_pilot": [
        r"bootstrap",
        r"truncat|terminat|time.?limit|\bdone\b",
        r"\breturns\b",
        r"\bvalues?\b.*(ahead|next|last)|critic",
    ],
    "pebble_forger": [
        r"create_graph|double.?backward|second.?order",
        r"penalty|slopes?\b",
        r"autograd\.grad",
        r"(no|without|not).*\b(graph|grad_fn)\b|\bgrad_fn\b|detach",
        r"requires_grad.*loss|loss.*(does not|never) reach",
    ],
    "leaf_views": [
        r"\bcat\b|concat",
        r"\bdims?\b|dimensions?",
        r"shapes?\b",
        r"\bpairs?\b|positive",
        r"\bviews?\b",
        r"\bhal(f|ves)\b",
    ],
    "crab_joints": [
        r"\bflip",
        r"mirror",
        r"\bleft\b|\bright\b",
        r"swap",
        r"joints?\b|keypoint",
        r"augment",
        r"targets?\b.*(inputs?|picture|image)",
    ],
    "twin_gauges": [
        r"scaler",
        r"\bscale\b",
        r"unscale",
        r"growth",
    ],
    "fog_horns": [
        r"plateau",
        r"\bmode\b.*\b(min|max)\b|\b(min|max)\b.*\bmode\b",
        r"accuracy|metric",
        r"\blr\b|learning.rate",
        r"schedul",
    ],
    "moss_tuning": [
        r"\blr\b|learning.rate|\brates?\b",
        r"param(eter)?.?groups?",
        r"layer.?(wise)?.?decay",
    ],
    "swell_forecast": [
        r"\bema\b",
        r"averag",
        r"\bupdates\b",
        r"\bkeep\b|\bdecay\b|lerp",
        r"teacher",
        r"checkpoint|state_dict|resum",
    ],
    "dialect_adapters": [
        r"alpha",
        r"\bscal(e|es|ed|ing)\b",
        r"adapter|lora",
        r"\bdown\b|\bup\b",
        r"(load|restor|resum|copy_).*(output|differ|same|chang)",
    ],
    "brine_density": [
        r"\bbest\b",
        r"deepcopy|\bcopy\b|copies|alias|reference|shares? (storage|memory)|storage",
        r"state_dict",
        r"(restor|load).*(chang|no effect|same|nothing|differ)",
    ],
    "rare_calls": [
        r"sampler",
        r"DataLoader",
        r"shuffl",
        r"(examples?|samples?|rows?|data|inputs?|batch).*(repeat|same|few|again|duplicat|distinct)",
        r"(repeat|same|few|duplicat|distinct).*(examples?|samples?|rows?|data|inputs?|batch)",
        r"\bweights\b.*(class|sample|len)",
    ],
    "glass_faults": [
        r"focal",
        r"reduction",
        r"cross_entropy|CrossEntropyLoss|\bentropy\b",
        r"per.(sample|example)",
        r"\bloss\b.*\b(mean|averag|scalar|shape|weigh)",
    ],
}
