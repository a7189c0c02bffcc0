// A chart as a picture, a drawing or a table. The picture has the chart's title and legend above the figure. Its Python side is download.py.

const MARGIN = 14
const LINE = 20
const SVG = "http://www.w3.org/2000/svg"

export function render({model}) {
  const menu = document.createElement("details")
  menu.className = "download"
  const summary = document.createElement("summary")
  summary.textContent = "Download"
  summary.ariaLabel = `Download chart ${model.title}`
  const list = document.createElement("div")
  list.className = "pop"
  const alone = () => `/charts/${model.chart}${location.search}`
  const ways = {"Open alone": () => open(alone(), "_blank"), "Embed, by a link of 7 days": embed, "PNG, a picture": png, "SVG, a drawing": svg, "CSV, its figures": () => model.send_msg("csv")}
  for (const [text, write] of Object.entries(ways)) {
    const button = document.createElement("button")
    button.textContent = text
    button.addEventListener("click", () => { menu.open = false; summary.focus(); write() })
    list.append(button)
  }

  async function embed() {
    const told = document.getElementById("drawing")
    const answer = await fetch(`/link?address=${encodeURIComponent(alone())}`)
    if (!answer.ok) return Object.assign(told, {className: "bad", textContent: await answer.text()})
    const {link, until} = await answer.json()
    await navigator.clipboard.writeText(`<iframe src="${link}" title="${model.title}" width="100%" height="520"></iframe>`)
    Object.assign(told, {className: "", textContent: `Copied: a frame for another page that shows this chart until ${until}, whoever opens it. The setting allowed_frame_ancestors says which sites may.`})
  }

  menu.append(summary, list)
  menu.addEventListener("keydown", ({key}) => { if (key === "Escape") { menu.open = false; summary.focus() } })
  document.addEventListener("click", (event) => { if (!event.composedPath().includes(menu)) menu.open = false })
  model.on("table", () => save(new Blob(["\ufeff", model.table[0]], {type: "text/csv;charset=utf-8"}), "csv"))

  function save(blob, ending) {
    const link = document.createElement("a")
    link.href = URL.createObjectURL(blob)
    const words = [location.pathname, document.documentElement.dataset.subject, model.title].join(" ").toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")
    link.download = `${words.slice(0, 100).replaceAll(/^-+|-+$/g, "")}.${ending}`
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000)
  }

  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

  // Title and legend, and how much room they take above a figure of this width.
  function layout(width) {
    const pen = document.createElement("canvas").getContext("2d")
    pen.font = "12px sans-serif"
    const words = [{text: model.title, x: MARGIN, y: MARGIN + 10, font: "bold 14px sans-serif", fill: token("--text")}]
    let [x, y] = [MARGIN, MARGIN + 10 + LINE]
    for (const {symbol, color, name} of model.legend) {
      const needed = 18 + pen.measureText(name).width + 14
      if (x > MARGIN && x + needed > width) [x, y] = [MARGIN, y + LINE]
      words.push({text: symbol, x, y, font: "12px sans-serif", fill: color}, {text: name, x: x + 16, y, font: "12px sans-serif", fill: token("--muted")})
      x += needed
    }
    return {words, height: model.legend.length ? y + 8 : MARGIN + 18}
  }

  async function drawing() {
    const view = Bokeh.index.find_one_by_id(model.figure_id)
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
    add(whole, "title", {}).textContent = model.title
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

  return menu
}
