"""What a message must mention to name the true cause of a case of the sixth set of the exam.

The writer of the set wrote these patterns before the set was counted, and had not seen a message of
the judge.  They are searched for without regard to case.
"""

from __future__ import annotations

#: That something differs between ranks, in either order of the words.
_APART = (
    r"(ranks?|replicas?|processes)\b.*(differ|diverg|apart|unequal|not equal|agree|drift|in sync)",
    r"(differ|diverg|apart|unequal|not equal|agree|drift).*\b(ranks?|replicas?|processes)\b",
    r"(same|equal|identical).*\b(ranks?|replicas?|processes)\b",
)

PATTERNS: dict[str, list[str]] = {
    "review_stars": [r"softmax", r"probabilit", r"sums? to (1|one)", r"logit"],
    "postcard_writer": [r"ignore_index", r"-100", r"ignored", r"labels?\b", r"\bpad"],
    "machine_hum": [r"batch_first", r"attention", r"examples?.*(depend|mix)", r"across.*batch"],
    "coastal_tiles": [r"permut", r"reshape", r"\bview\b", r"channels?", r"strides?"],
    "ice_cores": [
        r"exp_avg",
        r"moment",
        r"optimi[sz]er.*(state|new|construct|created|once|__init__)",
        r"(new|another|second|several).*optimi[sz]er",
        r"Adam\.__init__",
    ],
    "cough_sounds": [r"plateau", r"\blr\b", r"learning rate", r"\bmode\b", r"schedul"],
    "far_needles": [r"inv_freq", r"rotary", r"bfloat16", r"dtype", r"buffer", r"\bcos\b|\bsin\b"],
    "dune_denoiser": [r"shadow", r"\bema\b", r"average", r"never.*chang", r"bfloat16", r"dtype"],
    "bus_arrivals": [
        r"load_state_dict",
        r"state_dict",
        r"deepcopy",
        r"best",
        r"(shares?|same).*(storage|memory)",
    ],
    "clinic_letters": [
        r"lora",
        r"checkpoint",
        r"\bgrad\b.*\bnone\b",
        r"no grad",
        r"without.*grad",
        r"never.*(chang|updat)",
        r"requires?_grad",
    ],
    "mineral_spectra": [r"momentum", r"running_(mean|var)", r"batch.?norm", r"statistic"],
    "tall_tower": [r"rng", r"checkpoint", r"dropout", r"recomput", r"random", r"mask"],
    "rowing_agent": [r"\bdone\b", r"terminat", r"truncat", r"bootstrap"],
    "sound_captions": [r"labels?\b", r"targets?\b", r"arange", r"offset", *_APART],
    "coarse_weights": [r"ignored", r"log_scale", r"all_reduce", r"\bgrad\b.*rank", *_APART],
    "column_plan": [
        r"sampl",
        r"num_replicas",
        r"(batch|data|inputs?|examples?|rows?).*(differ|same|equal|rank)",
        *_APART,
    ],
    "twin_halves": [
        r"seed",
        r"generator",
        r"initiali[sz]",
        r"weight.*(same|equal|identical)",
        r"(same|equal|identical).*weight",
        *_APART,
    ],
    "river_levels": [
        r"seed",
        r"shuffl",
        r"permutation",
        r"(batch|data|inputs?|examples?|rows?|order).*(repeat|same|overlap|distinct|differ)",
    ],
    "staged_forecast": [r"clip", r"\bnorm\b", *_APART],
    "resumed_sketches": [
        r"rng",
        r"random",
        r"seed",
        r"generator",
        r"(batch|data|inputs?|noise|examples?|rows?).*(repeat|same|distinct|differ)",
        *_APART,
    ],
}
