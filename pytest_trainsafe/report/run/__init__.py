"""Reports of a whole run, made from plain data on pytest's reports.

end.py          called after the last test: the summary, the reports for GitHub, the seconds
outcome.py      what the run says of each test; families.py and table.py arrange it
summary.py      the terminal; live.py shows there what runs at the moment
github.py       annotations and the summary of a job; escape.py makes texts harmless
junit.py        reads the files of shards, for `python -m pytest_trainsafe.report`
"""
