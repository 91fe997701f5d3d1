"""The environment that torchrun's agent gives a worker, for ranks that torchrun does not start.

Called by the fork server's `group`; a test compares it with the environment of a real torchrun.
"""

from __future__ import annotations

from collections.abc import Mapping


def worker_environment(
    base: Mapping[str, str], *, rank: int, world_size: int, port: int, run_id: str, error_file: str
) -> dict[str, str]:
    """The environment of one rank: `base` and the variables that torchrun sets.

    These are the variables of torch's `LocalElasticAgent._start_workers` and `run.main`, for one
    machine.  `port` is the port of the store through which the ranks meet; torch's decorator
    `@record` writes the rank's error to `error_file`.
    """
    return {
        **base,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "ROLE_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": base.get(
            "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
        ),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
