import os
import tempfile

# Cores are for tests beside each other. What is multiplied here is small, and the threads of a linear-algebra library
# then mostly wait for each other, the more so where three workers share two cores. Before anything loads numpy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from small_worlds import write_few_digits

# Timing decides nothing here: machines that run tests are shared and slow by turns. Where CI is set the examples are
# the same each time; elsewhere they are new ones, and HYPOTHESIS_EXAMPLES asks for more of them.
settings.register_profile(
    "airdistill",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("airdistill")


def pytest_configure(config):
    """Tests decode and compile into a cache of their own, one for all their processes, and leave the user's alone.

    Before any module is imported: kernels are cached where the folder was then.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        cache = tempfile.TemporaryDirectory(prefix="airdistill-tests-", ignore_cleanup_errors=True)
        os.environ["AIRDISTILL_CACHE"] = cache.name
        config.add_cleanup(cache.cleanup)


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    return write_few_digits(tmp_path_factory.mktemp("digits") / "few.npz")
