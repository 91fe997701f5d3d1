"""Checkpoints with all random states, and the replay of any step from them.

instrument  saves and loads them in the ranks, and regenerates what was drawn instead of saving it
events      what a Run saved, and what a Run continued from
runs        `--trainsafe-replay`: chooses the checkpoint, and verifies the Run that continues
text        the terminal section of `--trainsafe-replay`
"""
