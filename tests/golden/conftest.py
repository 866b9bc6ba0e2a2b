import pytest
from golden.recording import write_inputs
from one_thread import one_thread  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))
