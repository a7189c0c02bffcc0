// The Timeline page's own part: keys and buttons move its window in the browser at once; Shift makes a drag mark a stretch.
"use strict"
;(() => {
  const STEP = 0.15 // of what is shown, a key press
  const ZOOM = 1.35

  const body = () => window.Bokeh?.documents?.at(-1)?.get_model_by_name("timeline_body")
  const tool = (name) => body()?.toolbar.tools.find((one) => one.name === name)

  function show(start, end) {
    const range = body()?.x_range
    if (!range) return
    const [low, high] = range.bounds ?? [-Infinity, Infinity]
    const length = Math.min(Math.max(end - start, range.min_interval ?? 20), high - low)
    const first = Math.min(Math.max((start + end - length) / 2, low), high - length)
    range.setv({start: first, end: first + length})
  }

  function move(share) {
    const {start, end} = body().x_range
    show(start + share * (end - start), end + share * (end - start))
  }

  function zoom(factor) {
    const {start, end} = body().x_range
    const middle = (start + end) / 2
    show(middle - (middle - start) * factor, middle + (end - middle) * factor)
  }

  function all() {
    const {reset_start, reset_end} = body().x_range
    show(reset_start, reset_end)
  }

  const ACTIONS = {left: () => move(-STEP), right: () => move(STEP), in: () => zoom(1 / ZOOM), out: () => zoom(ZOOM), all}
  const KEYS = {
    ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", ArrowUp: "in", w: "in", "+": "in", "=": "in",
    ArrowDown: "out", s: "out", "-": "out", Home: "all",
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.closest?.("#tl-charts")) return
    const jump = {n: "next", p: "previous"}[event.key]
    const action = ACTIONS[KEYS[event.key]]
    if (jump) document.querySelector(`#f-matches [data-value="${jump}"]`)?.click()
    else if (!action || !body()) return
    else action()
    event.preventDefault()
  })

  document.addEventListener("click", (event) => {
    const name = event.target.closest?.("[data-tl]")?.dataset.tl
    if (name && body()) ACTIONS[name]()
  })

  // Bokeh has one tool for drags at a time: before it sees the pointer, the right one is made active.
  document.addEventListener("pointerdown", (event) => {
    const element = event.target.closest?.("#tl-body")
    if (!element || !body()) return
    if (!event.target.closest("button")) element.focus({preventScroll: true})
    const wanted = tool(event.shiftKey ? "timeline-mark" : "timeline-pan")
    if (wanted && !wanted.active) wanted.active = true
  }, true)
})()
