"""Long work tells what it is at, in order, and only to who listens."""

import pytest

from airdistill.learning.fleet import Engine
from airdistill.stages import tell, told_to


@pytest.mark.parametrize("workers", [1, 3])
def test_devices_are_counted_as_they_are_done(workers):
    heard = []
    with told_to(lambda *news: heard.append(news)):
        found = Engine(workers=workers).for_each(lambda number: number**2, range(4), stage="squares")
        Engine(workers=workers).for_each(lambda number: number, range(4))
    assert found == [0, 1, 4, 9]
    assert heard == [("squares", done, 4) for done in (1, 2, 3, 4)]
    tell("nobody listens", 1, 1)
    assert len(heard) == 4
