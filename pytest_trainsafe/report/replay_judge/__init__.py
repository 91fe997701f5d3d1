"""The texts of the replay judge.

rng          the failure message of the RNG rules
determinism  that of `assert_deterministic`
resume       that of `assert_resumable`
replays      the terminal's section on `--trainsafe-replay`
"""
