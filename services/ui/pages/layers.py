"""The Layers page: layers of traces as a table, with how far each is from what the hardware can do."""

from __future__ import annotations

from dataclasses import replace

from services.ui.client import AnalyzerClient
from services.ui.pages.kernels import KernelsPage
from services.ui.state import Page, ViewState


class LayersPage(KernelsPage):
    """The table of the Kernels page with its rows chosen."""

    page: Page = "layers"

    def __init__(self, client: AnalyzerClient, state: ViewState) -> None:
        super().__init__(client, replace(state, table="layers"))
