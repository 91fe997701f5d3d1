"""megatron-core's GPT is captured with its bucketed gradients, and proved; planted bugs are not."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-third-party")

from pytest_trainsafe.compat.fake_group import fake_group
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.graphs.modules import capture, untraced
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove
from tests.support.third_party import megatron_cpu
from tests.support.third_party.megatron_gpt import LENGTH, VOCABULARY, model_of, plant

# megatron-core warns of the packages that it does without, and torch of names that it uses.
pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES = 4
Parameters = dict[str, nn.Parameter]


def built(point: Point) -> tuple[Any, Any]:
    """The model of the present rank, and its configuration."""
    megatron_cpu.apply()
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=point.size("tp"),
        pipeline_model_parallel_size=point.size("pp"),
        create_gloo_process_groups=False,
    )
    random.model_parallel_cuda_manual_seed(0)
    context: Any = SimpleNamespace(point=point, dtype=torch.float32)
    return model_of(context, 2)


def run_schedule(wrapped: Any, text: torch.Tensor, positions: torch.Tensor) -> None:
    """Two micro-batches, in the order of Megatron-core's schedule for this rank."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    def forward_step(numbers: Any, chunk: nn.Module) -> Any:
        part = text.chunk(2)[next(numbers)]
        losses = chunk(part[:, :-1], positions[: len(part)], None, labels=part[:, 1:])
        return losses, lambda output: (output.mean(), {})

    get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=iter(range(2)), model=[wrapped],
        num_microbatches=2, seq_length=LENGTH, micro_batch_size=len(text) // 2, forward_only=False,
    )  # fmt: skip


def captured(
    axes: dict[str, Any], rank: int, bug: str = "", scheduled: bool = False
) -> tuple[Graph, Parameters]:
    """Forward, backward and reduction of gradients on one rank, and the rank's parameters."""
    point = Point.of(axes)
    with fake_group(rank, point.world_size):
        held = dict(built(point)[0].named_parameters())
    place = rank // point.size("tp") if point.size("pp") == 1 else 0
    share = SAMPLES // point.size("dp")

    def step(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        from megatron.core import distributed

        with untraced():
            model, config = built(point)
        for path, module in model.named_modules():
            for name, old in list(module.named_parameters(recurse=False)):
                new = nn.Parameter(given[f"{path}.{name}"])
                vars(new).update(vars(old))
                setattr(module, name, new)
        ddp = distributed.DistributedDataParallelConfig()
        wrapped = distributed.DistributedDataParallel(config, ddp, model)
        plant(bug, model, wrapped)
        wrapped.zero_grad_buffer()
        numbers = torch.arange(SAMPLES * (LENGTH + 1)) * 37 % VOCABULARY
        text = numbers.view(SAMPLES, -1)[share * place : share * (place + 1)]
        positions = torch.arange(LENGTH).expand(share, -1)
        if scheduled:
            config.finalize_model_grads_func = distributed.finalize_model_grads
            run_schedule(wrapped, text, positions)
        else:
            wrapped(text[:, :-1], positions, None, labels=text[:, 1:]).mean().backward()
            distributed.finalize_model_grads([wrapped])
        return {f"grad.{name}": each.main_grad for name, each in model.named_parameters()}

    # The name of a rank's generator depends on values; no dropout draws from it.
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaRNGStatesTracker, "fork", lambda *_: nullcontext())
        values = {name: torch.zeros_like(each) for name, each in held.items()}
        return capture(step, values, rank=rank, ranks=point.world_size), held


def relation(name: str, whole: nn.Parameter, part: nn.Parameter) -> str:
    if whole.shape == part.shape:
        return "replica"
    sizes = zip(whole.shape, part.shape, strict=True)
    dim = next(dim for dim, (all_of_it, own) in enumerate(sizes) if all_of_it != own)
    half = part.shape[0] // 2  # Gate and up are cut each.
    return f"concat {dim} over tp" + (f" parts {half}+{half}" if "linear_fc1" in name else "")


def outcome(axes: dict[str, Any], bug: str = "") -> Proof | Refutation:
    sequential, whole = captured({}, 0)
    found = [captured(axes, rank, bug) for rank in range(2)]
    inputs = {name: relation(name, whole[name], part) for name, part in found[0][1].items()}
    stated = {
        "mesh": {name: size for name, size in axes.items() if name != "sp"},
        "inputs": inputs,
        "outputs": {f"grad.{name}": f"{each} of grad.{name}" for name, each in inputs.items()},
    }
    return prove(stated_problem(sequential, [graph for graph, _ in found], stated))


@pytest.mark.parametrize("axes", [{"tp": 2}, {"tp": 2, "sp": True}, {"dp": 2}], ids=str)
def test_a_step_of_megatrons_gpt_is_proved_with_each_gradient(axes):
    found = outcome(axes)
    assert isinstance(found, Proof)
    assert len(found.outputs) == 16


BUGS: dict[str, tuple[dict[str, Any], str]] = {
    "norm_without_mark": ({"tp": 2, "sp": True}, "grad.decoder.final_layernorm.weight"),
    "input_gradient": ({"tp": 2}, "grad.decoder.layers.1.input_layernorm.weight"),
    "mean_over_dp": ({"dp": 2}, "grad.decoder.final_layernorm.weight"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_of_megatrons_gpt_is_refuted(bug):
    axes, wrong = BUGS[bug]
    found = outcome(axes, bug)
    assert isinstance(found, Refutation)
    assert wrong in found.wrong


def test_the_stages_of_megatrons_pipeline_are_proved_with_each_gradient():
    sequential, whole = captured({}, 0, scheduled=True)
    stages = [captured({"pp": 2}, rank, scheduled=True) for rank in range(2)]
    inputs = {
        name.replace("layers.0", f"layers.{rank}"): f"at pp={rank} of {name}"
        for rank, (_, held) in enumerate(stages)
        for name in held
    }
    assert inputs.keys() == whole.keys()
    outputs = {f"grad.{name}": text.replace(" of ", " of grad.") for name, text in inputs.items()}
    stated = {"mesh": {"pp": 2}, "inputs": inputs, "outputs": outputs}
    found = prove(stated_problem(sequential, [graph for graph, _ in stages], stated))
    assert isinstance(found, Proof)
    assert len(found.outputs) == 16
