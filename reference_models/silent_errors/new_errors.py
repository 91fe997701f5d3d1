"""The errors of TrainCheck's Table 5, which were unknown when it found them."""

from __future__ import annotations

from pytest_trainsafe.reference_models.silent_errors.error import SilentError

_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/issues"
_ACCELERATE = "https://github.com/huggingface/accelerate/issues"

NEW = (
    SilentError(
        name="ac-2665",
        number="",
        what="the optimizer was created before the model was wrapped, and holds stale parameters",
        sources=(f"{_ACCELERATE}/2665", f"{_ACCELERATE}/3256"),
        place="user code",
        module="optimization.ac_2665",
        trigger=0,
        causes=("torch.optim.*.step", "torch.optim.*.zero_grad", "optimizer.*", "model.flat"),
    ),
    SilentError(
        name="ds-6770",
        number="",
        what="the optimizer has parameters of a layer that was replaced",
        sources=(f"{_DEEPSPEED}/6770", f"{_DEEPSPEED}/3718"),
        place="user code",
        module="checkpoints.ds_6770",
        trigger="start",
        causes=("*.engine.Engine.*", "optimizer.param_groups.*"),
        raises="KeyError",
    ),
    SilentError(
        name="ds-5489",
        number="",
        what="parameters that were frozen before the engine was made are not saved",
        sources=(f"{_DEEPSPEED}/5489", f"{_DEEPSPEED}/6771"),
        place="framework",
        module="checkpoints.ds_5489",
        trigger="end",
        causes=("*.engine.Engine.*", "*.checkpoint.*"),
    ),
    SilentError(
        name="ds-6714",
        number="",
        what="the stage with experts makes one more all-reduce than the other, and both wait",
        sources=(f"{_DEEPSPEED}/6714",),
        place="framework",
        module="parallel.ds_6714",
        trigger=0,
        causes=("torch.distributed.*",),
        judges=("launch", "learn"),
        axis="pp",
        raises="RuntimeError",
    ),
    SilentError(
        name="ds-6772",
        number="",
        what="the engine overwrites the attribute that says where the experts belong",
        sources=(f"{_DEEPSPEED}/6772", "https://github.com/deepspeedai/DeepSpeed/pull/6847"),
        place="framework",
        module="models.ds_6772",
        trigger="start",
        causes=("*.devices.place", "*.engine.Engine.*"),
    ),
    SilentError(
        name="ds-6089",
        number="",
        what="the capacity of experts follows from each rank's own tokens, and the ranks wait",
        sources=(f"{_DEEPSPEED}/6809",),
        place="framework",
        module="parallel.ds_6089",
        trigger=0,
        causes=("*.experts.*", "torch.distributed.*"),
        judges=("launch", "learn"),
        axis="dp",
        raises="RuntimeError",
    ),
)
