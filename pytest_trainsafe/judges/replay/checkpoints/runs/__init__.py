"""`--trainsafe-replay TRACE[@STEP]`: repeats a Run from the checkpoint before a step.

`request` reads the trace and chooses the checkpoint, `replayed` verifies the Run that continues
from it, and `spliced` joins the steps of both into one Trace for the judges.
"""
