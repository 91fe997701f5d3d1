"""Graphs of operators: what a rank computes in one step, as data.

graph      nodes and their arguments, with the checks that every reader's graph passes
fx_text    the text of a torch.fx graph, parsed and never executed
hlo_text   the text of an XLA HLO module, one program for all ranks
fx_values  the expressions that such a text may contain
"""
