import pytest
from hypothesis import HealthCheck, settings

# Timing decides nothing here: machines that run tests are shared and slow by turns.
settings.register_profile("airdistill", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("airdistill")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Tests decode into a cache of their own and leave the user's alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRDISTILL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
