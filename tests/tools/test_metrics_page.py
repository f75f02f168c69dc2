"""The page about the metrics says what the table of metrics says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.tree import load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from scripts import metrics_page
else:
    metrics_page = load("scripts.metrics_page")


def test_the_page_is_what_the_table_gives() -> None:
    assert metrics_page.PAGE.read_text("utf-8") == metrics_page.page(), "run `make metrics-page`"
