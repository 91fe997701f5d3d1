"""Reports on a whole pytest run, made from plain data in pytest's reports.

end       called after the last test: the summary, the reports for GitHub, the seconds
outcome   the result of each test; `families` and `table` group and arrange the results
failing   the report of one failing test; `frames` hides frames of this package
summary   the terminal summary; `live` shows the running tests
github    annotations and the job summary; `escape` escapes untrusted text
junit     reads the files of shards, for `python -m pytest_trainsafe.report`
"""
