"""What the charts of a page hold, read in the browser."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

SOURCE = """(name) => {
  const models = Bokeh.documents.flatMap((document) => document.roots().flatMap((root) => [...root.references()]))
  return models.find((model) => model.name === name)
}"""
"""The source of a layer, "chart:layer", among the models that are shown: the document lists those of pages that were left for a while."""


IS_DRAWN = """() => {
  const inner = (element) => (element.shadowRoot && element.checkVisibility() ? words(element.shadowRoot) : "")
  const words = (root) => [root.textContent, ...[...root.querySelectorAll("*")].map(inner)].join(" ")
  const isReady = document.documentElement.dataset.ready !== undefined
  return isReady && !/Waiting for|Asking the analyzer|on its way|Working out/.test(words(document.querySelector("main")))
}"""
"""Whether a page is ready, and nothing that it asked for is on its way. Pages that were left are hidden, and ask no more."""


def column(page: Page, layer: str, name: str) -> list[Any]:
    """Return a column of a layer's source. layer: such as "roofline:points"."""
    values: list[Any] = page.evaluate(f"([layer, name]) => Array.from(({SOURCE})(layer)?.get_column(name) ?? [])", [layer, name])
    return values


def drawn_count(page: Page, layer: str) -> int:
    """Return how many rows a layer has; 0 where the page has no such layer."""
    count: int = page.evaluate(f"(layer) => ({SOURCE})(layer)?.length ?? 0", layer)
    return count
