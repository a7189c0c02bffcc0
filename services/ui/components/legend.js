// The names of a chart's series as buttons that hide them. Its Python side is legend.py.

export function render({model}) {
  const list = document.createElement("div")
  list.className = "series"

  function show() {
    list.replaceChildren(...model.entries.map(({name, color, symbol, series, hidden, meaning}) => {
      const entry = document.createElement(series ? "button" : "span")
      const swatch = document.createElement("span")
      swatch.className = "swatch"
      swatch.style.color = color
      swatch.ariaHidden = "true"
      swatch.textContent = symbol
      entry.append(swatch, name)
      entry.title = meaning
      if (series) {
        entry.ariaPressed = String(!hidden)
        entry.dataset.series = series
        entry.addEventListener("click", () => model.send_msg(series))
      }
      return entry
    }))
  }

  model.on("entries", () => {
    const focused = list.getRootNode().activeElement?.dataset.series
    show()
    if (focused) [...list.children].find(({dataset}) => dataset.series === focused)?.focus()
  })
  show()
  return list
}
