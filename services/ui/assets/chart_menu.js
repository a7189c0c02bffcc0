// A menu on every chart: as picture, as drawing, as table. And runs as documents, which the server draws.
"use strict"
;(() => {
  const LOOKS = new Set(["color", "marker", "fill_alpha", "size", "line_width", "line_dash", "text_align", "text_baseline", "text_color"])
  const CHOICES = [["png", "PNG, a picture"], ["svg", "SVG, a drawing"], ["csv", "CSV, its figures"]]
  const MARGIN = 14
  const LINE = 20

  // ---------------------------------------------------------------- menus

  function addMenus() {
    for (const card of document.querySelectorAll(".card.chart")) {
      const head = card.querySelector(".card-head")
      if (head === null || card.querySelector(".chart-menu") !== null) continue
      const menu = document.createElement("details")
      menu.className = "chart-menu"
      const summary = document.createElement("summary")
      summary.textContent = "Download"
      summary.setAttribute("aria-label", `Download chart ${titleOf(card)}`)
      const list = document.createElement("div")
      list.className = "pop"
      for (const [format, text] of CHOICES) {
        const button = document.createElement("button")
        button.type = "button"
        button.className = "link"
        button.textContent = text
        button.addEventListener("click", () => download(card, menu, format))
        list.append(button)
      }
      menu.append(summary, list)
      head.append(menu)
    }
  }

  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" ? event.target.closest?.("details.chart-menu[open]") : null
    if (!open) return
    open.removeAttribute("open")
    open.querySelector("summary").focus()
  })

  async function download(card, menu, format) {
    menu.removeAttribute("open")
    menu.querySelector("summary").focus()
    const view = viewIn(card)
    if (view === null) return
    const blob = format === "csv" ? csvOf(view.model) : format === "svg" ? await svgOf(card, view) : await pngOf(card, view)
    save(blob, `${fileStem(card)}.${format}`)
  }

  function save(blob, name) {
    const link = document.createElement("a")
    link.href = URL.createObjectURL(blob)
    link.download = name
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000)
  }

  const titleOf = (card) => card.querySelector("h2")?.textContent ?? "chart"

  function fileStem(card) {
    const run = document.querySelector("#f-run h1")?.textContent ?? new URLSearchParams(location.search).get("runs") ?? ""
    const page = document.querySelector(".shell").dataset.page
    const words = `${page} ${run} ${titleOf(card)}`.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")
    return words.slice(0, 100).replaceAll(/^-+|-+$/g, "")
  }

  // The view of the figure in the card: of those that hold several the first.
  function viewIn(card) {
    for (const root of Object.values(Bokeh.index)) {
      if (!card.contains(root.el)) continue
      if (root.model?.renderers) return root
      for (const child of root.child_views ?? []) if (child.model?.renderers) return child
    }
    return null
  }

  // ---------------------------------------------------------------- pictures: the figure under its title and legend

  const legendOf = (card) => [...card.querySelectorAll(".legend > :not([aria-pressed=false])")].map((entry) => ({
    symbol: entry.querySelector(".swatch")?.textContent ?? "",
    color: getComputedStyle(entry.querySelector(".swatch") ?? entry).color,
    name: entry.textContent.replace(entry.querySelector(".swatch")?.textContent ?? "", "").trim(),
  }))

  const css = (name) => getComputedStyle(document.body).getPropertyValue(name).trim()

  // Where title and legend stand, for a figure of this width.
  function layout(card, width) {
    const pen = document.createElement("canvas").getContext("2d")
    pen.font = "12px sans-serif"
    const words = [{text: titleOf(card), x: MARGIN, y: MARGIN + 10, font: "bold 14px sans-serif", color: css("--text")}]
    let x = MARGIN
    let y = MARGIN + 10 + LINE
    const entries = legendOf(card)
    for (const {symbol, color, name} of entries) {
      const needed = 18 + pen.measureText(name).width + 14
      if (x > MARGIN && x + needed > width) [x, y] = [MARGIN, y + LINE]
      words.push({text: symbol, x, y, font: "12px sans-serif", color})
      words.push({text: name, x: x + 16, y, font: "12px sans-serif", color: css("--muted")})
      x += needed
    }
    return {words, height: entries.length ? y + 8 : MARGIN + 18}
  }

  async function svgOf(card, view) {
    const parsed = new DOMParser().parseFromString(await (await view.export("svg", false).to_blob()).text(), "image/svg+xml")
    const figure = parsed.documentElement
    const {width, height} = view.bbox
    const {words, height: above} = layout(card, width)
    const space = "http://www.w3.org/2000/svg"
    const whole = document.createElementNS(space, "svg")
    const add = (parent, name, attributes) => {
      const made = document.createElementNS(space, name)
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
      parent.append(made)
      return made
    }
    for (const [key, value] of Object.entries({width, height: height + above, viewBox: `0 0 ${width} ${height + above}`})) whole.setAttribute(key, value)
    add(whole, "title", {}).textContent = titleOf(card)
    add(whole, "rect", {width: "100%", height: "100%", fill: css("--surface")})
    for (const {text, x, y, font, color} of words) add(whole, "text", {x, y, fill: color, style: `font: ${font}`}).textContent = text
    add(whole, "g", {transform: `translate(0 ${above})`}).append(document.importNode(figure, true))
    return new Blob([new XMLSerializer().serializeToString(whole)], {type: "image/svg+xml"})
  }

  // Of the drawing, at twice the screen's size at least: sharp on a slide too.
  async function pngOf(card, view) {
    const picture = new Image()
    const address = URL.createObjectURL(await svgOf(card, view))
    picture.src = address
    await picture.decode()
    URL.revokeObjectURL(address)
    const scale = Math.max(2, window.devicePixelRatio)
    const canvas = document.createElement("canvas")
    canvas.width = picture.naturalWidth * scale
    canvas.height = picture.naturalHeight * scale
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height)
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"))
  }

  // ---------------------------------------------------------------- figures

  // A block for each layer that has rows, with names, axes and units in its head.
  function csvOf(figure) {
    const blocks = []
    const seen = new Set()
    for (const {data_source: source, glyph, visible} of figure.renderers) {
      if (!source || !visible || seen.has(source)) continue
      seen.add(source)
      const columns = source.columns().filter((name) => !LOOKS.has(name) && source.get_column(name)?.length)
      if (!columns.length) continue
      const values = columns.map((name) => [...source.get_column(name)])
      const layer = (source.name ?? "").split(":").pop() || glyph.type
      const lines = [["layer", ...columns.map((name) => headOf(figure, glyph, name))]]
      for (let row = 0; row < values[0].length; row++) lines.push([layer, ...values.map((column) => column[row])])
      blocks.push(lines.map((line) => line.map(cell).join(",")).join("\r\n"))
    }
    return new Blob(["\ufeff", blocks.join("\r\n\r\n"), "\r\n"], {type: "text/csv;charset=utf-8"})
  }

  // A column that lies along an axis tells what the axis tells.
  function headOf(figure, glyph, name) {
    const along = (places) => places.some((place) => glyph[place]?.field === name)
    const axis = along(["x", "x0", "x1", "left", "right", "xs"]) ? figure.below[0] ?? figure.above[0] : along(["y", "y0", "y1", "top", "bottom", "ys"]) ? figure.left[0] ?? figure.right[0] : null
    if (axis === null || axis === undefined) return name
    const words = [axis.axis_label, axis.formatter?.tags?.[0]].filter((word) => typeof word === "string" && word)
    return words.length ? `${name} (${words.join(", ")})` : name
  }

  // What a spreadsheet would take for a formula gets an apostrophe: names come from users.
  function cell(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return ""
    if (typeof value === "number") return String(value)
    let text = String(value)
    if (/^[=+\-@\t\r]/.test(text)) text = `'${text}`
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
  }

  // ---------------------------------------------------------------- runs as documents

  // Outside of what the server's fragments replace.
  function statusLine() {
    const known = document.getElementById("export-status")
    if (known !== null) return known
    const made = document.createElement("div")
    made.id = "export-status"
    made.setAttribute("role", "status")
    document.getElementById("f-banner").after(made)
    return made
  }

  document.addEventListener("click", async (event) => {
    const link = event.target.closest?.("a[data-export]")
    if (!link) return
    event.preventDefault()
    const status = statusLine()
    link.closest("details")?.removeAttribute("open")
    status.className = "banner"
    status.textContent = `Drawing ${link.dataset.export} …`
    try {
      const answer = await fetch(link.href)
      if (!answer.ok) throw new Error((await answer.text()).trim())
      save(await answer.blob(), link.download)
      status.textContent = ""
    } catch (error) {
      status.className = "banner bad"
      status.textContent = `Not written: ${error.message}`
    }
  })

  document.addEventListener("kernalyse-enter", addMenus)
})()
