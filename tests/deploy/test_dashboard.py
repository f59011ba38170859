"""The dashboard asks for what a server exports, and shows all of it."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from series import DEPLOY, exported, names_in, unknown

from gamaneh.core import FinishReason, ReasonCode

NOT_SHOWN = {
    "gamaneh_build_info",  # the list of servers is made of it
    "gamaneh_process_max_fds",
    "gamaneh_process_open_fds",
    "gamaneh_process_start_time_seconds",
    "gamaneh_process_virtual_memory_bytes",
}

COLUMNS = 24


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    path = DEPLOY / "grafana" / "dashboards" / "gamaneh.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_every_name_and_label_is_exported(queries: list[str]) -> None:
    assert unknown(queries) == set()


def test_every_series_is_shown(queries: list[str]) -> None:
    shown = set().union(*map(names_in, queries))
    assert {one.name for one in exported() if not one.queried & shown} == NOT_SHOWN


def test_every_query_keeps_to_the_chosen_servers(queries: list[str]) -> None:
    for query in queries:
        for selector in re.findall(r"gamaneh_\w+(\{[^}]*\})?", query):
            assert 'instance=~"$instance"' in selector, query


def test_averages_are_quotients_of_counts(queries: list[str]) -> None:
    """A mean of means or of percentiles is none."""
    assert [query for query in queries if re.search(r"\bavg[^(]*\(\s*(rate|histogram_quantile)", query)] == []


def test_quantiles_are_taken_over_buckets(queries: list[str]) -> None:
    for query in queries:
        if "histogram_quantile" in query:
            assert re.search(r"sum by \(le\) \(rate\(gamaneh_\w+_bucket\{", query), query


def test_panels_are_named_apart_and_explained(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"], panel["title"]


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    cells = [cell for panel in dashboard["panels"] for cell in _cells(panel["gridPos"])]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < COLUMNS


def test_the_source_of_every_panel_is_the_chosen_one(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    sources = {panel["datasource"]["uid"] for panel in dashboard["panels"] if panel["type"] != "row"}
    assert (sources, variables) == ({"${datasource}"}, {"datasource", "instance"})


def test_values_that_queries_select_exist(queries: list[str]) -> None:
    known = {"reason": set(ReasonCode), "finish_reason": set(FinishReason)}
    for label, values in known.items():
        for query in queries:
            assert set(re.findall(rf'\b{label}!?="([^"]*)"', query)) <= values, query


def _cells(place: dict[str, int]) -> list[tuple[int, int]]:
    columns = range(place["x"], place["x"] + place["w"])
    return list(itertools.product(columns, range(place["y"], place["y"] + place["h"])))
