"""What the Python door gives is what was recorded."""

from __future__ import annotations

import golden_files
import pytest
from golden_python import SCENARIOS

CASES = [(area, name) for area, scenarios in SCENARIOS.items() for name in scenarios]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("area", "name"), CASES, ids=[f"{area}: {name}" for area, name in CASES])
def test_as_recorded(area: str, name: str) -> None:
    golden_files.check(area, name, SCENARIOS[area][name]())


def test_nothing_is_recorded_that_no_scenario_gives() -> None:
    left_over = {area: golden_files.recorded(area).keys() - scenarios.keys() for area, scenarios in SCENARIOS.items()}
    assert not any(left_over.values()), left_over
