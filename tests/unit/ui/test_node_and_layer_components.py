"""Cards of nodes beside a page's charts, and the tree of layers, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from bokeh.models import NoOverlap

from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.model import Node, NodeHealth, NodeStatus
from kernalyse.services.ui.components.compare_charts import SPEEDUPS
from kernalyse.services.ui.components.layer_tree import LayerTree
from kernalyse.services.ui.components.nodes import NodeCards
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context
from kernalyse.services.ui.theme import LIGHT
from kernalyse.services.ui.view import LayersView, View
from tests.unit.ui.test_compare_components import TIME, context_of, trace
from tests.unit.ui.test_ui_outage import Client, updated


def cards_of(status: NodeStatus) -> str:
    client = Client()
    client.nodes.receive((status,), (), (), False)
    cards = NodeCards(Context(client, View(), Browser(), lambda: None))
    cards.update()
    return str(cards._nodes.object)


def test_of_a_node_that_is_gone_the_card_says_since_when_and_why_when_the_pointer_rests_on_it() -> None:
    since = datetime.now(UTC).replace(hour=14, minute=2)
    why = "node gpu-7:7001: found connection refused; expected an answer. Start its profiler."
    shown = cards_of(NodeStatus("gpu-7:7001", NodeHealth.UNREACHABLE, problem=why, unreachable_since_time=since))
    assert f'title="{why}">gone since 14:02</span>' in shown
    assert shown.count(why) == 1
    assert 'href="/nodes?node=gpu-7%3A7001"' in shown


def test_a_node_that_serves_and_cannot_store_says_why() -> None:
    node = Node("n", "gpu-7", "1.0.0", "j", TIME, storage_problem="The disk is full.")
    shown = cards_of(NodeStatus("gpu-7:7001", NodeHealth.SERVING, node))
    assert '<p class="problem">The disk is full.</p>' in shown


async def test_a_tree_of_no_layers_offers_no_file() -> None:
    context = context_of(trace("t", 1), layer_tree=find_table("layer_tree").empty())
    tree = LayerTree(context, LayersView())

    def updating() -> Iterator[str]:
        while True:
            context.begin_update()
            tree.update()
            context.end_update()
            yield str(tree.layout[0].object) + str(tree._card.note.object)

    shown = await updated(updating().__next__)
    assert "This run tells no layers" in shown
    assert "Download" not in shown
    tree.close()


def test_ticks_that_would_touch_are_left_out() -> None:
    assert isinstance(SPEEDUPS.copy(LIGHT).xaxis[0].major_label_policy, NoOverlap)
