"""Checks that a checkout has its links, and makes the links of README.md absolute for PyPI.

Everything else is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

for name in ("fixtures", "invariants", "reference_models"):
    if not Path("pytest_trainsafe", name).is_dir():
        raise SystemExit(
            f"pytest_trainsafe/{name} is not a link to the folder {name}, but git writes it as one "
            "where it may.  Run `git config core.symlinks true` and `git checkout pytest_trainsafe`"
        )

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
HOME, TAG = PROJECT["urls"]["Homepage"], f"v{PROJECT['version']}"

readme = Path("README.md").read_text(encoding="utf-8")
for link, page in ((r"(!\[[^]]*\]\()", "raw"), (r"(\]\()", "blob")):  # images, then the others
    readme = re.sub(rf"{link}(?!https?://|#)", rf"\1{HOME}/{page}/{TAG}/", readme)

setup(long_description=readme, long_description_content_type="text/markdown")
