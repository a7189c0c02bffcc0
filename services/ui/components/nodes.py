"""Nodes: which there are, what one of them is and runs, added and removed; and as cards beside a page's charts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import param
from markupsafe import Markup

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import Node, NodeHealth, NodeOrigin, NodeStatus, RunState
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Confirmation, Text, card, field, flow, html, joined
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.data.memory import Overview
from kernalyse.services.ui.data.runs import run_card
from kernalyse.services.ui.view import NodesView, View, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


HEALTH_WORDS: Final = {NodeHealth.SERVING: "serving", NodeHealth.CONNECTING: "connecting", NodeHealth.UNREACHABLE: "unreachable"}
ORIGIN_WORDS: Final = {
    NodeOrigin.ADDED: "was added",
    NodeOrigin.JOINED: "joined",
    NodeOrigin.TUNNEL: "joined, by a tunnel",
    NodeOrigin.FILE: "stands in nodes_file",
    NodeOrigin.DNS: "was found in DNS",
}
STATES: Final = {NodeHealth.SERVING: "succeeded", NodeHealth.CONNECTING: "queued", NodeHealth.UNREACHABLE: "failed"}
ROW: Final = (
    '<li><a class="run-row{}" href="{}"{}><span class="run-title">{}</span><span class="run-sub">{}</span>'
    '<span class="state {}">{}</span></a></li>'
)
NO_NODE: Final = html(
    '<div class="hero"><h1>No node yet</h1><p>Start all services on this machine, and its profiler appears here by itself:</p>'
    "<pre><code>kernalyse up</code></pre>"
    '<p class="note">Or start <code>kernalyse profiler</code> on another machine and add it by its address and token.</p></div>'
)
WAITING: Final = html('<p class="empty">Waiting for the analyzer\'s list.</p>')


def shown_node(context: Context, view: NodesView) -> NodeStatus | None:
    """Return the node that the view names, else the first that serves, else the first."""
    nodes = context.overview.nodes
    named = next((status for status in nodes if status.address == view.node), None)
    serving = next((status for status in nodes if status.health is NodeHealth.SERVING), None)
    return named or serving or next(iter(nodes), None)


class NodePart(Component):
    """A part of the page that tells of the shown node."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context)
        self.view = view

    @property
    def node(self) -> Node | None:
        status = shown_node(self.context, self.view)
        return status.node if status else None


