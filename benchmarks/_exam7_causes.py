"""What a message must mention to name the true cause of a case of the seventh set of the exam.

The writer of the set wrote these patterns before the set was counted, and had not seen a message of
the judge.  They are searched for without regard to case.
"""

from __future__ import annotations

from _exam_phrases import APART, REDUCED

PATTERNS: dict[str, list[str]] = {
    "harbour_experts": [r"expert", *REDUCED, r"grad.*(scal|world.?size|times)"],
    "folded_scrolls": [
        r"labels?\b",
        r"targets?\b",
        r"ignore_index",
        r"-100",
        r"\bignored\b",
        r"shift",
        r"boundar|border",
    ],
    "echo_phrases": [
        r"\bwords\b",
        r"\btied\b|\btying\b|shared",
        r"embedding",
        *REDUCED,
        *APART,
    ],
    "kiln_readings": [
        r"dropout",
        r"\brng\b|random",
        r"seed",
        r"generator",
        r"masks?\b",
        *APART,
    ],
    "plankton_fsdp": [
        r"mesh",
        r"replicat",
        r"reduce_scatter|all_?reduce",
        r"fully_shard|fsdp",
        *REDUCED,
        *APART,
    ],
    "orchard_yield": [
        r"load_state_dict",
        r"state_dict",
        r"deepcopy",
        r"\bbest\b",
        r"\b(score|metric|validation)\b.*(rank|reduc|averag|own)",
        *APART,
    ],
    "gull_tracks": [
        r"DataLoader",
        r"IterableDataset|\bstream",
        r"sampler",
        r"get_worker_info|num_replicas",
        r"(batch|data|inputs?|examples?|rows?|samples?).*(repeat|same|overlap|distinct|differ|equal)",
        r"duplicat",
        *APART,
    ],
    "tram_noise": [
        r"scaler",
        r"found_inf",
        r"overflow|\binf(inite|inity)?\b|non.?finite",
        r"\bscale\b",
        r"skip.*step|step.*skip",
        *APART,
    ],
    "ridge_depths": [
        r"\blr\b",
        r"learning.rate",
        r"max_lr|initial_lr|base_lr",
        r"OneCycle",
        r"schedul",
        r"param(eter)?.?groups?",
    ],
    "frost_patterns": [
        r"\bema\b",
        r"averag",
        r"restor|stored?\b|copy_to",
        r"shadow",
        r"(outside|between|without|other than|only).*(optimi[sz]er|step)",
        r"(chang|updat|overwrit|written).*(outside|between|evaluat|validat|no_grad)",
        r"(evaluat|validat).*(chang|updat|overwrit|written|weights?|parameters?)",
    ],
    "court_rulings": [
        r"requires?_grad",
        r"frozen|freez",
        r"\bscore\b|\bhead\b|classifier",
        r"adapter|lora",
        r"never.*(chang|updat)",
        r"\bgrad\b.*\bnone\b|no grad|without.*grad",
        r"\bholds?\b.*param|param.*\bheld\b|in.?optimi[sz]er",
    ],
    "lichen_photos": [
        r"running_(mean|var)",
        r"momentum",
        r"batch.?norm",
        r"statistic",
        r"num_batches_tracked",
        r"checkpoint",
        r"recomput",
    ],
    "alloy_strength": [
        r"split",
        r"subset",
        r"randperm|permutation",
        r"held.?out|validation|leak|overlap",
    ],
    "sea_shanties": [r"mask", r"causal", r"attention", r"\bfuture|\blater (token|position)s?"],
    "glaze_textures": [r"commit", r"\bbeta\b", r"code.?book|\bcodes\b|quanti", r"detach"],
    "ligand_pairs": [
        r"edges?\b|edge_index",
        r"\bindex(es)?\b|indices|index_add",
        r"offset|increment|renumber",
        r"graphs?\b",
        r"examples?.*(depend|mix)",
        r"across.*batch",
    ],
    "lantern_keeper": [
        r"broadcast",
        r"shapes?\b",
        r"\bdims?\b|dimensions?",
        r"squeeze",
        r"\breturns\b|critic|\bvalues? (loss|head|function)",
        r"mse_loss",
    ],
    "coral_shapes": [
        r"\bsnr\b|signal",
        r"noise level",
        r"loss.*\bweigh(t|ts|ted|ting)\b",
        r"\bweigh(t|ts|ted|ting)\b.*loss",
        r"clamp",
    ],
    "grain_sorter": [r"kl_?div", r"divergence", r"batchmean|reduction", r"distil", r"teacher"],
    "verdict_scores": [
        r"\bpad(s|ded|ding)?\b|padding_(side|idx)",
        r"\blast (word|token|position|state|step)",
        r"lengths?\b",
    ],
}
