"""What the Layers page says in words of the layer that is looked into: where it is, its figures, what is inside, its kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import polars as pl

from kernalyse.services.core.disturbance import disturbance_note
from kernalyse.services.core.formatting import relative_layer_name
from kernalyse.services.core.ml_models import layers_note
from kernalyse.services.core.model import Filter, Work
from kernalyse.services.ui import filters, theme
from kernalyse.services.ui.charts import icicle
from kernalyse.services.ui.legend import LegendEntry, hideable, legend_fragment
from kernalyse.services.ui.names_wanted import whole
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.state import TableName, ViewState, to_query
from kernalyse.services.ui.theme import PALETTES

MAX_LISTED: Final = 12
NO_RUN: Final = "Choose a run of a model or a trace, or start one: kernalyse model gpt-nano --variant baseline --variant fused"
NO_LAYERS: Final = "This run tells no layers. Runs of models and traces do: kernalyse model gpt-nano, or import a trace of PyTorch or nsys."
FRAGMENTS: Final = (
    "crumbs",
    "icicle_legend",
    "icicle_note",
    "variant_choice",
    "layer_facts",
    "layer_parts",
    "layer_kernels",
    "kernel_layers",
)


class LayerPanel:
    """Of one run at one moment.

    Args:
        layers: rows of table layer_tree of the run, of all variants.
    """

    def __init__(self, run_id: str, layers: pl.DataFrame, state: ViewState, work: Work | None = None) -> None:
        self._run_id = run_id
        self._work = work
        self._state = state
        self._layer_count = layers.height
        self._variants = tuple(layers["variant"].drop_nulls().unique().sort().to_list())
        self.variant = state.variant if state.variant in self._variants else next(iter(self._variants), None)
        self.tree = layers.filter(variant=self.variant) if self.variant else layers
        self._lineage = self._found_lineage(state.layer)
        self.layer = str(self._lineage[-1]["layer_path"]) if self._lineage else ""

    @staticmethod
    def of_no_run() -> dict[str, str]:
        return {**dict.fromkeys(FRAGMENTS, ""), "icicle_note": NO_RUN}

    @staticmethod
    def of_question(problem: str) -> dict[str, str]:
        """While the answer is on its way; problem: why it does not come."""
        return {**dict.fromkeys(FRAGMENTS, ""), "icicle_note": problem or "Asking the analyzer for the layers."}

    @property
    def around(self) -> str:
        """Path of the layer around the one that is looked into; empty: all."""
        return str(self._lineage[-2]["layer_path"]) if len(self._lineage) > 1 else ""

    def fragments(self, kernels: pl.DataFrame | None, problem: str, runners: pl.DataFrame | None, *, hope: str) -> dict[str, str]:
        """The page's parts.

        Args:
            kernels: rows of table layer_kernels of the layer; None: on their way.
            problem: why they do not come.
            runners: such rows of the kernels that the filters leave, of the layers that launch them; None: all do.
            hope: what to say while there are no layers; empty: there will be none.
        """
        if self.tree.is_empty():
            return {**dict.fromkeys(FRAGMENTS, ""), "icicle_note": hope or NO_LAYERS}
        return {
            "crumbs": self._crumbs(),
            "icicle_legend": self._legend(),
            "icicle_note": self._note(),
            "variant_choice": fragment("variant_choice.html", variants=self._variants, chosen=self.variant),
            "layer_facts": fragment("layer_facts.html", facts=self._facts(), name=self._name(), links=self._links()),
            "layer_parts": self._parts(),
            "layer_kernels": self._kernels(kernels, problem),
            "kernel_layers": self._kernel_layers(runners),
        }

    # ------------------------------------------------------------ where it is

    def _found_lineage(self, layer: str) -> list[dict[str, Any]]:
        """The layer and those around it, outermost first; empty where there is none of that path."""
        found: list[dict[str, Any]] = []
        current: str | None = layer or None
        while current is not None:
            row = self.tree.filter(layer_path=current).head(1).to_dicts()
            if not row:
                return []
            found.append(row[0])
            current = row[0]["parent_path"]
        return found[::-1]

    def _name(self) -> str:
        return str(self._lineage[-1]["layer"]) if self._lineage else "All layers"

    def _crumbs(self) -> str:
        crumbs = [{"name": "All layers", "path": ""}]
        crumbs += [{"name": relative_layer_name(row["layer"], row["parent_path"]), "path": row["layer_path"]} for row in self._lineage]
        missing = self._state.layer if self._state.layer and not self._lineage else ""
        return fragment("layer_crumbs.html", crumbs=crumbs, around=self.around, missing=missing)

    def _legend(self) -> str:
        entries = icicle.legend_of(self.tree, self._state.layer_color, PALETTES[self._state.theme])
        return legend_fragment(hideable((LegendEntry(name, color, "■") for name, color in entries), self._state.hidden))

    def _note(self) -> str:
        notes = ["As wide as their time, in the order of their first start; a click looks into a layer, Escape goes out again."]
        notes.append(layers_note(self._work, self._all_ns, self._pass_ns))
        notes.append(disturbance_note(self.tree["disturbance"]))
        if self.tree["efficiency_ratio"].null_count() == self.tree.height:
            notes.append(
                "No efficiency is known: either the work of these kernels is not, which PyTorch records with record_shapes=True and a "
                "report of ncu brings, or no ceiling of their device."
            )
        return " ".join(note for note in notes if note)

    @property
    def _all_ns(self) -> float:
        return float(self.tree.filter(pl.col("parent_path").is_null())["duration_sum_ns"].sum())

    @property
    def _pass_ns(self) -> float | None:
        """Of a whole pass; None: of a trace, or not timed."""
        known: list[float] = self.tree["pass_duration_median_ns"].drop_nulls().head(1).to_list()
        return known[0] if known else None

    # ------------------------------------------------------------ its figures

    def _facts(self) -> list[tuple[str, str]]:
        outermost = self.tree.filter(pl.col("parent_path").is_null())
        row = self._lineage[-1] if self._lineage else {}
        duration_ns = row.get("duration_sum_ns", outermost["duration_sum_ns"].sum())
        facts = [
            ("Time in all", theme.duration(duration_ns)),
            ("Share of all layers", theme.percent(row.get("share_ratio", 1.0))),
            *([] if self._pass_ns is None else [("Whole pass", theme.duration(self._pass_ns))]),
            ("Kernels", theme.count(row.get("launch_count", outermost["launch_count"].sum()))),
            ("Layers", theme.count(self._layer_count_inside())),
        ]
        if row:
            facts += [
                ("Of its own", theme.duration(row["own_duration_sum_ns"])),
                ("Calls", theme.count(row["call_count"])),
                ("Flop", theme.si(row["flop"], "flop")),
                ("Bytes", theme.memory(row["bytes"])),
                ("Intensity", theme.intensity(row["intensity_flop_per_byte"])),
                ("Achieved", f"{theme.flop_rate(row['achieved_flop_per_s'])}, {theme.byte_rate(row['achieved_bytes_per_s'])}"),
                ("Roof", theme.flop_rate(row["attainable_flop_per_s"])),
                ("Efficiency", theme.percent(row["efficiency_ratio"])),
                ("Bound", row["bound"] or theme.UNKNOWN),
                ("Work known", f"of {theme.percent(row['worked_share_ratio'])} of the time"),
                ("Told by", row["source"] or theme.UNKNOWN),
                *([("Disturbed by", row["disturbance"])] if row["disturbance"] else []),
            ]
            if row["memory_bytes"] is not None:
                facts.append(("Memory", theme.memory(row["memory_bytes"])))
        return facts

    def _layer_count_inside(self) -> int:
        return icicle.inside(self.tree, self.layer).height - bool(self.layer)

    def _links(self) -> dict[str, str]:
        """To the layer's points under the roofline."""
        view = replace(self._bare(), points="layer", kernel=self.point_name())
        return {"roofline": f"/roofline?{to_query(view)}"}

    def point_name(self) -> str:
        """What the filter of names has to say: of a model's layer with others in it that they are, for it has no point of its own."""
        if not self._lineage:
            return ""
        if self.variant is None:
            return whole(self._lineage[-1]["layer"])
        has_parts = self.tree.filter(parent_path=self.layer).height > 0
        return f"{self.layer}." if has_parts else whole(f"{self.layer} {self.variant}")

    def _bare(self) -> ViewState:
        """This run on another page, without what holds for this page alone."""
        return replace(ViewState(), runs=(self._run_id,), theme=self._state.theme)

    # ------------------------------------------------------------ what is inside

    def _parts(self) -> str:
        around_ns = self._lineage[-1]["duration_sum_ns"] if self._lineage else None
        is_inside = pl.col("parent_path") == self.layer if self.layer else pl.col("parent_path").is_null()
        inside = self.tree.filter(is_inside).sort("duration_sum_ns", descending=True)
        total_ns = around_ns or inside["duration_sum_ns"].sum() or 1
        rows = [
            {**row, "name": relative_layer_name(row["layer"], row["parent_path"]), "share": (row["duration_sum_ns"] or 0) / total_ns}
            for row in inside.head(MAX_LISTED).to_dicts()
        ]
        return fragment("layer_parts.html", rows=rows, hidden_count=max(0, inside.height - MAX_LISTED))

    # ------------------------------------------------------------ kernels

    def _kernels(self, kernels: pl.DataFrame | None, problem: str) -> str:
        if kernels is None:
            return fragment("layer_kernels.html", rows=[], note=problem or "Asking the analyzer.", hidden_count=0)
        summed = by_kernel(kernels)
        rows = [{**row, **self._links_of(row["kernel_name"])} for row in summed.head(MAX_LISTED).to_dicts()]
        return fragment("layer_kernels.html", rows=rows, note="", hidden_count=max(0, summed.height - MAX_LISTED))

    def _links_of(self, kernel_name: str) -> dict[str, str]:
        """To the kernel on other pages, and to the layers that run it."""
        name = whole(kernel_name)
        view = replace(self._bare(), kernel=name)
        table: TableName = "launched" if self.variant is None else "measurements"
        return {"wanted": name, "kernels": f"/kernels?{to_query(replace(view, table=table))}", "roofline": f"/roofline?{to_query(view)}"}

    def _kernel_layers(self, runners: pl.DataFrame | None) -> str:
        if not kernel_filters(self._state):
            return ""
        what = ", ".join(part for part in (self._state.kernel, self._state.category, self._state.dtype) if part)
        if runners is None:
            return fragment("kernel_layers.html", what=what, rows=[], summary="Asking the analyzer.", hidden_count=0)
        layers = (
            runners.group_by("layer_path", "layer")
            .agg(pl.col("own_launch_count").sum(), pl.col("duration_sum_ns").sum(), pl.col("kernel_name").n_unique().alias("kernel_count"))
            .sort("duration_sum_ns", "layer_path", descending=[True, False])
        )
        kernel_count = runners["kernel_name"].n_unique()
        summary = (
            f"{theme.count(int(runners['own_launch_count'].sum()))} launches in "
            f"{theme.count(layers.height)} {'layer' if layers.height == 1 else 'layers'}, "
            f"of {theme.count(kernel_count)} {'kernel' if kernel_count == 1 else 'kernels'}; other layers are drawn pale."
            if layers.height
            else "No layer of this run launches such a kernel."
        )
        return fragment(
            "kernel_layers.html",
            what=what,
            rows=layers.head(MAX_LISTED).to_dicts(),
            summary=summary,
            hidden_count=max(0, layers.height - MAX_LISTED),
        )


def kernel_filters(state: ViewState) -> tuple[Filter, ...]:
    """Which kernels are looked for, of table layer_kernels; empty: all."""
    return filters.query_filters(state, ("kernel_name", "category", "dtype"))


def by_kernel(kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per kernel, longest first. Input: rows of table layer_kernels, of one or several layers that are not in each other.

    efficiency_ratio and bound are those of the layer that takes most of its time.
    """
    duration_ns = pl.col("duration_sum_ns")
    return (
        kernels.sort("duration_sum_ns", descending=True, nulls_last=True)
        .group_by("kernel_name", maintain_order=True)
        .agg(pl.col("launch_count").sum(), duration_ns.sum(), pl.col("efficiency_ratio", "bound").first())
        .with_columns(share_ratio=duration_ns / duration_ns.sum())
        .sort("duration_sum_ns", "kernel_name", descending=[True, False])
    )
