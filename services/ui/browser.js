// Address, history and links of the dashboard, and word of each update that has been drawn. Its Python side is Browser in shell.py.
const [DRAWN_MS, LONGEST_MS] = [2500, 20_000] // a page that has kept its size for so long is drawn; that it is waited for

export function render({model}) {
  const root = document.documentElement
  const main = document.getElementById("main")
  let visits = 0
  let wanted = "" // where the user is going
  const over = new AbortController() // when another takes the place of this one
  const {signal} = over

  // ------------------------------------------------------------ address and history

  const here = () => location.pathname + location.search
  const visit = (address) => { model.visited = [wanted = address, ++visits] }

  // Another page is a step of the history, and so is another layer that is looked into; another filter is not.
  const stepOf = ({pathname, searchParams}) => pathname + (searchParams.get("layer") ?? "")
  function showAddress() {
    const address = new URL(model.address, location.href)
    mark(address.pathname)
    wanted = ""
    if (address.pathname + address.search === here()) return
    const before = new URL(location.href)
    if (stepOf(address) === stepOf(before)) history.replaceState(null, "", address)
    else {
      const left = new URL(model.left || here(), location.href) // its last filters may not have been shown here yet
      if (left.pathname === before.pathname && left.pathname !== address.pathname) history.replaceState(null, "", left)
      history.pushState(null, "", address)
    }
    if (address.pathname !== before.pathname) {
      scrollTo(0, 0)
      main.focus({preventScroll: true})
    }
  }

  // The navigation is part of the template: it is there before anything else.
  function mark(pathname) {
    for (const link of document.querySelectorAll("nav a")) {
      link.href = model.links[link.pathname.slice(1)] ?? link.href
      if (link.pathname === pathname) link.setAttribute("aria-current", "page")
      else link.removeAttribute("aria-current")
    }
    document.querySelector("nav [aria-current]")?.scrollIntoView({block: "nearest", inline: "center"})
  }

  // Links to views are links in any component, inside of its shadow root. One that begins with "?" says what differs from the view
  // that is shown: rows of tables need no other link with each choice. With data-toggle a second click takes the choice back.
  function linkOf(event) {
    const link = event.composedPath().find((element) => element.nodeName === "A" && element.href)
    if (!link) return null
    link.dataset.part ??= link.getAttribute("href")
    if (link.dataset.part.startsWith("?")) {
      const query = new URLSearchParams(location.search)
      for (const [name, value] of new URLSearchParams(link.dataset.part)) {
        if (value === "" || ("toggle" in link.dataset && query.get(name) === value)) query.delete(name)
        else query.set(name, value)
      }
      link.href = `${location.pathname}?${query}`
    }
    return link
  }

  function follow(event) {
    const link = linkOf(event)
    if (link?.classList.contains("drawn")) return save(event, link)
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || link.target || link.hasAttribute("download")) return
    if (link.origin !== location.origin || !(link.pathname.slice(1) in model.links)) return
    event.preventDefault()
    visit(link.pathname + link.search)
  }

  // A document takes seconds to draw, and may be refused.
  async function save(event, link) {
    const told = document.getElementById("drawing")
    event.preventDefault()
    link.closest("details").open = false
    told.className = ""
    told.textContent = `Drawing ${link.textContent} …`
    try {
      const answer = await fetch(link.href)
      if (!answer.ok) throw new Error((await answer.text()).trim())
      const href = URL.createObjectURL(await answer.blob())
      Object.assign(document.createElement("a"), {href, download: link.download}).click()
      URL.revokeObjectURL(href)
      told.textContent = ""
    } catch (error) {
      told.className = "bad"
      told.textContent = `Not written: ${error.message}`
    }
  }

  // Escape closes what is open before it leads anywhere.
  addEventListener("keydown", (event) => {
    const isTaken = event.composedPath().some((element) => element.matches?.("input, select, textarea, dialog[open], details[open], .modal"))
    if (event.key === "Escape" && model.out && !isTaken) visit(model.out)
  }, {capture: true, signal})
  addEventListener("popstate", () => visit(here()), {signal})
  document.addEventListener("click", follow, {signal})
  for (const kind of ["pointerdown", "contextmenu"]) document.addEventListener(kind, linkOf, {signal}) // opened elsewhere, or copied
  model.on("address", showAddress)
  model.on("title", () => { document.title = model.title })
  const showSubject = () => { root.dataset.subject = model.subject }
  model.on("subject", showSubject)
  model.on("links", () => mark(location.pathname))

  // ------------------------------------------------------------ light and dark

  // Pages are drawn anew in the other colours, which takes a while: what is looked at stays where it is, unless somebody moves meanwhile.
  let keeping = new AbortController()
  function keepPlace() {
    const place = scrollY
    keeping.abort()
    const {signal: moved} = keeping = new AbortController()
    main.style.minHeight = `${main.offsetHeight}px`
    for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) addEventListener(kind, () => keeping.abort(), {signal: moved})
    let isFirst = true // told of the size as it is
    let timer = setTimeout(leave, LONGEST_MS)
    const drawn = new ResizeObserver(() => {
      if (!isFirst) {
        clearTimeout(timer)
        timer = setTimeout(leave, DRAWN_MS)
      }
      isFirst = false
    })
    for (const {el} of Bokeh.index.roots) if (main.contains(el)) drawn.observe(el)
    function leave() {
      drawn.disconnect()
      if (keeping.signal !== moved) return
      main.style.minHeight = ""
      if (!moved.aborted) scrollTo(0, place)
      keeping.abort()
    }
  }

  function showTheme() {
    if (root.dataset.theme === model.theme) return
    root.dataset.theme = model.theme
    keepPlace()
  }
  document.getElementById("theme")?.addEventListener("click", () => {
    model.theme = model.theme === "dark" ? "light" : "dark"
    document.cookie = `kernalyse_theme=${model.theme}; Path=/; SameSite=Strict; Max-Age=31536000`
    showTheme()
  }, {signal})
  model.on("theme", showTheme)

  // ------------------------------------------------------------ what was typed

  // Kept in the browser: a server that was restarted knows nothing of it.
  const drafts = "kernalyse drafts"
  model.on("drafts", () => sessionStorage.setItem(drafts, JSON.stringify(model.drafts)))
  const kept = sessionStorage.getItem(drafts)
  if (kept !== null) model.found_drafts = JSON.parse(kept)

  // ------------------------------------------------------------ what has the focus

  // Tables, lists and legends are drawn anew with what arrives: the focus stays on the link to the same place, on the same series.
  let [focused, among] = [null, null]
  const keyOf = (element) => element.dataset.series ?? element.getAttribute("href")
  const redrawn = new MutationObserver(() => {
    const key = document.activeElement === document.body && focused && keyOf(focused)
    if (key) [...among.querySelectorAll("a, [data-series]")].find((element) => keyOf(element) === key)?.focus({preventScroll: true})
  })
  const keepFocus = (event) => {
    focused = event.composedPath()[0]
    among = focused.getRootNode()
    among.addEventListener("focusin", keepFocus, {signal}) // the document hears of no step within a shadow root
    redrawn.disconnect()
    redrawn.observe(among, {childList: true, subtree: true})
  }
  document.addEventListener("pointerdown", () => { focused = null }, {signal}) // a click beside it takes the focus away for good
  document.addEventListener("focusin", keepFocus, {signal})

  // ------------------------------------------------------------ a server that went away

  const lost = document.getElementById("lost")
  Bokeh.documents[0].on_event("connection_lost", () => {
    if (!lost.hidden) return
    lost.hidden = false
    const again = async () => {
      try {
        const answer = await fetch("/assets/tokens.css", {method: "HEAD", cache: "no-store"})
        if (answer.ok || answer.status === 401) return await comeAnew(wanted || here())
      } catch { /* still away */ }
      setTimeout(again, 1000)
    }
    setTimeout(again, 500)
  })

  // Files that are being sent are known to this document alone: then it stays, and is filled as at first.
  async function comeAnew(address) {
    if (dispatchEvent(new Event("kernalyse-reload", {cancelable: true}))) return address === here() ? location.reload() : location.assign(address)
    const {pathname, search} = new URL(address, location.href)
    const answer = await fetch(`${pathname}/${search}`)
    if (!answer.ok) return location.assign(address) // such as the login form
    const page = await answer.text()
    for (const view of [...Bokeh.index.roots]) view.remove()
    Bokeh.documents.shift()
    delete root.dataset.ready
    lost.hidden = true
    main.replaceChildren(document.createRange().createContextualFragment(page))
  }

  // ------------------------------------------------------------ updates

  model.on("sent", () => {
    const {sent} = model
    const begin = performance.now()
    requestAnimationFrame(function look() {
      // Children that are on their way have models and no views: an input among them cannot be changed yet.
      if (performance.now() - begin < 2000 && ![...Bokeh.index.roots].every(isDrawn)) requestAnimationFrame(look)
      else if (model.acknowledged < sent) model.acknowledged = sent
    })
  })

  function isDrawn(view) {
    const {child_models = [], child_views = []} = view
    return view.has_finished() && child_views.length >= child_models.length && child_views.every(isDrawn)
  }

  model.on("remove", () => {
    over.abort()
    redrawn.disconnect()
  })
  showAddress()
  showSubject()
  model.acknowledged = model.sent
  root.dataset.ready = "yes"
}
