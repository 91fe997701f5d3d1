"""Judges whether a training that is resumed from a checkpoint goes on as if never interrupted.

judge         asks for the Runs and compares them
continued     finds the first result of the resumed Run that differs
state         what of the training's state the checkpoint did not bring back
streams       which random stream goes on elsewhere, by how many draws, and which call drew them
data          which batches the resumed Run reads instead
layout        a checkpoint that is resumed at another Point
"""
