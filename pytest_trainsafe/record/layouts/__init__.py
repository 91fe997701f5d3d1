"""Finds the Layouts of the tensors that a rank holds.

dtensor       from DTensor placements
attributes    from attributes on parameters, in Megatron-LM's convention
flat_ranges   which range of a flattened parameter this rank's optimizer holds
"""
