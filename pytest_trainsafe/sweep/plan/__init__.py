"""Plans of a sweep, and its division into shards.

seconds.py      how long each test took in earlier runs, kept in pytest's cache
document.py     the plan: what a run would judge, without running it; written and read as JSON
balance.py      which test belongs to which shard
select.py       `--trainsafe-plan` and `--trainsafe-shard` in pytest's hooks
"""
