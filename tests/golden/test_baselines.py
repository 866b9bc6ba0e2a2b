"""Runs of the schemes with class means that others published are what they were: see `golden.cases`."""

import pytest
from golden.cases import PUBLISHED, cases_of
from golden.comparing import differences
from golden.recording import observe


@pytest.mark.parametrize("case", cases_of(PUBLISHED), ids=lambda case: case.name)
def test_a_run_is_what_it_was(case, inputs, tmp_path):
    found = differences(case, observe(case, inputs, tmp_path))
    assert not found, "\n".join(found)
