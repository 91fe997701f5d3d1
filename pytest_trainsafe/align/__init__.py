"""Aligns the tensors of a Run: logical tensors, those that a single device would hold.

dataflow      the order in which tensors are compared
logical       a logical tensor of a trace
merge         merges the parts of ranks, and reports where they do not fit; makes a `merged`
assembly      joins parts that fit together, by a cached plan
flat          joins ranges of flattened tensors
replicas      compares replicas bit by bit
copies        finds the initial parameters of which two ranks hold copies
sketched      adds up sketches, for tensors whose values were not kept
updates       the update that a step made to a parameter
calls         renumbers the calls of a module that several pipeline stages call
with_tensors  copies a trace with other tensors
words         layouts and rows, in the messages of findings
"""
