// The Kernels page's own part: brings the chosen row's card into view, wherever the choice was made, and the heatmap to the keyboard.
"use strict"
;(() => {
  const keyOf = () => document.querySelector("#f-detail .has-choice")?.dataset.key ?? ""

  document.addEventListener("kernalyse-enter", () => {
    const detail = document.querySelector('[data-page="kernels"] #f-detail')
    if (detail === null) return
    let shown = keyOf()
    new MutationObserver(() => {
      const key = keyOf()
      if (key === shown) return
      shown = key
      if (key) requestAnimationFrame(() => detail.closest(".detail").scrollIntoView({block: "nearest", behavior: "smooth"}))
    }).observe(detail, {childList: true, subtree: true, attributes: true, attributeFilter: ["data-key"]})
  })

  // ---------------------------------------------------------------- the heatmap by keyboard: a cell is outlined and told

  const STEPS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}
  const HALF = 0.48 // of a cell: where its edge is drawn

  let bokeh = null
  let at = null // column and row of the cell; null: the keyboard has not been there

  const heat = () => document.getElementById("heat")
  const source = (layer) => bokeh?.get_model_by_name("heatmap:" + layer)

  // Every cell of the chart, with a figure or without one.
  function cells() {
    return ["cells", "gaps"].flatMap((layer) => {
      const columns = source(layer)
      const of = (name, row) => columns.get_column(name)?.[row] ?? ""
      const told = (row) => [of("figure", row), of("label", row), of("others", row), of("remark", row)].filter(Boolean).join("; ")
      return Array.from({length: columns?.length ?? 0}, (_, row) => ({
        x: Math.round((of("left", row) + of("right", row)) / 2),
        y: Math.round((of("bottom", row) + of("top", row)) / 2),
        key: of("configuration", row),
        text: `${of("place", row)}: ${layer === "cells" ? told(row) : "no figure, " + of("reason", row)}.`,
      }))
    })
  }

  const isAt = (place) => ({x, y}) => x === place?.x && y === place?.y

  // Where the keyboard begins: at the chosen cell, else at the best.
  function first(all) {
    const {x, y, text} = source("marks").data
    const best = Array.from(text).indexOf("★")
    return all[source("cells").selected.indices[0]] ?? all.find(isAt({x: x[best], y: y[best]})) ?? all[0]
  }

  // undefined: none.
  function point(cell) {
    const corners = cell ? {left: [cell.x - HALF], bottom: [cell.y - HALF], right: [cell.x + HALF], top: [cell.y + HALF]} : {left: [], bottom: [], right: [], top: []}
    source("pointed").data = corners
    const said = document.getElementById("heat-cell")
    if (said.textContent !== (cell?.text ?? "")) said.textContent = cell?.text ?? ""
  }

  document.addEventListener("keydown", (event) => {
    if (event.target !== heat() || event.ctrlKey || event.metaKey || event.altKey) return
    const step = STEPS[event.key]
    const isChoice = event.key === "Enter" || event.key === " "
    const all = cells()
    if (!all.length || !(step || isChoice)) return
    event.preventDefault()
    const here = all.find(isAt(at)) ?? first(all)
    if (isChoice) {
      if (here.key) document.dispatchEvent(new CustomEvent("kernalyse-wish", {detail: {name: "choose", value: here.key}}))
      return
    }
    at = all.find(isAt({x: here.x + step[0], y: here.y + step[1]})) ?? here
    point(at)
  })

  document.addEventListener("focusin", ({target}) => {
    const all = target === heat() && target.matches(":focus-visible") ? cells() : []
    if (!all.length) return
    at = all.find(isAt(at)) ?? first(all)
    point(at)
  })

  document.addEventListener("focusout", ({target}) => { if (target === heat() && bokeh) point() })

  document.addEventListener("kernalyse-drawn", ({detail}) => {
    at = null
    bokeh = detail
    source("cells")?.properties.data.change.connect(() => { if (at && document.activeElement === heat()) point(cells().find(isAt(at))) })
  })
  document.addEventListener("kernalyse-leave", () => { bokeh = null })
})()
