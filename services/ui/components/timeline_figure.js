// The rows of a timeline beside its figures; keys and buttons move its window in the browser at once. Its Python side is timeline_figure.py.

const [STEP, ZOOM] = [0.15, 1.35] // of what is shown, a key press
const KEYS = {ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", ArrowUp: "in", w: "in", "+": "in", "=": "in", ArrowDown: "out", s: "out", "-": "out", Home: "all"}

export function render({model}) {
  const found = (id) => Bokeh.documents.map((document) => document.get_model_by_id(id)).find((one) => one)
  const root = Object.assign(document.createElement("div"), {className: "timeline"})
  root.innerHTML = `<span class="corner">whole trace</span><div class="overview"></div>
    <div class="zoom"><button data-move="in" aria-label="Zoom in">+</button><button data-move="out" aria-label="Zoom out">−</button><button data-move="all" aria-label="Show all of the trace">⤢</button></div><div class="ruler"></div>
    <div class="rows-and-bars" tabindex="0" role="group" aria-label="Timeline: arrow keys or a and d move, w and s or plus and minus zoom, Home shows all"><div class="rows"></div><div class="bars"></div></div>`
  const [body, rows] = [".rows-and-bars", ".rows"].map((name) => root.querySelector(name))
  for (const part of ["overview", "ruler", "bars"]) root.querySelector(`.${part}`).append(model.get_child(part))

  function move(name) {
    const {start, end, bounds, min_interval, reset_start, reset_end} = found(model.range_id)
    const [shift, factor] = [{left: -STEP, right: STEP}[name] ?? 0, {in: 1 / ZOOM, out: ZOOM}[name] ?? 1]
    const [low, high] = bounds ?? [-Infinity, Infinity]
    const length = Math.min(Math.max((end - start) * factor, min_interval), high - low)
    const first = Math.min(Math.max((start + end - length) / 2 + shift * length, low), high - length)
    found(model.range_id).setv(name === "all" ? {start: reset_start, end: reset_end} : {start: first, end: first + length})
  }

  root.addEventListener("click", ({target}) => { if (target.dataset.move) move(target.dataset.move) })
  root.addEventListener("keydown", (event) => {
    const [match, moved] = [{n: "next", p: "previous"}[event.key], KEYS[event.key]]
    if (event.ctrlKey || event.metaKey || event.altKey || !(match || moved)) return
    match ? model.send_msg({match}) : move(moved)
    event.preventDefault()
  })
  // Bokeh has one tool for drags at a time: before it sees the pointer, the right one is made active.
  body.addEventListener("pointerdown", ({target, shiftKey}) => {
    if (target.nodeName !== "BUTTON") body.focus({preventScroll: true})
    found(shiftKey ? model.mark_id : model.pan_id).active = true
  }, true)

  function showRows() {
    const focused = rows.getRootNode().activeElement?.dataset?.group
    rows.replaceChildren(...model.rows.map(({title, group, head, folded}) => {
      const row = Object.assign(document.createElement(group ? "button" : "span"), {className: head ? "row head" : "row", title})
      row.textContent = group ? `${folded ? "▸" : "▾"} ${title}` : title
      if (group) Object.assign(row, {ariaExpanded: String(!folded), onclick: () => model.send_msg({fold: group})}).dataset.group = group
      return row
    }))
    if (focused) [...rows.children].find(({dataset}) => dataset.group === focused)?.focus()
  }
  model.on("rows", showRows)
  showRows()
  return root
}
