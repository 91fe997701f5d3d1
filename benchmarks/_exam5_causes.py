"""What a message must mention to name the true cause of a case of the fifth set of the exam.

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
    "house_prices": [r"broadcast", r"shapes?\b.*(loss|target|differ)", r"pairs"],
    "pocket_student": [r"kl_div", r"log.?(softmax|prob)", r"negative"],
    "slot_queries": [
        r"not.*(register|parameter)",
        r"no parameter",
        r"leaf",
        r"slots",
        r"never.*chang",
    ],
    "chapter_writer": [r"\blr\b", r"learning rate", r"param_groups?", r"schedul"],
    "voice_swap": [r"scaler", r"step.*(twice|once|again|more than)", r"unscale"],
    "torn_weights": [r"clip", r"\bnorm\b", *_APART],
    "flower_heads": [r"requires?_grad", r"froz", r"freez"],
    "picture_captions": [r"\btraining\b", r"\btrain\(", r"\beval\b", r"mode", r"dropout"],
    "pseudo_labels": [
        r"(batch|data|inputs?|examples?|order).*(repeat|same|again|differ)",
        r"shuffl",
    ],
    "rare_faults": [
        r"sampl",
        r"(batch|data|examples?|rows?|inputs?).*(repeat|same|distinct|differ)",
    ],
    "winter_scans": [r"in.?place", r"(data|dataset|input|scan|sample).*chang", r"__getitem__"],
    "pole_walker": [r"detach", r"critic", r"advantage", r"gradient.*(two|both|loss)"],
    "leaf_average": [r"update_bn", r"statistics", r"running_(mean|var)", r"batch.?norm", r"averag"],
    "half_gradients": [
        r"accumulat",
        r"micro.?batch",
        r"gradient.*(drop|lost|unused|replac|discard)",
    ],
    "night_shift": [r"split", r"(validat|held|evaluat).*train", r"random_split", r"resum"],
    "walking_crowd": [r"buffer", r"norm\.(mean|var|count)", *_APART],
    "face_margin": [r"centres", r"all.?reduce", r"DistributedDataParallel", *_APART],
    "street_stream": [r"(batch|data|inputs?|ids|letters).*\branks?\b", *_APART],
    "spiky_rain": [r"step.*\branks?\b", *_APART],
    "byte_patches": [r"world.?size", r"divid", r"\bmean\b.*ranks?", r"averag"],
}
