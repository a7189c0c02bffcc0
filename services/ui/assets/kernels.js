// The Kernels page's own part: brings the chosen row's card into view, wherever the choice was made.
"use strict"
;(() => {
  const keyOf = () => document.querySelector("#f-detail .has-choice")?.dataset.key ?? ""

  document.addEventListener("kernalyse-enter", () => {
    const detail = document.querySelector('[data-page="kernels"] #f-detail')
    if (detail === null) return
    let shown = keyOf()
    new MutationObserver(() => {
      const key = keyOf()
      if (key === shown) return
      shown = key
      if (key) requestAnimationFrame(() => detail.closest(".detail").scrollIntoView({block: "nearest", behavior: "smooth"}))
    }).observe(detail, {childList: true, subtree: true, attributes: true, attributeFilter: ["data-key"]})
  })
})()
