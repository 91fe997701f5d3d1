"""For every test: pytest's own test harness, and one thread for torch.

Before torch is imported: tensors of tests are small, workers are as many as cores, and threads that
wait for each other made a training of a second one of a minute.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["pytester"]
