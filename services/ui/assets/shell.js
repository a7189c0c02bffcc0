// The page's own part: puts fragments in place, tells the server what was drawn, sends the user's wishes.
// Its counterpart, services/ui/session.py's Bridge, comes with the page's charts, on the invisible model named "bridge".
"use strict"
;(() => {
  let bridge = null
  let wishes = 0
  let placed = null // the fragments last put in place
  const begun = new WeakMap() // forms that somebody has typed in, and the etag of what was typed over
  let chosen = null // the button whose confirmation is being asked for

  const shell = () => document.querySelector(".shell")

  function wish(name, value) {
    if (bridge === null) return
    wishes += 1
    // The number makes the same wish twice two changes.
    bridge.command = JSON.stringify({name, value, number: wishes})
  }

  // ---------------------------------------------------------------- fragments

  function place(id, html) {
    const element = document.getElementById("f-" + id)
    if (element === null) return
    const isLog = element.classList.contains("log")
    const isAtEnd = isLog && element.scrollHeight - element.scrollTop - element.clientHeight < 24
    const wanted = document.createElement("template")
    wanted.innerHTML = html
    const typed = typedIn(element)
    patchChildren(element, wanted.content)
    // A field that has moved is another one, and takes over what was typed.
    for (const {id, said, text} of typed) {
      const field = document.getElementById(id)
      if (field && field.value !== text && saidValue(field) === said) field.value = text
    }
    if (isAtEnd) element.scrollTop = element.scrollHeight
  }

  // Changes only what differs: elements that stay keep focus, scroll position, open menus and the pointer's click.
  function patchChildren(shown, wanted) {
    let old = shown.firstChild
    for (const fresh of [...wanted.childNodes]) {
      // An option that is moved leaves the next one of its list chosen: a copy takes its place.
      if (old === null) shown.append(fresh.nodeName === "OPTION" ? fresh.cloneNode(true) : fresh)
      else {
        const next = old.nextSibling
        if (isSameKind(old, fresh)) patch(old, fresh)
        else shown.replaceChild(fresh, old)
        old = next
      }
    }
    while (old !== null) {
      const next = old.nextSibling
      old.remove()
      old = next
    }
  }

  function isSameKind(old, fresh) {
    return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && old.id === fresh.id
  }

  function patch(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue
      return
    }
    const isLeftAlone = old === document.activeElement || begun.has(old.form)
    const [saidBefore, shownBefore] = [saidValue(old), old.value]
    for (const {name, value} of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value)
    for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name)
    patchChildren(old, fresh)
    if (saidBefore === undefined) return
    // A field shows what the server says anew, else what somebody has typed or chosen; who is typing, or has begun a form, is left alone.
    const said = saidValue(old)
    const shown = said !== saidBefore && !isLeftAlone ? said : shownBefore
    if (old.value !== shown) old.value = shown
    if (old.nodeName === "SELECT" && old.selectedIndex < 0 && said !== null) old.value = said
  }

  // What somebody has written into fields with an id and has not been said by the server: a form that grows moves them.
  function typedIn(element) {
    const fields = [...element.querySelectorAll("input[id]")].map((field) => ({id: field.id, said: saidValue(field), text: field.value}))
    return fields.filter(({said, text}) => said !== undefined && said !== text)
  }

  // The value that the server gave a field; null: none. Undefined: no such field.
  function saidValue(element) {
    if (element.nodeName === "SELECT") return element.querySelector("option[selected]")?.value ?? null
    const isText = element.nodeName === "INPUT" && !["checkbox", "radio", "file", "hidden"].includes(element.type)
    return isText ? element.getAttribute("value") ?? "" : undefined
  }

  function showQuery(query) {
    const url = location.pathname + (query ? "?" + query : "")
    if (url !== location.pathname + location.search && !shell().dataset.leaving) history.replaceState(history.state, "", url)
  }

  function receive() {
    if (bridge === null) return
    const fragments = bridge.fragments
    const entries = fragments instanceof Map ? fragments : Object.entries(fragments)
    if (placed !== fragments) for (const [id, html] of entries) place(id, html)
    placed = fragments
    restore()
    showQuery(bridge.query)
    const sent = bridge.sent
    const own = bridge
    requestAnimationFrame(() => { if (own.acknowledged < sent) own.acknowledged = sent })
  }

  function attach({detail: bokeh}) {
    bridge = bokeh.get_model_by_name("bridge").tags[0]
    placed = bridge.fragments
    bridge.properties.sent.change.connect(receive)
    showQuery(bridge.query)
    bridge.acknowledged = bridge.sent
    restore()
    shell().dataset.ready = "yes"
    const log = document.getElementById("f-log")
    if (log) log.scrollTop = log.scrollHeight
  }

  document.addEventListener("kernalyse-drawn", attach)
  document.addEventListener("kernalyse-leave", () => {
    bridge?.properties.sent.change.disconnect(receive)
    bridge = null
    ;[carried, leaving] = [leaving, nothing()]
  })
  document.addEventListener("kernalyse-enter", () => restoreFolds())

  // ---------------------------------------------------------------- a server that went away

  // Once it is there again: the page that somebody wanted to see, or this one as it is. Uploads wait for it meanwhile.
  document.addEventListener("kernalyse-lost", ({detail: url}) => {
    const lost = document.getElementById("lost")
    if (!lost.hidden) return
    lost.hidden = false
    const again = async () => {
      try {
        const answer = await fetch("/assets/shell.css", {method: "HEAD", cache: "no-store"})
        if (answer.ok || answer.status === 401) {
          lost.hidden = true // or it could not go away a second time
          return url ? visit({url}) : comeAnew(location.href, "main")
        }
      } catch { /* still away */ }
      setTimeout(again, 1000)
    }
    setTimeout(again, 500)
  })

  const visit = (detail) => document.dispatchEvent(new CustomEvent("kernalyse-visit", {detail}))

  // ---------------------------------------------------------------- light and dark

  // Of the page that is to come anew: forms that somebody has begun, and which parts are unfolded.
  const nothing = () => ({forms: [], folds: new Map()})
  let leaving = nothing()
  let carried = nothing() // what has not found its place on it yet

  function changeTheme() {
    const name = shell().dataset.theme === "dark" ? "light" : "dark"
    document.cookie = `kernalyse_theme=${name}; Path=/; SameSite=Strict; Max-Age=31536000`
    const query = new URLSearchParams(location.search)
    query.set("theme", name)
    comeAnew(`${location.pathname}?${query.toString().replaceAll("%2C", ",")}`, "[data-theme-toggle]")
  }

  // The same page, where it was, with what was typed and as far unfolded.
  function comeAnew(url, focus) {
    const forms = [...document.querySelectorAll("form[data-wish]")].filter((form) => begun.has(form))
    leaving = {
      forms: forms.map((form) => ({wanted: form.dataset.wish, etag: begun.get(form), fields: [...new FormData(form)]})),
      folds: new Map(folds().map(([key, fold]) => [key, fold.open])),
    }
    visit({url, isNew: false, scroll: scrollY, focus})
  }

  // What unfolds, each with the id around it and its place there.
  function folds() {
    const counts = new Map()
    return [...document.querySelectorAll("details")].map((fold) => {
      const around = fold.closest("[id]")?.id ?? ""
      const place = counts.get(around) ?? 0
      counts.set(around, place + 1)
      return [`${around} ${place}`, fold]
    })
  }

  // As soon as it is there, once.
  function restoreFolds() {
    if (!carried.folds.size) return
    for (const [key, fold] of folds()) {
      if (carried.folds.has(key)) fold.open = carried.folds.get(key)
      carried.folds.delete(key)
    }
  }

  // Forms as soon as they are there, and of the same state.
  function restore() {
    restoreFolds()
    carried.forms = carried.forms.filter(({wanted, etag, fields}) => {
      const form = document.querySelector(`form[data-wish="${wanted}"]`)
      if (!form || form.elements.etag?.value !== etag) return true
      for (const [field, value] of fields) if (form.elements[field]) form.elements[field].value = value
      begun.set(form, etag)
      form.closest("details")?.setAttribute("open", "")
      return false
    })
  }

  // ---------------------------------------------------------------- wishes

  document.addEventListener("click", (event) => {
    const element = event.target.closest?.("[data-action],[data-theme-toggle],[data-dialog-confirm]")
    if (!element) {
      for (const open of document.querySelectorAll("details[open]:not(.stays)")) if (!open.contains(event.target)) open.removeAttribute("open")
      return
    }
    if (element.hasAttribute("data-theme-toggle")) return changeTheme()
    if (element.hasAttribute("data-dialog-confirm")) {
      if (chosen) wish(chosen.action, chosen.value)
      chosen = null
      return
    }
    if (element.tagName === "A") {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return
      event.preventDefault()
    }
    const {action, value, confirm} = element.dataset
    if (confirm) {
      chosen = {action, value}
      document.getElementById(confirm).showModal()
    } else wish(action, value)
  })

  const typing = new WeakMap() // by field: what is typed in one is not lost when another is changed right after
  document.addEventListener("input", ({target}) => {
    const {set} = target.dataset ?? {}
    if (!set) return
    clearTimeout(typing.get(target))
    typing.set(target, setTimeout(() => { if (target.isConnected) wish("set", `${set}=${target.value}`) }, target.tagName === "SELECT" ? 0 : 250))
  })
  document.addEventListener("change", (event) => {
    const {column, pick} = event.target.dataset ?? {}
    if (column) wish("column", column)
    if (pick) wish(pick, event.target.value)
  })

  // A form sends its fields as one wish, with the etag of the state that the first of them was typed over.
  document.addEventListener("input", (event) => {
    const form = event.target.form
    if (form?.dataset.wish && !begun.has(form)) begun.set(form, form.elements.etag?.value)
  })
  document.addEventListener("submit", (event) => {
    const form = event.target
    if (!form.dataset.wish) return
    event.preventDefault()
    const fields = Object.fromEntries(new FormData(form))
    if (begun.get(form)) fields.etag = begun.get(form)
    wish(form.dataset.wish, JSON.stringify(fields))
    form.closest("details.chart-menu")?.removeAttribute("open")
  })

  // Parts of single pages (assets/NAME.js) send wishes by an event.
  document.addEventListener("kernalyse-wish", ({detail}) => wish(detail.name, detail.value))
})()
