"""The trace: the data that the ranks of a Run record, and how it is read back.

run_spec      the complete description of a Run
schema        the manifest, and the events of tensors, modules, inputs and steps
facts, rng    the other events; `events` has the list of all types, to which judges add their own
writer        writes one rank's part; `reader` opens a trace, `manifest` and `check` validate it
tensors       tensors as payloads, snapshots and sketches
local_key_paths, stand_ins  outputs without a logical counterpart, and placeholder modules
"""
