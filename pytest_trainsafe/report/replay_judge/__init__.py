"""The texts of the replay judge.

rng          the failure message of the rules on random numbers
determinism  the failure message of `assert_deterministic`
resume       the failure message of `assert_resumable`
replays      the terminal section of `--trainsafe-replay`
"""
