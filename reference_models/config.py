"""The sizes of the reference models.  Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

#: Tokens are bytes.
VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The sizes that every transformer has.

    `hidden` is a multiple of `heads`.  `seq_len` is the length of the longest sequence.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    seq_len: int = 32
    vocabulary: int = VOCABULARY
    #: The sizes that may be 0.
    may_be_none: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name not in self.may_be_none)
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise ValueError(f"{field.name}={value} must be at least {least}")
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden={self.hidden} cannot be divided into heads={self.heads} equal heads; "
                "choose a hidden size that is a multiple of the number of heads"
            )

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class GPTConfig(TransformerConfig):
    """The sizes of a GPT, whose MLP is four times as wide as its hidden states.

    There are as many heads of keys and of values as of queries.  With `tied`, the output layer
    shares the weight of the word embeddings.
    """

    tied: bool = False
    bias: ClassVar[bool] = True
    gated: ClassVar[bool] = False

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and of values."""
        return self.heads

    @property
    def ffn(self) -> int:
        """The width inside the MLP."""
        return 4 * self.hidden


@dataclass(frozen=True, slots=True)
class LlamaConfig(TransformerConfig):
    """The sizes of a Llama, which has a gated MLP of inner width `ffn`.

    `kv_heads` is the number of heads of keys and of values; several heads of queries share each.
    """

    kv_heads: int = 2
    ffn: int = 96
    bias: ClassVar[bool] = False
    gated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        TransformerConfig.__post_init__(self)
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads={self.heads} cannot share kv_heads={self.kv_heads} evenly; choose a "
                "number of heads that is a multiple of kv_heads"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"hidden={self.hidden} over heads={self.heads} gives heads of width "
                f"{self.head_dim}, but rotary positions rotate pairs of elements; choose sizes "
                "that give heads of even width"
            )


@dataclass(frozen=True, slots=True)
class MoEConfig(LlamaConfig):
    """The sizes of a Llama whose layers have `experts` MLPs; each token goes to `top_k` of them.

    An expert takes at most `capacity_factor` times its even share of the tokens' choices in a
    micro-batch; with 0 there is no limit.  `balance` is the coefficient of the balancing loss.
    """

    experts: int = 4
    top_k: int = 2
    capacity_factor: float = 0.0
    balance: float = 0.01

    def __post_init__(self) -> None:
        LlamaConfig.__post_init__(self)
        if self.top_k > self.experts:
            raise ValueError(
                f"top_k={self.top_k} is greater than experts={self.experts}; choose a top_k of at "
                f"most {self.experts}, or more experts"
            )

    @property
    def expert_ffn(self) -> int:
        """The width inside an expert."""
        return self.ffn


@dataclass(frozen=True, slots=True)
class DeepSeekConfig(TransformerConfig):
    """The sizes of a DeepSeek-V3: latent attention, shared and routed experts, one further token.

    Queries are made from a latent vector of width `q_rank`, keys and values from one of `kv_rank`.
    A head of queries and keys has `head_dim` elements without positions and `rope_dim` rotated
    ones; all heads share the rotated keys.  The first `dense_layers` layers have an MLP of width
    `ffn`.  The others, and the layer that predicts a further token if `dense_layers` is at most
    `layers`, have `experts` experts of width `expert_ffn`, of which each token goes to `top_k`,
    and `shared` experts of this width for all tokens.  The weights of a token's experts add up to
    `route_scale`.  A bias changes by `bias_speed` in a step.  `mtp_weight` is the weight of the
    loss of the further token.
    """

    q_rank: int = 24
    kv_rank: int = 16
    rope_dim: int = 8
    ffn: int = 96
    dense_layers: int = 1
    experts: int = 4
    top_k: int = 2
    expert_ffn: int = 32
    shared: int = 1
    route_scale: float = 2.5
    bias_speed: float = 0.001
    mtp_weight: float = 0.3
    may_be_none: ClassVar[tuple[str, ...]] = ("dense_layers",)
    bias: ClassVar[bool] = False
    gated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        TransformerConfig.__post_init__(self)
        if self.top_k > self.experts:
            raise ValueError(
                f"top_k={self.top_k} is greater than experts={self.experts}; choose a top_k of at "
                f"most {self.experts}, or more experts"
            )
        if self.rope_dim % 2:
            raise ValueError(
                f"rope_dim={self.rope_dim} is odd, but rotary positions rotate pairs of elements; "
                "choose an even width"
            )

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and of values."""
        return self.heads

    @property
    def key_dim(self) -> int:
        """The width of a head of queries or keys, with its rotated elements."""
        return self.head_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class MixedConfig(MoEConfig):
    """The structure of a model that combines the blocks of all other models.

    `norm` is one of NORMS.  `mixtures`, one of MIXTURES, says which layers are mixtures of experts.
    With `tied`, the output layer shares the weight of the embedding.  `unused` adds a layer that is
    never called.
    """

    gated: bool = True  # type: ignore[misc]  # a class variable of the other configurations
    bias: bool = False  # type: ignore[misc]
    norm: str = "rms"
    mixtures: str = "none"
    tied: bool = False
    unused: bool = False

    def __post_init__(self) -> None:
        MoEConfig.__post_init__(self)
        for name, known in (("norm", NORMS), ("mixtures", tuple(MIXTURES))):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(known)}")


#: The norms that a MixedConfig can have.
NORMS = ("rms", "layer")

#: Which layers of a MixedConfig are mixtures of experts.  The value n means every n-th layer; 0
#: means none.
MIXTURES = {"none": 0, "all": 1, "second": 2}

#: The configurations whose attention and MLP are built by the same code.
AnyConfig = GPTConfig | LlamaConfig | DeepSeekConfig

#: The configurations whose experts are built by the same code.
ExpertsConfig = MoEConfig | DeepSeekConfig


def qkv_blocks(config: AnyConfig) -> tuple[int, int, int]:
    """The widths of all queries, all keys and all values, in the order of the fused projection."""
    narrow = config.kv_heads * config.head_dim
    return config.hidden, narrow, narrow


def q_up_blocks(config: DeepSeekConfig) -> tuple[int, int]:
    """The widths of all queries without positions, and of all rotated ones, as projected."""
    return config.heads * config.head_dim, config.heads * config.rope_dim


def kv_up_blocks(config: DeepSeekConfig) -> tuple[int, int]:
    """The widths of all keys without positions, and of all values, as projected."""
    return config.heads * config.head_dim, config.heads * config.head_dim


def fc1_blocks(config: AnyConfig, ffn: int | None = None) -> tuple[int, ...]:
    """The widths of the blocks in the output of the first layer of an MLP of width `ffn`.

    These are gates and values for a gated MLP, else one block.  The default is the MLP of a layer
    without experts.
    """
    return (config.ffn if ffn is None else ffn,) * (2 if config.gated else 1)
