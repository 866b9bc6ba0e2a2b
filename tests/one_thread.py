"""A fixture for tests that train."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """As in a run: threads inside so small operations only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
