// The Layers page: each layer looked into is a step of the browser's history, and Escape goes out to the layer around.
"use strict"
;(() => {
  const layerOf = (search) => new URLSearchParams(search).get("layer") ?? ""
  let shown = location.href

  // Wishes travel by the buttons that the page's own script (shell.js) listens to.
  function lookInto(layer) {
    const button = document.createElement("button")
    Object.assign(button.dataset, {action: "set", value: "layer=" + layer})
    button.hidden = true
    document.body.append(button)
    button.click()
    button.remove()
  }

  // The page's own script replaces the URL when the view has changed; a new layer becomes a step of its own.
  new MutationObserver(() => {
    const now = location.href
    if (layerOf(new URL(shown).search) !== layerOf(location.search)) {
      history.replaceState(null, "", shown)
      history.pushState(null, "", now)
    }
    shown = now
  }).observe(document.getElementById("f-crumbs"), {childList: true, subtree: true, attributes: true, characterData: true})

  addEventListener("popstate", () => {
    shown = location.href
    lookInto(layerOf(location.search))
  })

  // Charts of whole passes are on the page only where it was opened with a run of a model.
  const reload = document.getElementById("f-reload")
  new MutationObserver(() => { if (reload.querySelector("[data-reload]")) location.reload() }).observe(reload, {childList: true, subtree: true})

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open],details[open]") || event.target.closest?.("input,select")) return
    document.querySelector("[data-escape]")?.click()
  })
})()
