// The Layers page: each layer looked into is a step of the browser's history, and Escape goes out to the layer around.
"use strict"
;(() => {
  let shown = location.href

  const isShown = () => document.querySelector('.shell[data-page="layers"]') !== null

  // What an address shows, the layer and the rest.
  function partsOf(address) {
    const url = new URL(address)
    const layer = url.searchParams.get("layer") ?? ""
    url.searchParams.delete("layer")
    return {layer, rest: url.pathname + url.search}
  }

  function lookInto(layer) {
    document.dispatchEvent(new CustomEvent("kernalyse-wish", {detail: {name: "set", value: "layer=" + layer}}))
  }

  document.addEventListener("kernalyse-enter", () => {
    if (!isShown()) return
    shown = location.href
    // The page's own script replaces the URL when the view has changed; a new layer becomes a step of its own.
    new MutationObserver(() => {
      if (!isShown()) return
      const now = location.href
      if (partsOf(shown).layer !== partsOf(now).layer) {
        history.replaceState(history.state, "", shown)
        history.pushState(null, "", now)
      }
      shown = now
    }).observe(document.getElementById("f-crumbs"), {childList: true, subtree: true, attributes: true, characterData: true})

    // Charts of whole passes are on the page only where it was opened with a run of a model.
    const reload = document.getElementById("f-reload")
    new MutationObserver(() => { if (reload.querySelector("[data-reload]")) location.reload() }).observe(reload, {childList: true, subtree: true})
  })

  document.addEventListener("kernalyse-back", (event) => {
    if (!isShown() || partsOf(shown).rest !== partsOf(location.href).rest) return
    event.preventDefault()
    shown = location.href
    lookInto(partsOf(shown).layer)
  })

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isShown() || document.querySelector("dialog[open],details[open]") || event.target.closest?.("input,select")) return
    document.querySelector("[data-escape]")?.click()
  })
})()
