"""Judges the rungs of the precision ladder in order, up to the first that is not a pass.

ladder         asks for the Runs of each rung, compares them and localises a fault
pair           judges two recorded Runs
one_rung       compares and judges the traces of one rung
runs           requests the Runs of one rung
fixed_dtype    programs that cannot run in a rung's dtype
known_axis     which axes a localisation rules out as the cause of a factor
known_setting  which setting of the optimizer an update is wrong by
summary        a Point's entry in the terminal's summary
facts          what a page says of a failure beside its first wrong tensor
left_out       what was not compared, and why, for a page
stages         the modules and the ranks of each stage of a pipeline, for a page
collectives    the lines that call collectives, and their axes, for a page
"""
