// A point chosen in the table is explained beside the chart: both come into view.
"use strict"
document.addEventListener("click", (event) => {
  if (!event.target.closest?.("#f-results [data-action='point']")) return
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches
  // Under 1080 pixels the explanation stands below the chart.
  const wanted = innerWidth > 1080 ? document.querySelector(".diagnosed") : document.getElementById("f-point")
  wanted.scrollIntoView({block: "start", behavior: isCalm ? "auto" : "smooth"})
})
