"""What a message must mention to name the true cause of a case of the fourth set of the exam.

The writer of the set wrote these patterns before the set was counted, and had not seen a message of
the judge.  They are searched for without regard to case.
"""

from __future__ import annotations

#: That something differs between ranks, in either order of the words.
_APART = (
    r"(ranks?|replicas?|processes)\b.*(differ|diverg|apart|unequal|not equal|agree|drift|in sync)",
    r"(differ|diverg|apart|unequal|not equal|agree|drift).*\b(ranks?|replicas?|processes)\b",
)

#: That a parameter gets no gradient or no update.
_UNTRAINED = (
    r"\bgrad(ient)?s?\b.*\b(none|zero|missing|absent)\b",
    r"\b(no|none|zero|without|missing|never)\b.*\bgrad(ient)?s?\b",
    r"\b(never|not|no longer) (be )?(trained|updated|chang|moved?|learn)",
)

#: That gradients are not reduced over ranks.
_UNREDUCED = (
    r"\b(no|not|never|without|missing)\b.*\b(all.?reduce|reduced?|reduction|synchroni[sz]|summed)",
    r"\b(all.?reduce|reduction|synchroni[sz]ation)\b.*\b(missing|absent|fewer|skipped|no longer)\b",
)

PATTERNS: dict[str, list[str]] = {
    "glucose_forecast": [
        r"deep.?copy|\bclone|\balias|same (tensor|storage|memory|object)",
        r"\bshares? (its )?(storage|memory)",
        r"\breferences?\b",
        r"load_state_dict.*\b(chang|same|equal|nothing|no effect|itself|live|current|own)",
        r"(restor|go(es)? back|return)\w*.*\b(nothing|no|not|same|current|live)\b",
        r"(saved|kept|best|checkpoint\w*) (state|weights|parameters).*\b(chang|updat|live|current)",
    ],
    "vessel_masks": [
        r"same (module|object|layer|parameter|instance|weight|tensor)",
        r"\bshare[sd]?\b|\btied\b|\bsharing\b",
        r"\b(one|single) (module|layer|conv\w*|branch)\b.*\b(times|more than once|several|reused)",
        r"\b(called|used|applied|runs?)\b.*\b(three|3|several|multiple|more) times",
        r"(fewer|missing|number of|count of).*\b(parameters|modules|layers)\b",
    ],
    "card_transactions": [
        r"batch_first",
        r"\b(batch|first|wrong|other|sample) (dim|axis|dimension)",
        r"(across|between|over|mix\w*|depend\w*|independent).*\b(samples|rows|examples|batch|payments)\b",
        r"(samples|rows|examples|batch)\b.*\b(mix|depend|independent|leak|influence|attend)",
        r"\b(transpos|permut)",
    ],
    "quiet_student": [
        r"teacher.*(train|eval|mode|dropout)",
        r"\beval\b|\b(train(ing)?|evaluation) mode\b|training=True|\.training\b",
        r"dropout.*(active|on|appl|enabled|frozen|no grad)",
        r"(frozen|no_grad|not trained|without grad\w*).*(dropout|random|mode)",
        r"(same|equal) input.*(differ|other)|not (deterministic|repeatable)|nondeterministic",
    ],
    "engine_sounds": [
        r"reduction|batchmean|\bkl_?div",
        r"\b(mean|averag\w*)\b.*\b(instead of|rather than|not)\b.*\bsum",
        r"\bsum\w*\b.*\b(instead of|rather than|not|became|now)\b.*\b(mean|averag)",
        r"\b(loss|gradient|term)\b.*\b(smaller|too small|scaled?|factor|times|magnitude|ratio)",
        r"\b(divided|averaged?|mean)\b.*\b(class|element|dim|axis|last)",
    ],
    "recipe_writer": [
        r"\bshift",
        r"\b(off by one|two (tokens|steps|words|positions) ahead|after the next)\b",
        r"\b(labels?|targets?)\b.*\b(twice|shift|offset|input|align|lag|next|input_ids|ids|ignore|-100)",
        r"\bcollate",
    ],
    "lake_crossing": [
        r"\b(done|terminal|terminated|over|ends?)\b.*\b(mask|bootstrap|target|ignor|used)",
        r"\b(bootstrap|target)\w*\b.*\b(done|terminal|over|mask|end)",
        r"\b(never|not|no longer|un)\s?(used|read)\b",
        r"\b(target|wanted|value)s?\b.*\b(grow|larger|exceed|inflat|overestimat|above)",
    ],
    "adapter_reader": [
        *_UNTRAINED,
        r"checkpoint|reentrant|recomput",
        r"requires?_?.?grad|enable_input_require_grads",
        r"(adapter|lora_\w+)\b.*(grad|updat|chang|train|move)",
    ],
    "gain_tuning": [
        *_UNTRAINED,
        r"bfloat16|bf16|half|low(er)? precision|\bdtype\b",
        r"\bround|resolution|\bulp\b|\beps(ilon)?\b|too small",
        r"master (weights|copy)|float32|fp32",
    ],
    "leaf_sorter": [
        r"ReduceLROnPlateau|plateau|patience",
        r"\bmode\b.*(min|max)|['\"](min|max)['\"]",
        r"\b(learning )?rate\b|\blr\b",
        r"\bscheduler\b",
    ],
    "cached_tiles": [
        r"in.?place",
        r"\b(data ?set|data|tiles?|cache\w*)\b.*\b(modif|overwrit|mutat|chang|grow|drift|differ)",
        r"\b(inputs?|samples?|batch\w*)\b.*\b(grow|drift|scale|range|std|spread|variance|larger)",
        r"normali[sz]\w*.*(twice|again|second|repeated|every epoch)",
        r"\b(clone|copy|alias)",
        r"(same|one) (sample|index|row|tile)\b.*\b(differ|other|chang)",
    ],
    "cloud_cover": [
        r"momentum",
        r"running_(mean|var)|running (mean|var|statistic|average)|\bstatistics\b",
    ],
    "thin_network": [
        r"\bmask|prun|sparsi|removed (weights|entries)",
        r"\bmomentum",
        r"\b(zeros?|zeroed)\b.*\b(chang|again|no longer|stay|remain|reviv|become|moved)",
        r"(nonzero|non-zero)\b",
        r"zero grad\w*.*\b(chang|updat|moved?)|\b(chang|updat|moved?).*zero grad",
    ],
    "tide_tables": [
        r"\border",
        r"\bsort",
        r"(optimizer|rmsprop|square_avg).*\bstate\b|\bstate\b.*(optimizer|rmsprop|square_avg)",
        r"square_avg",
        r"load_state_dict.*(optimizer|rmsprop|other|wrong|another|match|param|index|name)",
    ],
    "ward_notes": [
        r"accumul|micro.?batch",
        r"\b(one|1|first|fewer|different|number of|seven|7)\b.*\bbackward",
        r"\bbackward\b.*\b(once|one|1|before|per|eight|8|number|times|count|without|step)",
        r"zero_grad.*(before|without|discard|drop|lost|unused|clear)",
        r"off.by.one",
        r"gradients?\b.*\b(dropped|discarded|lost|unused|cleared|thrown)",
    ],
    "smooth_sampler": [
        r"\bema\b|averag|shadow",
        r"(resume|checkpoint|load_state_dict|restor)\w*.*(averag|not|same|equal|model|ema|copy|live)",
        r"(averag\w*|ema)\b.*\b(reset|restart|equal|same|copy|live|overwrit|jump)",
    ],
    "thawed_replicas": [
        *_APART,
        *_UNREDUCED,
        r"\bDDP\b|DistributedDataParallel|\bwrap",
        r"requires_grad|thaw|unfr[eo]",
        r"\ball.?reduce|\breducer\b",
    ],
    "halved_layers": [
        *_APART,
        r"(inputs?|batch\w*|data|rows|samples)\b.*\b(differ|unequal|other|not (the )?(same|equal))",
        r"data.?parallel|dp_?rank|tensor.?parallel|tp_?rank|global rank",
        r"(loader|sampler|shard)\b.*\brank",
    ],
    "two_stage_writer": [
        *_APART,
        *_UNREDUCED,
        r"\btied?\b|\bshared\b",
        r"\b(copies|copy)\b.*\b(differ|apart|drift|equal|diverg)",
        r"\ball.?reduce",
    ],
    "sharded_rain": [
        *_APART,
        *_UNREDUCED,
        r"\b(local|shard\w*)\b.*\bnorm|\bnorm\b.*\b(local|shard|rank|reduce|global|all)",
        r"\bclip\w*\b.*\b(local|shard|rank|reduce|global|all)",
        r"\ball.?reduce",
    ],
    "long_letters": [
        r"\b(position|place|offset|rotary|rope|arange)",
        r"\b(start|begin)s? at (0|zero)",
        r"(ranks?|processes)\b.*\b(same|equal|identical)",
        r"\b(same|equal|identical)\b.*\b(ranks?|processes)\b",
        r"\b(chunk|half|part of the sequence|sequence)\b.*\b(start|offset|rank|local)",
    ],
    "turned_shards": [
        *_APART,
        *_UNREDUCED,
        r"contiguous|\bcopy\b|\bdiscard",
        r"\b(partial|unreduced|not reduced)\b",
        r"(result|output)\b.*\ball.?reduce|\ball.?reduce\w*\b.*\b(result|output|unused|used|lost|copy)",
    ],
    "wide_columns": [
        r"\bseed|random state|\brng\b|generator",
        r"(ranks?|processes|shards?)\b.*\b(same|equal|identical|duplicat|copies|repeat)",
        r"\b(same|equal|identical|duplicat\w*|repeat\w*)\b.*\b(ranks?|processes|shards?|columns?)\b",
        r"\binitiali[sz]",
    ],
    "token_shares": [
        r"world.?size|number of (ranks|processes|replicas)",
        r"\b(averag\w*|mean|divid\w*|scal\w*)\b.*\b(twice|again|ranks?|world|factor|half)",
        r"\b(gradient|loss|update)s?\b.*\b(half|smaller|too small|scaled?|factor|0\.5|ratio)",
        r"gradient_divide_factor|divide.?factor",
    ],
}
