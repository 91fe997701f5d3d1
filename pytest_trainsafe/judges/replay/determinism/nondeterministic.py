"""The operators that torch documents as nondeterministic, and why their results may change.

The list follows the documentation of `torch.use_deterministic_algorithms`. An operator is looked up
by its name in ATen, such as "index_add_". The entry has the operator's name in that documentation,
such as "torch.index_add", and the reason why its result may change.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

_ATOMIC = "several threads add to the same element, in any order"
_CHOICE = "the library that computes it chooses among algorithms when it runs"
_RACE = "several of its elements may be written to one place, in any order"

#: The documented name and the reason, by the operator's name in ATen, in which "*" stands for any
#: text.
_LISTED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"),
        ("torch.Tensor.index_put", f"{_ATOMIC}, or {_RACE}"),
    ),
    **dict.fromkeys(("put", "put_"), ("torch.Tensor.put_", f"{_ATOMIC}, or {_RACE}")),
    **dict.fromkeys(("scatter_add", "scatter_add_"), ("torch.Tensor.scatter_add_", _ATOMIC)),
    **dict.fromkeys(("index_add", "index_add_"), ("torch.index_add", _ATOMIC)),
    **dict.fromkeys(("index_copy", "index_copy_"), ("torch.Tensor.index_copy", _RACE)),
    **dict.fromkeys(
        ("scatter_reduce", "scatter_reduce_"), ("torch.Tensor.scatter_reduce", _ATOMIC)
    ),
    **dict.fromkeys(("scatter", "scatter_"), ("torch.Tensor.scatter", _RACE)),
    **dict.fromkeys(
        ("convolution", "convolution_backward", "cudnn_convolution*"), ("torch.nn.Conv", _CHOICE)
    ),
    "histc": ("torch.histc", _ATOMIC),
    "bincount": ("torch.bincount", _ATOMIC),
    "cumsum": ("torch.cumsum", "its partial sums are added in an order that may change"),
    "median*": ("torch.median", "it may choose any of several equal elements"),
    "_embedding_bag*": ("torch.nn.EmbeddingBag", _ATOMIC),
    "_ctc_loss_backward": ("torch.nn.CTCLoss", _ATOMIC),
    "nll_loss2d*": ("torch.nn.NLLLoss", _ATOMIC),
    "avg_pool3d_backward": ("torch.nn.AvgPool3d", _ATOMIC),
    "_adaptive_avg_pool2d_backward": ("torch.nn.AdaptiveAvgPool2d", _ATOMIC),
    "_adaptive_avg_pool3d_backward": ("torch.nn.AdaptiveAvgPool3d", _ATOMIC),
    "adaptive_max_pool2d_backward": ("torch.nn.AdaptiveMaxPool2d", _ATOMIC),
    "fractional_max_pool2d_backward": ("torch.nn.FractionalMaxPool2d", _ATOMIC),
    "fractional_max_pool3d_backward": ("torch.nn.FractionalMaxPool3d", _ATOMIC),
    "max_pool3d_with_indices_backward": ("torch.nn.MaxPool3d", _ATOMIC),
    "max_unpool*": ("torch.nn.MaxUnpool", _RACE),
    "upsample_*_backward": ("torch.nn.functional.interpolate", _ATOMIC),
    "reflection_pad*_backward": ("torch.nn.ReflectionPad", _ATOMIC),
    "replication_pad*_backward": ("torch.nn.ReplicationPad", _ATOMIC),
    "grid_sampler_*_backward": ("torch.nn.functional.grid_sample", _ATOMIC),
}


def listed(operator: str) -> tuple[str, str] | None:
    """The name under which torch documents an operator as nondeterministic, and the reason.

    `operator` is a name such as "aten.index_add_.default". None if torch does not list the
    operator.
    """
    name = base_name(operator)
    return next((entry for known, entry in _LISTED.items() if fnmatchcase(name, known)), None)


def base_name(operator: str) -> str:
    """The operator's name in ATen, without its overload; "" for an operator outside of ATen.

    For example "index_add_" for "aten.index_add_.default".
    """
    namespace, _, rest = operator.partition(".")
    return rest.partition(".")[0] if namespace == "aten" else ""
