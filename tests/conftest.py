import os

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


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Tests decode into a cache of their own and leave the user's alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRDISTILL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    return write_few_digits(tmp_path_factory.mktemp("digits") / "few.npz")
