"""The nodes with their health, devices and newest readings, beside a page's charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from kernalyse.services.core.model import NodeHealth
from kernalyse.services.ui import theme
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.components.base import Component, card
from kernalyse.services.ui.components.text import Text, html, joined
from kernalyse.services.ui.memory import Overview

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

NO_NODE_YET = "No node yet. A profiler that is started on this machine with kernalyse up appears by itself."


class NodeCards(Component):
    """Each node in a few lines; what it lacks is one line that opens."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._nodes = Text(classes=("nodes",))
        self._notices = Text(classes=("notices",))
        self.layout = card(Text(html("<h2>Nodes</h2>")), self._nodes, self._notices)

    def update(self) -> None:
        overview = self.context.overview
        nodes = _node_cards(overview, self.context.client)
        waiting = NO_NODE_YET if overview.is_known else "Waiting for the analyzer's list."
        self._nodes.show(joined(_node(node) for node in nodes) or html('<p class="empty">{}</p>', waiting))
        notices = [
            html("<li>{}{}</li>", f"{node['name']}: " if len(nodes) > 1 else "", notice) for node in nodes for notice in node["notices"]
        ]
        count = f"{len(notices)} notices" if len(notices) > 1 else "1 notice"
        fold = html("<details><summary>{}</summary><ul>{}</ul></details>", count, joined(notices)) if notices else ""
        self._notices.show(fold)


def _node_cards(overview: Overview, client: AnalyzerClient) -> list[dict[str, Any]]:
    """Return nodes with health, devices and newest readings."""
    cards = []
    for status in overview.nodes:
        node = status.node
        readings = client.nodes.newest_telemetry(node.node_id) if node else ()
        host = next((reading for reading in readings if reading.device_id is None), None)
        cards.append(
            {
                "name": node.hostname if node else status.address,
                "health": status.health.value,
                "is_serving": status.health is NodeHealth.SERVING,
                "problem": status.collecting_problem,
                "devices": [{"name": device.name, "device_id": device.device_id} for device in node.devices] if node else [],
                "host": host,
                "notices": node.notices if node else (),
            }
        )
    return cards


def _node(node: dict[str, Any]) -> Markup:
    dot = "good" if node["is_serving"] else "bad"
    head = (
        '<div class="node"><div class="node-head"><span class="dot {}" aria-hidden="true"></span><strong>{}</strong>'
        '<span class="note">{}</span></div>'
    )
    parts = [html(head, dot, node["name"], node["health"].lower())]
    if node["problem"]:
        parts.append(html('<p class="problem">{}</p>', node["problem"]))
    parts += [html('<div class="note" title="{1}">{0} · {1}</div>', device["device_id"], device["name"]) for device in node["devices"]]
    if host := node["host"]:
        figures = (theme.percent(host.utilization_ratio), theme.memory(host.memory_used_bytes), theme.memory(host.memory_total_bytes))
        parts.append(html('<div class="note">{} busy · {} of {} used</div>', *figures))
    return joined([*parts, Markup("</div>")])
