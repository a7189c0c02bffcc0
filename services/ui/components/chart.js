// Legends of all charts of the tab, and their download menus: a chart as a picture, a drawing or a table. Its Python side is chart.py.

const MARGIN = 14
const LINE = 20
const SVG = "http://www.w3.org/2000/svg"

export function render({model}) {
  const over = new AbortController() // when another takes the place of this one
  const {signal} = over
  let menu = null // that was opened last
  let chart = {} // that is written: title, chart, figure, legend
  const within = (event, selector) => event.composedPath().find((element) => element.matches?.(selector))

  document.addEventListener("click", (event) => {
    const series = within(event, "[data-series]")
    if (series) model.send_msg({series: series.dataset.series})
    const [opened, chosen] = [within(event, "details.download"), within(event, "[data-way]")]
    if (menu && menu !== opened) menu.open = false
    menu = opened
    if (!chosen) return
    chart = {...menu.dataset, legend: JSON.parse(menu.dataset.legend)}
    leave()
    ways[chosen.dataset.way]()
  }, {signal})
  document.addEventListener("keydown", (event) => {
    menu = within(event, "details.download[open]") ?? menu
    if (event.key === "Escape" && menu?.open) leave()
  }, {signal})

  function leave() {
    menu.open = false
    menu.querySelector("summary").focus()
  }

  const alone = () => `/charts/${chart.chart}${location.search}`
  const ways = {alone: () => open(alone(), "_blank"), embed, png, svg, csv: () => model.send_msg({csv: chart.figure})}

  async function embed() {
    const told = document.getElementById("drawing")
    const answer = await fetch(`/link?address=${encodeURIComponent(alone())}`)
    if (!answer.ok) return Object.assign(told, {className: "bad", textContent: await answer.text()})
    const {link, until} = await answer.json()
    await navigator.clipboard.writeText(`<iframe src="${link}" title="${chart.title}" width="100%" height="520"></iframe>`)
    Object.assign(told, {className: "", textContent: `Copied: a frame for another page that shows this chart until ${until}, whoever opens it. The setting allowed_frame_ancestors says which sites may.`})
  }

  model.on("table", () => save(new Blob(["\ufeff", model.table[0]], {type: "text/csv;charset=utf-8"}), "csv"))
  model.on("remove", () => over.abort())

  function save(blob, ending) {
    const link = document.createElement("a")
    link.href = URL.createObjectURL(blob)
    const words = [location.pathname, document.documentElement.dataset.subject, chart.title].join(" ").toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")
    link.download = `${words.slice(0, 100).replaceAll(/^-+|-+$/g, "")}.${ending}`
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000)
  }

  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

  // Title and legend, and how much room they take above a figure of this width.
  function layout(width) {
    const pen = document.createElement("canvas").getContext("2d")
    pen.font = "12px sans-serif"
    const words = [{text: chart.title, x: MARGIN, y: MARGIN + 10, font: "bold 14px sans-serif", fill: token("--text")}]
    let [x, y] = [MARGIN, MARGIN + 10 + LINE]
    for (const {symbol, color, name} of chart.legend) {
      const needed = 18 + pen.measureText(name).width + 14
      if (x > MARGIN && x + needed > width) [x, y] = [MARGIN, y + LINE]
      words.push({text: symbol, x, y, font: "12px sans-serif", fill: color}, {text: name, x: x + 16, y, font: "12px sans-serif", fill: token("--muted")})
      x += needed
    }
    return {words, height: chart.legend.length ? y + 8 : MARGIN + 18}
  }

  async function drawing() {
    const view = Bokeh.index.find_one_by_id(chart.figure)
    const figure = new DOMParser().parseFromString(await (await view.export("svg", false).to_blob()).text(), "image/svg+xml").documentElement
    const {width, height} = view.bbox
    const {words, height: above} = layout(width)
    const whole = document.createElementNS(SVG, "svg")
    const add = (parent, name, attributes) => {
      const made = parent.appendChild(document.createElementNS(SVG, name))
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
      return made
    }
    for (const [key, value] of Object.entries({width, height: height + above, viewBox: `0 0 ${width} ${height + above}`})) whole.setAttribute(key, value)
    add(whole, "title", {}).textContent = chart.title
    add(whole, "rect", {width: "100%", height: "100%", fill: token("--surface")})
    for (const {text, font, ...place} of words) add(whole, "text", {...place, style: `font: ${font}`}).textContent = text
    add(whole, "g", {transform: `translate(0 ${above})`}).append(document.importNode(figure, true))
    return new Blob([new XMLSerializer().serializeToString(whole)], {type: "image/svg+xml"})
  }

  async function svg() { save(await drawing(), "svg") }

  // Of the drawing, at twice the screen's size at least: sharp on a slide too.
  async function png() {
    const picture = new Image()
    picture.src = URL.createObjectURL(await drawing())
    await picture.decode()
    const canvas = document.createElement("canvas")
    const scale = Math.max(2, devicePixelRatio)
    canvas.width = picture.naturalWidth * scale
    canvas.height = picture.naturalHeight * scale
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height)
    URL.revokeObjectURL(picture.src)
    canvas.toBlob((blob) => save(blob, "png"), "image/png")
  }
}
