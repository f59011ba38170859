"""What operators read is what servers export and what Prometheus watches."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from series import DEPLOY, ROOT, exported, names_in, unknown

from gamaneh.core import FinishReason, ReasonCode

METRICS_PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
OPERATIONS_PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def alerts() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def test_the_metrics_page_lists_every_series_and_no_other() -> None:
    rows = re.findall(r"^\| `(gamaneh_\w+)` \| (\w+) \| ([^|]*)\|", METRICS_PAGE, flags=re.MULTILINE)
    documented = {(name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert documented == {(one.name, one.kind, one.labels) for one in exported()}


def test_the_operations_page_names_only_series_that_exist() -> None:
    assert unknown(re.findall(r"`([^`\n]*gamaneh_[^`\n]*)`", OPERATIONS_PAGE)) == set()


def test_alerts_ask_for_what_is_exported(alerts: list[dict[str, Any]]) -> None:
    assert unknown(alert["expr"] for alert in alerts) == set()
    assert all(names_in(alert["expr"]) or alert["alert"] == "GamanehDown" for alert in alerts)


def test_values_that_alerts_select_exist(alerts: list[dict[str, Any]]) -> None:
    known = {"reason": set(ReasonCode), "finish_reason": set(FinishReason)}
    for label, values in known.items():
        for alert in alerts:
            assert set(re.findall(rf'\b{label}!?="([^"]*)"', alert["expr"])) <= values, alert["alert"]


def test_every_alert_says_what_to_do(alerts: list[dict[str, Any]]) -> None:
    documented = re.findall(r"^\| `(Gamaneh\w+)` \| (\w+) \| [^|]+ \| [^|]+ \|$", OPERATIONS_PAGE, flags=re.MULTILINE)
    assert documented == [(alert["alert"], alert["labels"]["severity"]) for alert in alerts]


def test_every_alert_can_be_read(alerts: list[dict[str, Any]]) -> None:
    for alert in alerts:
        assert "$labels" in alert["annotations"]["summary"], alert["alert"]


def test_every_reason_is_explained_on_the_metrics_page() -> None:
    section = METRICS_PAGE.split("### Reasons\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) == set(ReasonCode)
