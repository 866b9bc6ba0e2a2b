import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# Cores are for tests beside each other. What is multiplied here is small, and the threads of a linear-algebra library
# then mostly wait for each other, the more so where three workers share two cores. Before anything loads numpy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from small_worlds import write_few_digits

# Timing decides nothing here: machines that run tests are shared and slow by turns. The examples are the same each
# time, so that a test fails because of what was changed; HYPOTHESIS_EXAMPLES asks for so many new ones.
settings.register_profile(
    "airdistill",
    deadline=None,
    derandomize="HYPOTHESIS_EXAMPLES" not in os.environ,
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("airdistill")

TESTS = Path(__file__).parent
MEMORY, NEEDED = Path("/dev/shm"), 4 * 2**30  # a file system in memory is used if it has this much free


# Files that take a minute or more, the longest first: one of them that began last would keep one core busy alone.
LONGEST = (
    "learning/test_fused.py",  # compiles kernels that others then find
    "flower/test_faults.py",
    "web/test_browser.py",
    "runs/test_killed.py",
    "test_docs.py",
    "runs/test_accounts.py",
    "runs/test_comparison.py",
    "report/test_reports.py",
)


def pytest_configure(config):
    """Tests decode and compile into a cache of their own, one for all their processes, and leave the user's alone.

    It stays for the next time: what lies there is found by the bytes that it was made from. Before any module is
    imported: kernels are cached where the folder was then.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    # A shell starts background jobs with SIGINT ignored, and the processes that tests start would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cache = getattr(config, "cache", None)
    if cache is None:  # -p no:cacheprovider
        folder = tempfile.TemporaryDirectory(prefix="airdistill-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["AIRDISTILL_CACHE"] = folder.name
    else:
        os.environ["AIRDISTILL_CACHE"] = str(cache.mkdir("airdistill"))
    # Ledgers and records are synced to the disk, thousands of times in a second: a disk would be most of the wait.
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > NEEDED:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(items):
    ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(autouse=True)
def imported_files_are_forgotten(tmp_path_factory):
    """Users' modules that a test wrote and imported would be found by the next test that uses their name."""
    before = set(sys.modules)
    yield
    written = f"{tmp_path_factory.getbasetemp()}/"
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(written):
            del sys.modules[name]


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    return write_few_digits(tmp_path_factory.mktemp("digits") / "few.npz")
