// Files that are chosen or dropped on the page: sent to the server, traces in slices that go on where a line broke. Its Python side is uploads.py.
const [SLICE_BYTES, FIRST_SLICE_BYTES] = [2 ** 23, 2 ** 20] // the analyzer refuses a file of the wrong kind by its beginning
const PATIENCE_MS = 120_000 // of a server that does not answer
const AT_ONCE = 2 // imports that are sent beside each other
const headers = {"X-Kernalyse-Page": "start"}
// One for the document: what is under way goes on while other forms and pages are shown, and the next picker tells of it.
const sender = (globalThis.kernalyseSender ??= {waiting: [], sending: 0, unsaid: [], picker: null})
const say = (message) => { sender.picker ? sender.picker.send_msg(message) : sender.unsaid.push(message) }
addEventListener("kernalyse-reload", (event) => { if (sender.sending) event.preventDefault() })

async function give(form, files) {
  for (const {file} of files) {
    const answer = await fetch("/files?name=" + encodeURIComponent(file.name), {method: "POST", headers, body: file}).then((told) => told.json())
      .catch(() => ({problem: `${file.name} could not be sent: the dashboard's server does not answer, or the file cannot be read.`}))
    say({form, ...answer})
  }
}

async function ask(url, options, deadline = Date.now() + PATIENCE_MS) {
  try {
    const answer = await fetch(url, {...options, headers})
    return [answer.status, await answer.json()]
  } catch (error) {
    if (error.name === "NotReadableError" || Date.now() > deadline) throw new Error("it could not be sent; choose it again, and it goes on where it stopped.")
    await new Promise((resolve) => setTimeout(resolve, 1000))
    return options.method === "PUT" ? ask(url.split("?")[0], {}) : ask(url, options, deadline) // what has arrived of a slice only the server knows
  }
}

async function send(files) {
  const announced = files.map(({file, name}, at) => ({name, size: file.size, modified: file.lastModified, is_further_trace: files.isJob && at > 0}))
  const announce = (upload_id) => ask("/imports", {method: "POST", body: JSON.stringify({files: announced, upload_id})})
  let [status, told] = await announce("")
  const {upload_id} = told
  while (!["done", "failed", "cancelled"].includes(told.state)) {
    if (status === 404) [status, told] = await announce(upload_id) // a server that was started anew goes on with what the analyzer has
    if (!told.upload_id) throw new Error(told.problem)
    const url = `/imports/${upload_id}?file=${told.file}&offset=${told.offset}`
    const body = files[told.file]?.file.slice(told.offset, told.offset + (told.offset ? SLICE_BYTES : FIRST_SLICE_BYTES))
    ;[status, told] = await (told.state === "receiving" && body ? ask(url, {method: "PUT", body}) : ask(url.split("?")[0], {}))
  }
}

async function sendNext() {
  if (sender.sending >= AT_ONCE || !sender.waiting.length) return
  sender.sending += 1
  const files = sender.waiting.shift()
  await send(files).catch((error) => say({problem: `${files[0].name}: ${error.message}`})).finally(() => { sender.sending -= 1 })
  sendNext()
}

const list = (reader) => new Promise((resolve, reject) => reader.readEntries(resolve, reject)).then(async (some) => some.length ? [...some, ...await list(reader)] : [])
async function filesOf(entry, path = "") {
  if (entry.isFile) return [{file: await new Promise((resolve, reject) => entry.file(resolve, reject)), name: path + entry.name}]
  return (await Promise.all((await list(entry.createReader())).map((one) => filesOf(one, `${path}${entry.name}/`)))).flat()
}
const within = (root, wanted) => [...root.querySelectorAll("*")].flatMap((one) => [...(one.matches(wanted) ? [one] : []), ...(one.shadowRoot ? within(one.shadowRoot, wanted) : [])])

