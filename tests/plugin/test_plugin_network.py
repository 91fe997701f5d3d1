"""The network of the ranks: chosen by an option, refused if the kernel refuses it, and shown."""

import sys
import threading
from typing import Any

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.pages import page
from pytest_trainsafe.launch.resources import namespace
from pytest_trainsafe.runs.session import Session

#: Runs pytest where the kernel allows no more network namespaces: in a user namespace, whose root
#: sets the limit.
NO_MORE_NAMESPACES = """
import ctypes, os, sys
uid, gid = os.geteuid(), os.getegid()
if ctypes.CDLL(None).unshare(0x10000000):
    sys.exit("no user namespaces")
for name, content in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    open(f"/proc/self/{name}", "w").write(content)
open("/proc/sys/user/max_net_namespaces", "w").write("0")
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
"""

RISK = "other users of this machine can change what ranks exchange, see " + page(
    "running.md#the-network-of-ranks"
)
REFUSED = "unshare refuses a network namespace: No space left on device"


def without_namespaces(pytester, *options):
    """Run pytest where the kernel refuses private networks."""
    result = pytester.run(sys.executable, "-c", NO_MORE_NAMESPACES, *options)
    if "no user namespaces" in result.stderr.str():
        pytest.skip("the kernel allows no user namespace, in which to forbid network namespaces")
    return result


def test_a_private_network_that_the_kernel_refuses_is_a_usage_error(pytester):
    result = without_namespaces(pytester, "--trainsafe-network=private")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: --trainsafe-network is set to 'private', * ({REFUSED}); set it to 'host'*"]
    )


def test_the_summary_of_points_says_why_a_private_network_is_not_available(swept):
    result = without_namespaces(swept, "--collect-only")

    result.stdout.fnmatch_lines(
        [f"trainsafe: 6 points, network host (private is not available: {REFUSED}): {RISK}"]
    )


@pytest.mark.parametrize("network", ["private", "host"])
def test_the_header_and_the_summary_of_points_name_the_network(swept, network):
    if network == "private" and namespace.why_not():
        pytest.skip(f"no private network here: {namespace.why_not()}")

    result = swept.runpytest_inprocess("--collect-only", f"--trainsafe-network={network}")

    result.stdout.fnmatch_lines(
        [
            f"trainsafe: network {network}",
            f"trainsafe: 6 points, network {network}" + (f": {RISK}" if network == "host" else ""),
        ]
    )
    assert str(result.stdout).count(RISK) == (network == "host")


@pytest.mark.parametrize("network", ["private", "host"])
def test_the_controller_of_workers_names_the_risk_of_the_host_network_once(swept, network):
    pytest.importorskip("xdist")
    if network == "private" and namespace.why_not():
        pytest.skip(f"no private network here: {namespace.why_not()}")

    result = swept.runpytest_subprocess("-n", "2", f"--trainsafe-network={network}")

    assert str(result.stdout).count(f"trainsafe: network host: {RISK}") == (network == "host")


def test_workers_without_trainsafe_tests_print_nothing_about_networks(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile("def test_other(): pass")

    result = pytester.runpytest_subprocess("-n", "2", "--trainsafe-network=host")

    assert RISK not in str(result.stdout)


def test_both_launchers_of_a_session_get_the_network(tmp_path):
    session = Session(Settings(network="host"), tmp_path)
    made = session.groups.launchers
    launchers: list[Any] = [
        made.of(script=script, stop=threading.Event()) for script in (False, True)
    ]
    session.close()

    assert [launcher.name for launcher in launchers] == ["warm", "torchrun"]
    assert [launcher.network for launcher in launchers] == ["host", "host"]
