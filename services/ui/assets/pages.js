// Draws a page's charts, and goes from page to page: the next one is fetched, and its content takes the place of this one's.
// So the browser keeps what it has read and compiled, and an upload that is under way goes on.
"use strict"
;(() => {
  const PLACE_MS = 5000 // for what a page shows to come

  let page = null // the one that is shown
  let going = null // ends the visit that is under way

  const shell = () => document.querySelector(".shell")
  const say = (name, detail) => document.dispatchEvent(new CustomEvent("kernalyse-" + name, {detail, cancelable: true}))

  // ---------------------------------------------------------------- a page's session and its charts

  function opened(token, url) {
    const {pull_session: pull} = Bokeh.require("@bokehjs/client/connection")
    return pull(`${url.protocol.replace("http", "ws")}//${url.host}${url.pathname}/ws`, token, url.search.slice(1))
  }

  function enter(opening) {
    page = {opening, built: null, over: new AbortController()}
    document.querySelector("#f-nav [aria-current]").scrollIntoView({block: "nearest", inline: "center"})
    say("enter")
    draw(page)
  }

  async function draw(own) {
    let bokeh
    try {
      bokeh = (await own.opening).document
    } catch {
      if (own === page) say("lost")
      return
    }
    if (own !== page) return
    bokeh.on_event("connection_lost", () => { if (own === page) say("lost") })
    own.built = build(own, bokeh)
    await own.built
  }

  // What is seen comes first; charts further down, or of a part that is not shown yet, follow when the page is in use.
  async function build(own, bokeh) {
    const {ViewManager} = Bokeh.require("@bokehjs/core/view_manager")
    const views = bokeh.views_manager = new ViewManager([], Bokeh.index)
    const charts = bokeh.all_roots.filter(({default_view: view}) => view)
    for (const root of bokeh.all_roots) if (!charts.includes(root)) bokeh.notify_idle(root)
    const places = new Map(charts.map((root) => [root, document.querySelector(`[data-root-id="${root.id}"]`)]))
    for (const [root, place] of places) place.style.minHeight = `${root.min_height ?? 0}px` // as much as it will take: what follows stays where it is
    const seen = charts.filter((root) => isSeen(places.get(root).parentElement))
    const put = async (root) => {
      if (own !== page) return
      const view = await views.build_view(root)
      view.build(places.get(root))
      places.get(root).style.minHeight = ""
    }
    for (const root of seen) await put(root)
    while (own === page && !views.roots.every((view) => view.has_finished())) await pause(10)
    if (own === page) say("drawn", bokeh)
    for (const root of charts) {
      if (seen.includes(root)) continue
      await pause(0)
      await put(root)
    }
  }

  const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms) })

  const isSeen = (element) => element.checkVisibility() && element.getBoundingClientRect().top < innerHeight

  // Figures of Bokeh listen there for good, and would stay in memory with all that they show.
  const listen = visualViewport.addEventListener
  visualViewport.addEventListener = (kind, heard) => listen.call(visualViewport, kind, heard, {signal: page?.over.signal})

  // Nothing of it may stay behind: who keeps the dashboard open goes through hundreds of pages.
  async function leave() {
    const old = page
    page = null
    say("leave")
    old.over.abort()
    try {
      const session = await old.opening
      const bokeh = session.document
      Bokeh.documents.splice(Bokeh.documents.indexOf(bokeh), 1)
      session.close()
      await old.built
      bokeh.views_manager?.clear()
    } catch { /* it was never opened */ }
  }

  // ---------------------------------------------------------------- from page to page

  async function visit(url, {isNew = true, scroll = 0, focus = "main"} = {}) {
    going?.abort()
    const own = going = new AbortController()
    shell().dataset.leaving = "yes"
    let next = null
    try {
      const answer = await fetch(url, {signal: own.signal})
      if (answer.ok) next = new DOMParser().parseFromString(await answer.text(), "text/html")
    } catch {
      if (!own.signal.aborted) say("lost", url)
      return
    }
    // The login form, an error, or a server that has been renewed.
    if (next === null || !next.querySelector(".shell") || programs(next) !== programs(document)) return void location.assign(url)
    const opening = opened(next.querySelector(".shell").dataset.session, new URL(url, location.href))
    opening.catch(() => {}) // told when it is drawn
    leave()
    if (isNew && url !== location.href) {
      history.replaceState({scroll: scrollY}, "")
      history.pushState(null, "", url)
    }
    document.title = next.title
    for (const part of [".shell", ".anchor"]) document.querySelector(part).replaceWith(document.adoptNode(next.querySelector(part)))
    going = null
    enter(opening)
    document.querySelector("main").tabIndex = -1
    document.querySelector(focus).focus({preventScroll: true})
    scrollTo(0, scroll)
    if (scroll) keepPlace(scroll)
  }

  // Charts and rows make the page as long as it was one after the other: until then, or until somebody moves, it stays in its place.
  function keepPlace(scroll) {
    const growth = new ResizeObserver(() => scrollTo(0, scroll))
    const over = AbortSignal.any([page.over.signal, AbortSignal.timeout(PLACE_MS)])
    over.addEventListener("abort", () => growth.disconnect())
    for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) addEventListener(kind, () => growth.disconnect(), {signal: over})
    growth.observe(document.querySelector("main"))
  }

  // What a link cannot ask for: the page that is shown, in other colours.
  document.addEventListener("kernalyse-visit", ({detail: {url, ...how}}) => visit(url, how))

  const programs = (of) => [...of.head.querySelectorAll("script[src],link[rel=stylesheet]")].map((one) => one.getAttribute("src") ?? one.getAttribute("href")).join()

  const isPage = (url) => url.origin === location.origin && [...document.querySelectorAll("#f-nav a")].some(({pathname}) => pathname === url.pathname)

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]")
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return
    if (link.target || link.hasAttribute("download") || !isPage(link)) return
    event.preventDefault()
    visit(link.href)
  })

  // A page may go back by itself, within its view.
  history.scrollRestoration = "manual"
  addEventListener("pagehide", () => { history.scrollRestoration = "auto" })
  addEventListener("popstate", (event) => {
    if (say("back")) visit(location.href, {isNew: false, scroll: event.state?.scroll ?? 0})
  })

  document.addEventListener("DOMContentLoaded", () => enter(opened(shell().dataset.session, location)))
})()
