"""What the command line gives is what was recorded."""

from __future__ import annotations

import golden_files
import pytest
from golden_cli import SCENARIOS


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", SCENARIOS["cli"])
def test_as_recorded(name: str) -> None:
    golden_files.check("cli", name, SCENARIOS["cli"][name]())


def test_nothing_is_recorded_that_no_scenario_gives() -> None:
    assert golden_files.recorded("cli").keys() == SCENARIOS["cli"].keys()
