"""Programs are recorded in this process, as a world of one rank."""

from tests.support.record.recording import _no_process_group, _one_seed, assign, record

__all__ = ["_no_process_group", "_one_seed", "assign", "record"]
