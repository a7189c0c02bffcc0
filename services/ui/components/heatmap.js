// A heatmap that the keyboard walks through, cell by cell; where it is, and what is told of it, says the Python side, kernel_charts.py.

const KEYS = {ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", Enter: "choose", " ": "choose"}

export function render({model}) {
  const root = Object.assign(document.createElement("div"), {tabIndex: 0, role: "application", ariaRoleDescription: "heatmap", ariaLabel: "Heatmap: arrow keys go from cell to cell, Enter chooses one"})
  const said = Object.assign(document.createElement("p"), {className: "note", role: "status", textContent: model.said})
  root.append(model.get_child("figure"))
  root.addEventListener("keydown", (event) => {
    if (event.target !== root || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return
    event.preventDefault()
    model.send_msg(KEYS[event.key])
  })
  root.addEventListener("focus", () => { if (root.matches(":focus-visible")) model.send_msg("here") })
  root.addEventListener("blur", () => model.send_msg("away"))
  model.on("said", () => { said.textContent = model.said })
  const whole = document.createElement("div")
  whole.append(root, said)
  return whole
}
