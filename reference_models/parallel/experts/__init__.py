"""Expert parallelism: the experts of a mixture distributed over ep.

expert_axes     the axes ep and edp, which consist of the ranks of dp and cp
routing         routing over ranks
experts         the experts of a rank
apply_moe       makes the single-device mixture of experts parallel
"""
