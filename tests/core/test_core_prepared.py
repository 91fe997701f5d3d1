"""Several threads may decode the same type for the first time."""

from __future__ import annotations

import subprocess
import sys

#: Threads that switch as often as possible decode a type that contains itself.
RACE = """
import sys
import threading

import msgspec

from pytest_trainsafe.trace.run_spec import RunSpec

earlier = RunSpec(program="a:b", dtype="float64")
data = msgspec.json.encode(RunSpec(program="a:b", dtype="float32", replay=earlier))
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(6)


def first():
    barrier.wait()
    assert msgspec.json.decode(data, type=RunSpec).replay == earlier
    print("decoded")


threads = [threading.Thread(target=first) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_decode_a_type_first_at_the_same_time_do_not_crash() -> None:
    for _ in range(5):  # without the preparation, more than one in two crashes
        done = subprocess.run(
            [sys.executable, "-c", RACE], capture_output=True, text=True, check=False, timeout=300
        )

        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("decoded") == 6
