"""The dashboard asks for metrics that exist, and shows all that workers export."""

import json
from typing import Any

import pytest

from tests.databases import CHECKOUT
from tests.deploy import promised

DASHBOARD: dict[str, Any] = json.loads(
    (CHECKOUT / "deploy" / "grafana" / "dashboards" / "agentrt.json").read_text(encoding="utf-8")
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "1m")
    for panel in PANELS
    for target in panel["targets"]
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_panel_asks_for_series_and_labels_that_exist(name):
    promised.assert_answerable(QUERIES[name])


def test_everything_that_workers_export_is_shown():
    def family(name: str) -> str:
        for suffix in ("_bucket", "_count", "_sum"):
            name = name.removesuffix(suffix)
        return name

    shown = {family(name) for query in QUERIES.values() for name in promised.asked(query)}
    exported = {family(name) for name in promised.exported() if not name.endswith("_created")}
    assert exported - shown == set()


def test_every_query_goes_to_the_data_source_that_the_reader_chooses():
    [variable] = DASHBOARD["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    sources = [panel["datasource"] for panel in PANELS]
    sources += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    assert {source["uid"] for source in sources} == {f"${{{variable['name']}}}"}


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        assert x + w <= 24
        cells = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
        assert not cells & taken, panel["title"]
        taken |= cells
