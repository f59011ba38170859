"""What the HTTP door gives is what was recorded."""

from __future__ import annotations

import golden_files
import pytest
from golden_http import SCENARIOS


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", SCENARIOS["http"])
def test_as_recorded(name: str) -> None:
    golden_files.check("http", name, SCENARIOS["http"][name]())


def test_nothing_is_recorded_that_no_scenario_gives() -> None:
    assert golden_files.recorded("http").keys() == SCENARIOS["http"].keys()
