// Elements, numbers and colours.  All texts of the data become text nodes or attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const INFINITE = 1e300;  // what is larger stands for infinity

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") {
      for (const [property, each] of Object.entries(value)) node.style.setProperty(property, each);
    } else if (name.startsWith("on")) {
      node.addEventListener(name.slice(2), value);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// A name that a program chose: of any length, and of any script and direction.
const name = (text, kind) => h("bdi", {class: kind || "name"}, text);

// A long name with places where a line may break.
function path(text) {
  const words = String(text).split(/[\s·]+/);
  if (words.length > 9) return name(text, "said");
  if (String(text).length < 24) return h("bdi", {class: "name whole"}, text);
  const pieces = String(text).split(/(?<=[._/·-])/);
  return h("bdi", {class: "name"}, pieces.map((piece, i) => (i ? [h("wbr"), piece] : piece)));
}

// A name of a kind with places where a line may break.
const broken = (text) => String(text).split(/(?<=_)/).map((piece, i) =>
  (i ? [h("wbr"), piece] : piece));

function asNumber(value) {
  if (value === "inf" || value >= INFINITE) return Infinity;
  if (value === "-inf" || value <= -INFINITE) return -Infinity;
  return typeof value === "number" ? value : NaN;
}

const isText = (value) => typeof value === "string" && !/^(-?inf|nan)$/.test(value);

// A number with as many digits as a reader compares: 0.25, 13, 2.1e-14, ∞.
function short(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (isText(value)) return value;
  const given = asNumber(value);
  if (Number.isNaN(given)) return "nan";
  if (!Number.isFinite(given)) return given > 0 ? "∞" : "−∞";
  if (given === 0) return "0";
  if (Number.isInteger(given) && Math.abs(given) < 1e6) return String(given);
  const size = Math.abs(given);
  if (size >= 1e-3 && size < 1e5) return String(Number(given.toPrecision(Math.max(digits, 2))));
  return given.toExponential(digits - 1).replace("e+", "e");
}

const seconds = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// The level of an error as a multiple of what is allowed; up to 4 it is allowed.
function level(value) {
  if (value === null || value === undefined) return "none";
  const over = asNumber(value);
  if (Number.isNaN(over)) return "7";
  const limits = [0, 1e-3, 0.1, 0.5, 1, 10, 1000];
  const found = limits.findIndex((limit) => over <= limit);
  return String(found < 0 ? 7 : found);
}

const VERDICTS = {
  fail: ["✕", "fails"], error: ["!", "ends with an error"],
  inconclusive: ["?", "is inconclusive"], pass: ["✓", "passes"],
};
const STATES = {
  first: "first wrong", wrong: "wrong", doubt: "inconclusive", right: "agrees", pale: "not affected",
};

const mark = (verdict) =>
  h("span", {class: `mark ${verdict}`, role: "img", "aria-label": verdict},
    (VERDICTS[verdict] || ["·"])[0]);

// Rows of label and value; rows without a value are left out.
function facts(rows, kind = "") {
  const kept = rows.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h("dl", {class: `facts ${kind}`.trim()},
    kept.map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)]));
}

const command = (text) => h("code", {class: "command"}, text);

// A group of options of which one is chosen.
// The end of a name, which tells choices apart.  A browser measures each of a list anew.
function ending(text, most = 80) {
  const characters = [...String(text)];
  return characters.length > most ? `…${characters.slice(1 - most).join("")}` : text;
}

function choice(label, options, chosen, onchange) {
  const select = h("select", {onchange: (event) => onchange(event.target.value)},
    options.map(([value, text]) => h("option", {value, selected: value === chosen}, ending(text))));
  return h("label", {class: "choice"}, h("span", {}, label), select);
}
