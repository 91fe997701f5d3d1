"""The rank that code runs as, and what belongs to it.

identity   its number, the size of its group, and where both are read
state      the attributes that belong to one rank although the whole process shares them
"""

from pytest_trainsafe.core.rank.identity import Rank, become, current_rank, is_launched

__all__ = ["Rank", "become", "current_rank", "is_launched"]
