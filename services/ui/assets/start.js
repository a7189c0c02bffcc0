// The page Run / Import: its tabs and forms, files that are dropped on it, and traces that are sent in slices.
"use strict"
;(() => {
  const SLICE_BYTES = 8 * 1024 * 1024 // each is answered with where the next begins: what is lost with a line is sent again
  const FIRST_SLICE_BYTES = 1024 * 1024 // the analyzer refuses a file of the wrong kind by its beginning: no more of it is sent in vain
  const PATIENCE_MS = 120_000 // of a server that does not answer
  const AT_ONCE = 2 // imports that are sent beside each other
  const HEADERS = {"X-Kernalyse-Page": "start"}
  const KEPT = "kernalyse-start"

  const main = () => document.getElementById("start")
  const wish = (name, value) => document.dispatchEvent(new CustomEvent("kernalyse-wish", {detail: {name, value}}))
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

  // ---------------------------------------------------------------- tabs

  function show(tab, focus) {
    for (const panel of main().querySelectorAll('[role="tabpanel"]')) panel.hidden = panel.id !== "panel-" + tab
    for (const button of main().querySelectorAll("[data-tab]")) {
      const isChosen = button.dataset.tab === tab
      button.setAttribute("aria-selected", isChosen)
      button.tabIndex = isChosen ? 0 : -1
      if (isChosen && focus) button.focus()
    }
    wish("set", "form=" + tab)
  }

  document.addEventListener("click", (event) => {
    const tab = event.target.closest?.("[data-tab]")
    if (tab) show(tab.dataset.tab)
    const copy = event.target.closest?.("[data-copy]")
    if (copy) copyText(document.getElementById(copy.dataset.copy), copy)
  })

  document.addEventListener("keydown", (event) => {
    const tab = event.target.closest?.("[data-tab]")
    if (!tab) return
    const tabs = [...main().querySelectorAll("[data-tab]")]
    const at = tabs.indexOf(tab)
    const next = {ArrowRight: at + 1, ArrowLeft: at - 1 + tabs.length, Home: 0, End: tabs.length - 1}[event.key]
    if (next === undefined) return
    event.preventDefault()
    show(tabs[next % tabs.length].dataset.tab, true)
  })

  async function copyText(element, button) {
    try {
      await navigator.clipboard.writeText(element.textContent)
    } catch { // not over plain HTTP
      const range = document.createRange()
      range.selectNodeContents(element)
      getSelection().removeAllRanges()
      getSelection().addRange(range)
      document.execCommand("copy")
    }
    button.textContent = "Copied"
    setTimeout(() => { button.textContent = "Copy" }, 1500)
  }

  // ---------------------------------------------------------------- forms

  const said = (form) => JSON.stringify({form: form.dataset.form, values: Object.fromEntries([...new FormData(form)].filter(([, value]) => typeof value === "string"))})

  let typing = 0
  document.addEventListener("input", (event) => {
    const form = event.target.closest?.("[data-form]")
    if (!form || event.target.type === "file") return
    clearTimeout(typing)
    typing = setTimeout(() => { if (form.isConnected) { wish("form", said(form)); keep() } }, event.target.tagName === "SELECT" ? 0 : 250)
  })

  document.addEventListener("submit", (event) => {
    const form = event.target.closest?.("[data-form]")
    if (!form) return
    event.preventDefault()
    clearTimeout(typing)
    wish("start-run", said(form))
    keep()
  })

  // What stands in the forms, for who comes back to the page in this tab of the browser.
  function keep() {
    const kept = [...main().querySelectorAll("[data-form]")].map((form) => ({said: said(form), files: [...form.querySelectorAll("[data-file]")].map((chip) => chip.dataset.file)}))
    try { sessionStorage.setItem(KEPT, JSON.stringify(kept)) } catch { /* full, or switched off */ }
  }

  function restore() {
    let kept = []
    try { kept = JSON.parse(sessionStorage.getItem(KEPT)) ?? [] } catch { /* nothing to restore */ }
    const touched = kept.filter(({said, files}) => files.length || Object.values(JSON.parse(said).values).some((value) => value !== ""))
    const wishes = touched.flatMap(({said, files}) => [["form", said], ...[...new Set(files)].map((file_id) => ["give", JSON.stringify({form: JSON.parse(said).form, file_id})])])
    // One after the other: the bridge tells the server of its newest wish.
    wishes.forEach(([name, value], at) => setTimeout(() => wish(name, value), at * 20))
  }

  // ---------------------------------------------------------------- files for the forms

  async function give(form, files) {
    for (const file of files) {
      try {
        const answer = await fetch("/files?name=" + encodeURIComponent(file.name), {method: "POST", headers: HEADERS, body: file})
        const told = await answer.json()
        if (!answer.ok) tell(told.problem)
        else if (main()) wish("give", JSON.stringify({form, file_id: told.file_id}))
      } catch {
        tell(`${file.name} could not be sent: the dashboard's server does not answer, or the file cannot be read.`)
      }
    }
    setTimeout(() => { if (main()) keep() }, 1000)
  }

  const problems = [] // of uploads, also those that ended while another page was shown

  function tell(sentence) {
    problems.push(sentence)
    if (main()) showProblem(sentence)
  }

  function showProblem(sentence) {
    const line = document.createElement("li")
    line.className = "problem block"
    line.textContent = sentence
    document.getElementById("upload-problems").append(line)
  }

  // ---------------------------------------------------------------- imports

  const waiting = []
  let sending = 0

  function importFiles(files) {
    const list = [...files].filter(({file}) => file.size > 0 || files.length > 1)
    for (const {file} of files) if (!list.some((one) => one.file === file)) tell(`${file.name} is empty.`)
    if (!list.length) return
    const together = main().querySelector('input[name="together"]:checked').value
    const isFolder = list.every(({name}) => name.includes("/"))
    if (together === "apart" && !isFolder) for (const one of list) waiting.push([one])
    else waiting.push(together === "job" ? list.map((one, at) => ({...one, isFurther: at > 0})) : inOrder(list))
    sendNext()
  }

  // The first file tells what the trace is: of a folder a table, of several files the largest.
  function inOrder(list) {
    const isTable = ({name}) => /\.(parquet|arrow)$/.test(name)
    return [...list].sort((one, other) => isTable(other) - isTable(one) || other.file.size - one.file.size)
  }

  async function sendNext() {
    if (sending >= AT_ONCE || !waiting.length) return
    sending += 1
    const files = waiting.shift()
    try {
      await send(files)
    } catch (error) {
      tell(`${files[0].name}: ${error.message}`)
    }
    sending -= 1
    sendNext()
  }

  async function ask(url, options) {
    const begin = Date.now()
    for (;;) {
      try {
        const answer = await fetch(url, {...options, headers: HEADERS})
        return [answer.status, await answer.json()]
      } catch (error) {
        if (error.name === "NotReadableError" || Date.now() - begin > PATIENCE_MS) throw new Error("it could not be sent; choose it again, and it goes on where it stopped.")
        await pause(1000)
        // What has arrived of a slice only the server knows.
        if (options.method === "PUT") return ask(url.split("?")[0], {method: "GET"})
      }
    }
  }

  async function send(files) {
    const announced = files.map(({file, name, isFurther}) => ({name, size: file.size, modified: file.lastModified, is_further_trace: Boolean(isFurther)}))
    const announce = (upload_id) => ask("/imports", {method: "POST", body: JSON.stringify({files: announced, upload_id})})
    let [status, told] = await announce("")
    const {upload_id} = told
    const url = "/imports/" + upload_id
    for (;;) {
      // A server that was started anew goes on with what the analyzer has.
      if (status === 404) [status, told] = await announce(upload_id)
      if (!told.upload_id) throw new Error(told.problem)
      if (["done", "failed", "cancelled"].includes(told.state)) return
      if (told.state === "receiving" && told.file < files.length) {
        const {file} = files[told.file]
        const slice = file.slice(told.offset, told.offset + (told.offset ? SLICE_BYTES : FIRST_SLICE_BYTES))
        ;[status, told] = await ask(`${url}?file=${told.file}&offset=${told.offset}`, {method: "PUT", body: slice})
      } else [status, told] = await ask(url, {method: "GET"})
    }
  }

  // ---------------------------------------------------------------- choosing and dropping

  function take(files) {
    const wanted = {sweep: [], model: [], import: []}
    const tab = main().querySelector('[data-tab][aria-selected="true"]').dataset.tab
    for (const one of files) {
      const name = one.name.toLowerCase()
      if (tab === "command") (wanted.command ??= []).push(one)
      else if (/\.(cuh?|h|hpp)$/.test(name)) wanted.sweep.push(one)
      else if (/\.onnx(_data|\.data)?$/.test(name) || (tab === "prompt" && name.endsWith(".json"))) (wanted[tab === "prompt" ? "prompt" : "model"] ??= []).push(one)
      else wanted.import.push(one)
    }
    for (const [form, some] of Object.entries(wanted)) {
      if (!some.length) continue
      if (form !== tab) show(form)
      if (form === "import") importFiles(some)
      else give(form, some.map(({file}) => file))
    }
  }

  async function filesOf(entry, path = "") {
    if (entry.isFile) return [{file: await new Promise((resolve, reject) => entry.file(resolve, reject)), name: path + entry.name}]
    const reader = entry.createReader()
    const found = []
    for (;;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject))
      if (!some.length) break
      found.push(...some)
    }
    return (await Promise.all(found.map((one) => filesOf(one, `${path}${entry.name}/`)))).flat()
  }

  const hasFiles = (event) => main() && [...(event.dataTransfer?.types ?? [])].includes("Files")
  let depth = 0
  const veil = (change) => { depth = Math.max(0, depth + change); main().classList.toggle("dragging", depth > 0) }
  document.addEventListener("dragenter", (event) => { if (hasFiles(event)) veil(1) })
  document.addEventListener("dragleave", (event) => { if (hasFiles(event)) veil(-1) })
  document.addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault() })
  document.addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    depth = 0
    veil(0)
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean)
    const plain = [...event.dataTransfer.files].map((file) => ({file, name: file.name}))
    if (!entries.some((entry) => entry.isDirectory)) return void take(plain)
    for (const entry of entries) {
      try {
        take(await filesOf(entry))
      } catch {
        tell(`${entry.name} cannot be read.`)
      }
    }
  })

  document.addEventListener("change", (event) => {
    const input = event.target
    if (input.type !== "file" || !input.files.length) return
    const files = [...input.files].map((file) => ({file, name: file.webkitRelativePath || file.name}))
    if (input.dataset.give) give(input.dataset.give, files.map(({file}) => file))
    else if (input.hasAttribute("data-import")) importFiles(files)
    input.value = ""
  })

  // ---------------------------------------------------------------- a run that was started

  document.addEventListener("kernalyse-enter", () => {
    if (!main()) return
    problems.forEach(showProblem)
    depth = 0
    new MutationObserver(() => {
      const link = document.querySelector("#f-started [data-go]")
      link?.click()
    }).observe(document.getElementById("f-started"), {childList: true})
  })
  document.addEventListener("kernalyse-drawn", () => { if (main()) restore() })
  document.addEventListener("kernalyse-leave", () => { if (main()) keep() })
})()
