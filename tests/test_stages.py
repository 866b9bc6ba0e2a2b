"""Progress of long computations is reported in order, and only to a listener."""

import pytest

from airdistill.learning.fleet import Engine
from airdistill.stages import listening, report_stage


@pytest.mark.parametrize("workers", [1, 3])
def test_devices_are_reported_as_they_finish(workers):
    reports = []
    with listening(lambda *report: reports.append(report)):
        found = Engine(workers=workers).for_each(lambda number: number**2, range(4), stage="squares")
        Engine(workers=workers).for_each(lambda number: number, range(4))
    assert found == [0, 1, 4, 9]
    assert reports == [("squares", done, 4) for done in (1, 2, 3, 4)]
    report_stage("without a listener", 1, 1)
    assert len(reports) == 4
