// Brings the chosen row into view, wherever the choice was made. Its Python side is kernel_detail.py.

export function render({model}) {
  const place = document.createElement("i")
  const around = (element) => element.getRootNode().host
  const show = () => { if (model.key) setTimeout(() => around(around(around(place))).scrollIntoView({block: "nearest", behavior: "smooth"}), 100) }
  model.on("key", show)
  show()
  return place
}
