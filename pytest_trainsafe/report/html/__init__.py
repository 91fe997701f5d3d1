"""The page of `--trainsafe-report`: one file that shows a run in a browser, without a network.

document  the data of a page: every judged Point with its Sections, and the runs that judged them
collect   makes a Document from pytest's reports
fit       leaves out panels until a Document fits a page
page      makes the page from a Document; imports jinja2
write     writes the page and its data, which `merge` reads
command   `python -m pytest_trainsafe report merge DIR...`
extra     what to install if a package is missing
assets    the template, the styles and the scripts
"""
