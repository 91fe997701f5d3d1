"""The trace of a Run: the files that its ranks write, and the code that writes and reads them.

run_spec         the complete description of a Run
schema           the manifest, and the events of tensors, modules, inputs and steps
facts            the events of other facts, such as casts and collectives
rng              the events of random draws
operators        the events of single operators
events           the list of all event types, to which judges add their own
writer           writes one rank's part of a trace
reader           opens a trace; `manifest` and `check` validate its manifest and its events
tensors          tensors as payloads, snapshots and sketches
local_key_paths  names the tensors that have no counterpart in the reference
stand_ins        finds placeholder modules of pipeline stages
"""
