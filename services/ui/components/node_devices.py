"""Devices of a node: what they are, and what they can do at most."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from markupsafe import Markup

from kernalyse.services.core.model import Device, Hardware, HardwareKey
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import card
from kernalyse.services.ui.components.node_cards import NodePart, _fact_list
from kernalyse.services.ui.components.text import Text, html, joined
from kernalyse.services.ui.pages.nodes import REDRAW_INTERVAL_S, SOURCE_TITLES, _ceiling_rows, _peaks_in_short
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.view import NodesView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class Devices(NodePart):
    """Each with its peaks, which open."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context, view)
        self._known: Question[dict[str, Hardware]] = Question(context.wake)
        self._list = Text(classes=("devices",))
        self.layout = card(Text(html("<h2>Devices</h2>")), self._list)

    def close(self) -> None:
        self._known.stop()

    def update(self) -> None:
        node, overview = self.node, self.context.overview
        if node is None:
            self._list.show("")
            return
        subject = (node.node_id, tuple(device.device_id for device in node.devices))
        ended_count = sum(run.state.is_final for run in overview.runs if run.node_id == node.node_id)  # each may have measured ceilings
        self._known.ask(subject, partial(self._ask, *subject), (overview.revision, ended_count), REDRAW_INTERVAL_S)
        known = self._known.answer_to(subject) or {}
        self._list.show(joined(_device(device, known.get(device.device_id)) for device in node.devices))

    async def _ask(self, node_id: str, device_ids: Sequence[str]) -> dict[str, Hardware]:
        found = await asyncio.gather(*(self.context.client.hardware(HardwareKey(node_id, device_id)) for device_id in device_ids))
        return dict(zip(device_ids, found, strict=True))


def _device(device: Device, hardware: Hardware | None) -> Markup:
    head = html('<h3>{}</h3><span class="note">{} · {}</span>', device.name, device.device_id, str(device.kind).lower())
    facts = [("Driver", device.driver_version), ("Runtime", device.runtime), ("CUDA toolkit", device.toolkit_version)]
    facts.append(("Memory", theme.memory(device.memory_bytes) if device.memory_bytes else ""))
    peaks = Markup("")
    if hardware is not None:
        cell = '<td class="n" title="{note}">{text}</td>'
        rows = joined(html("<tr><td>{}</td>{}</tr>", row["title"], joined(html(cell, **v) for v in row["values"])) for row in _ceiling_rows(hardware))
        titles = joined(html("<th>{}</th>", title) for title in ("Ceiling", *SOURCE_TITLES.values()))
        table = html('<div class="peaks"><table><tr>{}</tr>{}</table></div>', titles, rows)
        peaks = html("<details><summary>Peaks · {}</summary>{}</details>", _peaks_in_short(hardware), table)
    return html('<div class="device-entry">{}{}{}</div>', head, _fact_list(facts), peaks)
