"""The programs of this folder, their Points, and how each of them obtains its data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A program: the name, the module with its `train`, the Point, and how its data are drawn."""

    name: str
    module: str
    point: dict[str, int]
    drawn: str


CASES: tuple[Case, ...] = (
    Case(
        "drawn_generator_per_microbatch",
        "drawn_generator_per_microbatch",
        {"tp": 2},
        "torch.randn without dtype, from a generator for each micro-batch, then converted.",
    ),
    Case(
        "drawn_generator_in_loop",
        "drawn_generator_in_loop",
        {"tp": 2},
        "torch.randn in the training's dtype, in the loop, from one generator.",
    ),
    Case(
        "drawn_dataset_before_loop",
        "drawn_dataset_before_loop",
        {"dp": 2},
        "The whole data set by torch.randn in float32, from one generator.",
    ),
    Case(
        "drawn_default_in_loop",
        "drawn_default_in_loop",
        {"tp": 2},
        "Weights and samples by torch.randn from the default generator, samples in the loop.",
    ),
    Case(
        "drawn_default_before_loop",
        "drawn_default_before_loop",
        {"dp": 2},
        "All samples by torch.randn in float32 from the default generator, before the loop.",
    ),
    Case(
        "drawn_uniform_images",
        "drawn_uniform_images",
        {"dp": 2},
        "Images by uniform_ in place and torch.rand, in the training's dtype.",
    ),
    Case(
        "drawn_normal_in_place",
        "drawn_normal_in_place",
        {"tp": 2},
        "normal_ in place into one buffer of the training's dtype, in the loop.",
    ),
    Case(
        "drawn_torch_normal",
        "drawn_torch_normal",
        {"dp": 2},
        "Samples and initial values by torch.normal with a generator.",
    ),
    Case(
        "drawn_randn_like",
        "drawn_randn_like",
        {"tp": 2},
        "Noise by torch.randn_like from the default generator, in the loop.",
    ),
    Case(
        "drawn_exponential_weights",
        "drawn_exponential_weights",
        {"dp": 2},
        "Weights by empty().exponential_ from the default generator; all ranks draw all.",
    ),
    Case(
        "drawn_bernoulli_masks",
        "drawn_bernoulli_masks",
        {"tp": 2},
        "Masks by bernoulli and bernoulli_ from the generator that drew the samples.",
    ),
    Case(
        "drawn_randint_tokens",
        "drawn_randint_tokens",
        {"tp": 2},
        "Tokens by torch.randint from a generator for each micro-batch.",
    ),
    Case(
        "drawn_randperm_shuffle",
        "drawn_randperm_shuffle",
        {"dp": 2},
        "One data set, shuffled by torch.randperm in each epoch.",
    ),
    Case(
        "drawn_multinomial_words",
        "drawn_multinomial_words",
        {"tp": 2},
        "Words by torch.multinomial from one generator, in the loop.",
    ),
    Case(
        "drawn_numpy_default_rng",
        "drawn_numpy_default_rng",
        {"tp": 2},
        "NumPy's default_rng for each micro-batch, in float64, then converted.",
    ),
    Case(
        "drawn_numpy_random_state",
        "drawn_numpy_random_state",
        {"dp": 2},
        "The whole data set by NumPy's RandomState before the first step.",
    ),
    Case(
        "drawn_numpy_global",
        "drawn_numpy_global",
        {"tp": 2},
        "NumPy's global generator after np.random.seed, in the loop.",
    ),
    Case(
        "drawn_python_random",
        "drawn_python_random",
        {"dp": 2},
        "Python's random: gauss and uniform before the loop, shuffle in each epoch.",
    ),
    Case(
        "drawn_loader_shuffle",
        "drawn_loader_shuffle",
        {"tp": 2},
        "A DataLoader that shuffles with a generator of its own, without workers.",
    ),
    Case(
        "drawn_loader_workers",
        "drawn_loader_workers",
        {"tp": 2},
        "Two workers of a shuffling DataLoader draw each sample by its number.",
    ),
    Case(
        "drawn_loader_one_worker",
        "drawn_loader_one_worker",
        {"dp": 2},
        "One worker of a DataLoader draws this rank's samples by NumPy.",
    ),
    Case(
        "drawn_distributed_sampler",
        "drawn_distributed_sampler",
        {"dp": 2},
        "A DistributedSampler divides a shuffled data set by single samples; whole steps.",
    ),
    Case(
        "drawn_numpy_file",
        "drawn_numpy_file",
        {"tp": 2},
        "Tokens from a file of np.save, mapped into memory and read at random offsets.",
    ),
    Case(
        "drawn_torch_file",
        "drawn_torch_file",
        {"dp": 2},
        "A file of torch.save that the first rank writes and all ranks load.",
    ),
    Case(
        "drawn_safetensors_file",
        "drawn_safetensors_file",
        {"tp": 2},
        "A file of safetensors that each rank writes, read by micro-batch.",
    ),
    Case(
        "drawn_linear_regression",
        "drawn_linear_regression",
        {"dp": 2},
        "x @ w + b with noise by torch.normal, before the first step.",
    ),
    Case(
        "drawn_noise_in_forward",
        "drawn_noise_in_forward",
        {"tp": 2},
        "Samples before the loop; noise in the model's forward from its own generator.",
    ),
    Case(
        "drawn_default_dtype_bfloat16",
        "drawn_default_dtype_bfloat16",
        {"tp": 2},
        "Initial values while the default dtype is bfloat16; samples by torch.randn in the loop.",
    ),
    Case(
        "drawn_default_dtype_float64",
        "drawn_default_dtype_float64",
        {"dp": 2},
        "torch.randn without dtype while the default dtype is float64; noise on gradients.",
    ),
    Case(
        "drawn_device_context",
        "drawn_device_context",
        {"dp": 2},
        "The default generator inside `with torch.device`; all ranks draw each whole step.",
    ),
)