class NodeList(NodePart):
    """All nodes, as links that show one."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context, view)
        self._list = Text(classes=("runs", "node-list"))
        self.layout = card(Text(html("<h2>Nodes</h2>")), self._list)

    def update(self) -> None:
        overview, shown = self.context.overview, shown_node(self.context, self.view)
        is_gone = overview.is_known and self.view.node not in ("", *(status.address for status in overview.nodes))
        gone = html('<p class="problem">There is no node at {} any more.</p>', self.view.node) if is_gone else Markup("")
        empty = html('<p class="empty">No node yet.</p>') if overview.is_known else WAITING
        rows = joined(self._row(status, status is shown) for status in overview.nodes)
        self._list.show(gone + (html("<ul>{}</ul>", rows) if rows else empty))

    def _row(self, status: NodeStatus, is_shown: bool) -> Markup:
        node, sub = status.node, status.address
        if node is not None:
            active_count = sum(not run.state.is_final and run.node_id == node.node_id for run in self.context.overview.runs)
            counts = ((len(node.devices), "device"), *(((active_count, "run"),) if active_count else ()))
            words = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts]
            sub = " · ".join([*words, "only observes"] if node.policy.observe_only else words)
        return html(
            ROW,
            " selected" if is_shown else "",
            f"/nodes?{to_query(self.context.view, self.view, node=status.address)}",
            Markup(' aria-current="true"') if is_shown else "",
            node.hostname if node else status.address,
            sub,
            STATES[status.health],
            health_words(status),
        )


def health_words(status: NodeStatus) -> str:
    """Return whether the node answers, or since when it is gone, in UTC."""
    since = status.unreachable_since_time
    if status.health is not NodeHealth.UNREACHABLE or since is None:
        return HEALTH_WORDS[status.health]
    is_today = since.date() == datetime.now(UTC).date()
    return f"gone since {since.strftime('%H:%M' if is_today else '%Y-%m-%d %H:%M')}"


class NewNode(param.Parameterized):
    """What somebody types to add a node."""

    address = param.String(default="", label="Address")
    token = param.String(default="", label="Token")
    ca_certificate = param.String(default="", label="CA certificate")


class AddNode(NodePart):
    """A form that folds. The token is a secret and is not kept by the browser, but in other colours it is still there."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context, view)
        self._typed = NewNode(token=context.secrets.pop("token of a node", ""))
        context.keep("add_node", self._typed, ("address", "ca_certificate"))
        self._said = Text(html("<span></span>"))
        self._add = pn.widgets.Button(label="Add", color="primary", margin=0, on_click=lambda _: context.carry_out(self._ask()))
        values = self._typed.param
        self._card = pn.Card(
            Text(html('<p class="note">A machine on which <code>kernalyse profiler</code> runs.</p>')),
            field(pn.widgets.TextInput, values.address, placeholder="host:7001 or unix:PATH", max_length=300, onkeyup=True),
            field(pn.widgets.PasswordInput, values.token, max_length=500),
            Text(html('<p class="note">Of that profiler, from its token file.</p>')),
            field(pn.widgets.TextAreaInput, values.ca_certificate, placeholder="-----BEGIN CERTIFICATE-----", rows=3, max_length=8000),
            Text(html('<p class="note">PEM text. Only this machine can be reached without.</p>')),
            self._said, self._add, title="Add a node", collapsed=True, css_classes=["card", "fold", "add-node"],
            sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        context.keep("add_node_card", self._card, ("collapsed",))
        self._is_opened = False
        self.layout = self._card

    def close(self) -> None:
        self.context.secrets["token of a node"] = self._typed.token

    def update(self) -> None:
        overview = self.context.overview
        if overview.is_known and not overview.nodes and not self._is_opened:
            self._is_opened = True
            self._card.collapsed = False

    def tell(self, sentence: str) -> None:
        """Show what has become of what was asked for."""
        self._said.show(html('<p class="note" role="status">{}</p>', sentence))

    async def _ask(self) -> None:
        typed = self._typed
        certificate = typed.ca_certificate.strip()
        self._add.disabled = True
        self.tell("Asking the node…")
        try:
            if not (typed.address.strip() and typed.token.strip()):
                self._refuse("An address and a token are needed to add a node.")
                return
            pem = f"{certificate}\n".encode() if certificate else b""
            added = await self.context.client.add_node(typed.address.strip(), typed.token.strip(), pem)
        except KernalyseError as error:
            self._refuse(error.message)
        else:
            typed.param.update(address="", token="", ca_certificate="")
            self.tell(f"Added {added.node.hostname if added.node else added.address}.")
            self.view.node = added.address
        finally:
            self._add.disabled = False

    def _refuse(self, sentence: str) -> None:
        self._said.show(html('<p class="problem block" role="alert">{}</p>', sentence))


class NodeFacts(NodePart):
    """What the node is; what it lacks is one line that opens.

    Args:
        tell: takes what has become of a removal.
    """

    def __init__(self, context: Context, view: NodesView, tell: Callable[[str], None]) -> None:
        super().__init__(context, view)
        self._tell = tell
        self._address = ""  # of the node that is shown
        self._asked = ""  # the node that is to be removed: another one may be shown by the time of the answer
        self._head = Text(classes=("run-name",), styles={"flex": "1 1 200px"})
        self._facts, self._notices = Text(), Text(classes=("notices",))
        consequence = "Its runs and what was measured stay here; nothing more is collected from it. A run that goes on there goes on."
        ask = Confirmation("Remove this node?", consequence, "Keep it", "Remove the node", lambda: context.carry_out(self._remove()))
        self._ask_remove = ask
        self._button = pn.widgets.Button(label="Remove", color="danger", margin=0, on_click=lambda _: self._ask())
        head = flow(self._head, self._button, classes=("run-head",))
        self.layout = card(head, self._facts, self._notices, ask.modal, classes=("node-facts",))

    def _ask(self) -> None:
        self._asked = self._address
        self._ask_remove.show()

    async def _remove(self) -> None:
        await self.context.client.remove_node(self._asked)
        if self.view.node == self._asked:
            self.view.node = ""
        self._tell(f"Removed {self._asked}. Its runs stay.")

    def update(self) -> None:
        status = shown_node(self.context, self.view)
        self._address = status.address if status else ""
        if self._button.visible != (status is not None):
            self._button.visible = status is not None
        if status is None:
            self._head.show(NO_NODE if self.context.overview.is_known else WAITING)
            self._facts.show("")
            self._notices.show("")
            return
        node, is_serving = status.node, status.health is NodeHealth.SERVING
        name = node.hostname if node else status.address
        self._head.show(html('<h1>{}</h1> <span class="state {}">{}</span>', name, STATES[status.health], health_words(status)))
        problem = status.collecting_problem
        said = '<p class="problem block" role="alert">{}</p>'
        told = joined(html(said, sentence) for sentence in (problem, status.version_note) if sentence)
        facts: list[tuple[str, object]] = [("Address", status.address), ("This node", ORIGIN_WORDS[status.origin])]
        if not is_serving and status.unreachable_since_time is not None:
            facts.append(("Gone since", theme.moment(int(status.unreachable_since_time.timestamp() * 1e9)) + " UTC"))
        if node is not None:
            up = theme.span(time.time() - node.start_time.timestamp()) if is_serving else ""
            backends = sorted({str(backend).lower() for device in node.devices for backend in device.backends})
            cores = f", {node.cpu_count} cores" if node.cpu_count else ""
            facts += [("kernalyse", node.version), ("Serves for", up), ("Backends", ", ".join(backends) or "none")]
            facts += [("Processor", f"{node.cpu_model or theme.UNKNOWN}{cores}"), ("Memory", theme.memory(node.memory_bytes))]
            facts += [("System", node.operating_system or theme.UNKNOWN), ("Python", node.python_version or theme.UNKNOWN)]
            facts += [("Sandbox", node.sandbox or theme.UNKNOWN)]
            facts.append(("Policy", ", ".join(_forbidden(node))))
        self._facts.show(told + fact_list(facts))
        notices = node.notices if node else ()
        count = f"{len(notices)} notice{'' if len(notices) == 1 else 's'}"
        items = joined(html("<li>{}</li>", notice) for notice in notices)
        self._notices.show(html("<details><summary>{}</summary><ul>{}</ul></details>", count, items) if notices else "")


OBSERVES: Final = (
    "This node only observes (observe_only): it tells of its devices, and runs are started on other nodes. "
    "In Kubernetes a Job that requests a GPU joins and measures."
)


class NodeRuns(NodePart):
    """What the node runs now and what waits there."""

    def __init__(self, context: Context, view: NodesView) -> None:
        super().__init__(context, view)
        self._list = Text(classes=("runs", "node-runs"))
        self.layout = card(Text(html("<h2>Now</h2>")), self._list)

    def update(self) -> None:
        overview, node = self.context.overview, self.node
        active = [run for run in overview.runs if node and run.node_id == node.node_id and not run.state.is_final]
        ordered = sorted(active, key=lambda run: (run.state is not RunState.RUNNING, run.create_time))
        rows = []
        for told in (run_card(run, overview, time.time()) for run in ordered):
            progress = f"{theme.count(told.completed)} of {theme.count(told.total)}" if told.total else ""
            doing = told.activity or ("waits for its device" if told.state == "QUEUED" else "")
            href = f"/live?{to_query(View(theme=self.context.view.theme, runs=[told.run_id]))}"
            sub = " · ".join(part for part in (told.device_id, progress, doing) if part)
            rows.append(html(ROW, "", href, "", told.title, sub, told.state.lower(), told.state.lower()))
        observes = node is not None and node.policy.observe_only
        said = OBSERVES if observes else "Idle: nothing runs here and nothing waits."
        idle = html('<p class="empty">{}</p>', said)
        self._list.show(html("<ul>{}</ul>", joined(rows)) if rows else idle)


def fact_list(facts: Sequence[tuple[str, object]]) -> Markup:
    """Return a list of names and values; those without a value are left out."""
    return html('<dl class="facts">{}</dl>', joined(html("<div><dt>{}</dt><dd>{}</dd></div>", *fact) for fact in facts if fact[1]))


def _forbidden(node: Node) -> list[str]:
    """What the node does not let its clients do."""
    if node.policy.observe_only:
        return ["only observes: nothing is ever run here"]
    rules = (
        (node.policy.allow_catalog_only, "kernels of its own catalogue only"),
        (not node.policy.allow_inline_source, "no kernel sources with a request"),
        (not node.policy.allow_commands, "no free commands"),
    )
    return [words for holds, words in rules if holds]


NO_NODE_YET = "No node yet. A profiler that is started on this machine with kernalyse up appears by itself."


class NodeCards(Component):
    """Each node in a few lines; what it lacks is one line that opens, and why it is gone stands on the page Nodes."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._nodes = Text(classes=("nodes",))
        self._notices = Text(classes=("notices",))
        self.layout = card(Text(html("<h2>Nodes</h2>")), self._nodes, self._notices)

    def update(self) -> None:
        overview = self.context.overview
        nodes = _node_cards(overview, self.context.client, self.context.view)
        waiting = NO_NODE_YET if overview.is_known else "Waiting for the analyzer's list."
        self._nodes.show(joined(_node(node) for node in nodes) or html('<p class="empty">{}</p>', waiting))
        notices = [
            html("<li>{}{}</li>", f"{node['name']}: " if len(nodes) > 1 else "", notice) for node in nodes for notice in node["notices"]
        ]
        count = f"{len(notices)} notices" if len(notices) > 1 else "1 notice"
        fold = html("<details><summary>{}</summary><ul>{}</ul></details>", count, joined(notices)) if notices else ""
        self._notices.show(fold)


def _node_cards(overview: Overview, client: AnalyzerClient, view: View) -> list[dict[str, Any]]:
    """Return nodes with health, devices and newest readings."""
    cards = []
    for status in overview.nodes:
        node = status.node
        readings = client.nodes.newest_telemetry(node.node_id) if node else ()
        host = next((reading for reading in readings if reading.device_id is None), None)
        cards.append(
            {
                "name": node.hostname if node else status.address,
                "href": f"/nodes?{to_query(view, NodesView(), node=status.address)}",
                "health": health_words(status),
                "is_serving": status.health is NodeHealth.SERVING,
                "problem": status.collecting_problem,
                "devices": [{"name": device.name, "device_id": device.device_id} for device in node.devices] if node else [],
                "host": host,
                "notices": node.notices if node else (),
            }
        )
    return cards


def _node(node: dict[str, Any]) -> Markup:
    head = (
        '<div class="node"><div class="node-head"><span class="dot {}" aria-hidden="true"></span>'
        '<strong><a href="{}">{}</a></strong><span class="note" title="{}">{}</span></div>'
    )
    is_serving = node["is_serving"]
    parts = [html(head, "good" if is_serving else "bad", node["href"], node["name"], "" if is_serving else node["problem"], node["health"])]
    if is_serving and node["problem"]:
        parts.append(html('<p class="problem">{}</p>', node["problem"]))
    parts += [html('<div class="note" title="{1}">{0} · {1}</div>', device["device_id"], device["name"]) for device in node["devices"]]
    if host := node["host"]:
        figures = (theme.percent(host.utilization_ratio), theme.memory(host.memory_used_bytes), theme.memory(host.memory_total_bytes))
        parts.append(html('<div class="note">{} busy · {} of {} used</div>', *figures))
    return joined([*parts, Markup("</div>")])
