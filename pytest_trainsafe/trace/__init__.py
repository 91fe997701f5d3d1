"""The artefact: what the ranks of a Run record, and how it is read back.

run_spec      what a Run is
schema        the manifest, and the events of tensors, modules, inputs and steps
facts, rng    the other events; `events` knows all types, and a judge registers its own there
writer        writes one rank's part; `reader` opens the whole, `manifest` and `check` validate it
tensors       tensors as payloads, snapshots and sketches
local_key_paths, stand_ins  what has no logical counterpart, and modules that only stand in
"""
