"""How much of a run's time is left."""

from __future__ import annotations

import math

from rich.progress import Progress

from gamaneh.bench.time_limit import TimeLimit
from gamaneh.cli.terminal import TimeLeft


def test_time_counts_from_the_beginning_and_does_not_fall_below_none() -> None:
    now = [100.0]
    limit = TimeLimit(1.0, lambda: now[0])
    now[0] = 130.0
    assert (limit.left, limit.over) == (30.0, False)
    now[0] = 200.0
    assert (limit.left, limit.over) == (0.0, True)


def test_no_minutes_are_no_limit() -> None:
    limit = TimeLimit(0.0).share(0.5)
    assert math.isinf(limit.left)
    assert not limit.over


def test_a_share_begins_when_it_is_asked_for() -> None:
    now = [0.0]
    limit = TimeLimit(1.0, lambda: now[0])
    now[0] = 20.0
    assert limit.share(0.5).left == 20.0


def test_the_time_that_is_shown_is_never_more_than_the_limit_leaves() -> None:
    now = [0.0]
    limit = TimeLimit(5.0, lambda: now[0])
    progress = Progress(get_time=lambda: now[0], speed_estimate_period=1e9)
    task = progress.add_task("measuring", total=100)
    for done in range(1, 5):
        now[0] += 10.0
        progress.update(task, completed=done)
    assert str(TimeLeft(limit).render(progress.tasks[task])) == "4:20 left"
    progress.update(task, completed=95)
    assert str(TimeLeft(limit).render(progress.tasks[task])) < "1:00 left"