export function render({model}) {
  const root = Object.assign(document.createElement("div"), {className: "pickers"})
  const over = new AbortController()
  const on = (name, listener) => document.addEventListener(name, (event) => root.checkVisibility() && listener(event), {signal: over.signal})
  const formOf = ({name}) => model.form === "command" ? "command" : model.kinds.find(([ending]) => new RegExp(ending, "i").test(name))?.[1] ?? "import"

  function take(form, files) {
    if (form !== model.form) say({show: form})
    if (form !== "import") return give(form, files)
    const some = files.filter(({file}) => file.size > 0 || files.length > 1)
    if (!some.length) return say({problem: `${files[0].name} is empty.`})
    const isTable = ({name}) => /\.(parquet|arrow)$/.test(name) // the first file tells what the trace is: of a directory a table, else the largest
    const sorted = [...some].sort((one, other) => isTable(other) - isTable(one) || other.file.size - one.file.size)
    const isApart = model.together === "apart" && !some.every(({name}) => name.includes("/"))
    sender.waiting.push(...(isApart ? some.map((one) => [one]) : [model.together === "job" ? Object.assign(some, {isJob: true}) : sorted]))
    for (const _ of Array(AT_ONCE)) sendNext()
  }
  const sort = (files) => Map.groupBy(files, formOf).forEach((some, form) => take(form, some))

  for (const {text, label, accept, of_directories} of model.buttons) {
    const button = Object.assign(document.createElement("label"), {className: "button", textContent: text})
    const input = Object.assign(document.createElement("input"), {type: "file", multiple: true, accept, webkitdirectory: of_directories, ariaLabel: label})
    input.addEventListener("change", () => { take(model.form, [...input.files].map((file) => ({file, name: file.webkitRelativePath || file.name}))); input.value = "" })
    button.append(input)
    root.append(button)
  }

  let depth = 0
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files")
  const veil = (change) => root.classList.toggle("dragging", (depth = Math.max(0, depth + change)) > 0)
  on("dragenter", (event) => { if (hasFiles(event)) veil(1) })
  on("dragleave", (event) => { if (hasFiles(event)) veil(-1) })
  on("dragover", (event) => { if (hasFiles(event)) event.preventDefault() })
  on("drop", async (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    veil(-Infinity)
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean)
    if (!entries.some((entry) => entry.isDirectory)) return sort([...event.dataTransfer.files].map((file) => ({file, name: file.name})))
    for (const entry of entries) await filesOf(entry).then(sort, () => say({problem: `${entry.name} cannot be read.`}))
  })

  on("click", async (event) => {
    const [button] = event.composedPath()
    if (!button.matches?.("[data-copy]")) return
    const area = Object.assign(document.createElement("textarea"), {value: button.previousElementSibling.textContent})
    await navigator.clipboard?.writeText(area.value).catch(() => null)
    if (!navigator.clipboard) { // over plain HTTP
      document.body.append(area)
      area.select()
      document.execCommand("copy")
      area.remove()
    }
    button.textContent = "Copied"
    setTimeout(() => { button.textContent = "Copy" }, 1500)
  })

  // What Bokeh's inputs and tabs do not tell those who do not see them, and the keyboards of phones; arrow keys go from tab to tab.
  function mark() {
    for (const input of within(document.getElementById("main"), ".bk-input")) {
      const name = input.closest(".bk-input-group")?.querySelector("label")?.textContent
      const problem = model.problems[name] ?? null
      Object.assign(input, {ariaInvalid: problem && "true", ariaDescription: problem, inputMode: model.numbers.includes(name) ? "decimal" : ""})
    }
    within(document.getElementById("main"), ".bk-tab").forEach((tab, at, tabs) => {
      const isActive = tab.classList.contains("bk-active")
      tab.parentElement.role = "tablist"
      Object.assign(tab, {role: "tab", ariaSelected: String(isActive), tabIndex: isActive ? 0 : -1})
      if (isActive && Date.now() < sender.turnsUntil) tab.focus()
      tab.onkeydown = ({key}) => {
        const to = {ArrowRight: at + 1, ArrowLeft: at - 1 + tabs.length, Home: 0, End: tabs.length - 1, Enter: at, " ": at}[key]
        if (to === undefined) return
        sender.turnsUntil = Date.now() + 1000 // tabs may be drawn anew meanwhile
        tabs[to % tabs.length].click()
        tabs[to % tabs.length].focus()
      }
    })
  }
  on("focusin", mark)
  model.on("problems", mark)
  model.on("remove", () => { over.abort(); if (sender.picker === model) sender.picker = null })
  sender.picker = model
  sender.unsaid.splice(0).forEach(say)
  requestAnimationFrame(mark)
  return root
}
