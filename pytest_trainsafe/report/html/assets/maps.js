// Maps of the values of a tensor: a picture of each matrix, with the borders of the ranks' shards.

function numbersOf(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer, 0, Math.floor(bytes.length / 4));
}

function colour(property) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(property).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

// Paints values from blue (negative) over the ground to orange (positive); not finite is magenta.
function paint(canvas, values, scale) {
  const [low, ground, high, odd] = ["--low", "--ground", "--high", "--odd"].map(colour);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < values.length; i += 1) {
    const part = Math.max(-1, Math.min(1, values[i] / (scale || 1)));
    const end = part < 0 ? low : high;
    // The square root shows small values too.
    const share = Math.sqrt(Math.abs(part));
    for (let c = 0; c < 3; c += 1) {
      image.data[4 * i + c] = Number.isFinite(values[i]) ?
        ground[c] + (end[c] - ground[c]) * share : odd[c];
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

// The index in the tensor of the element that a cell shows, "" if it is not known.
function placeOf(panel, cell) {
  const of = panel.of || [];
  if (!of.length) return "";
  panel.flat = panel.flat || (panel.places ? new Int32Array(
    Uint8Array.from(atob(panel.places), (c) => c.charCodeAt(0)).buffer) : null);
  let left = panel.flat ? panel.flat[cell] : cell;
  const place = [];
  for (const size of [...of].reverse()) {
    place.unshift(left % size);
    left = Math.floor(left / size);
  }
  return place.join(", ");
}

const painted = new Set();
function repaint() {
  for (const each of [...painted]) {
    if (each.canvas.isConnected) paint(each.canvas, each.values, each.scale);
    else painted.delete(each);
  }
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

draw.maps = (panel) => {
  const widest = Math.max(...panel.maps.map((map) => map.shape[1]));
  const highest = Math.max(...panel.maps.map((map) => map.shape[0]));
  const zoom = Math.max(1, Math.min(14, Math.floor(250 / widest), Math.floor(300 / highest) || 1));
  const boxes = panel.maps.map((map) => {
    const [rows, columns] = map.shape;
    const values = numbersOf(map.values);
    const high = Math.max(rows * zoom, 14);
    let most = 0;
    for (const value of values) {
      if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
    }
    const scale = map.scale || most;
    const canvas = h("canvas", {width: columns, height: rows, role: "img",
      "aria-label": `${map.name}: ${rows} by ${columns} values, the greatest is ${short(most, 3)}`,
      style: {width: `${columns * zoom}px`, height: `${high}px`}});
    paint(canvas, values, scale);
    painted.add({canvas, values, scale});
    const borders = map.borders || [];
    const overlay = borders.length ? s("svg", {class: "borders", width: columns * zoom, height: high,
      viewBox: `0 0 ${columns} ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true"},
    borders.map(([top, left, bottom, right, label]) => s("rect", {x: left, y: top,
      width: right - left, height: bottom - top, "vector-effect": "non-scaling-stroke"},
    s("title", {}, label)))) : null;
    const read = h("output", {class: "read"}, `greatest size ${short(most, 3)}`);
    let at = [0, 0];
    const tell = () => {
      const [row, column] = at;
      const holder = borders.filter(([top, left, bottom, right]) =>
        row >= top && row < bottom && column >= left && column < right).map((each) => each[4]);
      read.textContent = `[${placeOf(panel, row * columns + column) || `${row}, ${column}`}] ${short(values[row * columns + column], 5)}` +
        (holder.length ? ` · ${holder.slice(0, 4).join(", ")}` : "");
    };
    const frame = h("div", {class: "map-frame", tabindex: "0", role: "group",
      "aria-label": `${map.name}, read with the arrow keys`,
      onpointermove: (event) => {
        const box = canvas.getBoundingClientRect();
        at = [Math.floor(((event.clientY - box.top) / box.height) * rows),
          Math.floor(((event.clientX - box.left) / box.width) * columns)];
        at = [Math.max(0, Math.min(rows - 1, at[0])), Math.max(0, Math.min(columns - 1, at[1]))];
        tell();
      },
      onkeydown: (event) => {
        const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
        const move = step[event.key];
        if (!move) return;
        event.preventDefault();
        at = [Math.max(0, Math.min(rows - 1, at[0] + move[0])),
          Math.max(0, Math.min(columns - 1, at[1] + move[1]))];
        tell();
      }}, canvas, overlay);
    return h("div", {class: "map"}, h("p", {class: "map-name"}, map.name), frame, read,
      borders.length ? h("p", {class: "quiet holders"},
        [...new Set(borders.map((each) => each[4]))].slice(0, 8).join(" · ")) : null);
  });
  const keys = panel.plain ? null : h("div", {class: "legend"}, h("span", {class: "ramp", role: "img",
    "aria-label": "Colours from blue, negative, to orange, positive"}), h("span", {class: "quiet"},
  "− to +, with the square root of the size"),
  panel.maps.some((map) => (map.borders || []).length) ? h("span", {class: "quiet"},
    "black lines: borders of the parts that ranks hold") : null);
  return h("figure", anchored(panel.anchor, {class: "panel maps"}),
    h("figcaption", {}, h("h4", {}, panel.title), keys), h("div", {class: "map-row"}, boxes),
    panel.note ? h("p", {class: "note"}, panel.note) : null);
};
