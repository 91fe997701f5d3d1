// Reads the data and the address of the page, and shows what the address names.

const found = JSON.parse(document.getElementById("data").textContent);
const data = {runs: found.document.runs, entries: found.document.entries, families: found.families,
  kinds: found.kinds};
const current = {entry: null, stays: false};  // stays: the next Point takes no focus

const seen = new Map();
data.entries.forEach((entry) => {
  seen.set(entry.outcome.nodeid, (seen.get(entry.outcome.nodeid) || 0) + 1);
  entry.twin = seen.get(entry.outcome.nodeid) > 1;
  entry.key = keyOf(entry, seen.get(entry.outcome.nodeid));
  entry.family = -1;
});
data.families.forEach((family, number) => family.members.forEach((member) => {
  data.entries[member].family = number;
}));

// The address of a Point and of a tensor in it: #point=...&tensor=...
function linkTo(where) {
  const parts = Object.entries(where).filter(([, value]) => value)
    .map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
  return `#${parts.join("&")}`;
}

function goTo(where) {
  const point = where.point || (current.entry && current.entry.key);
  const to = linkTo({point, tensor: where.tensor});
  if (location.hash !== to) location.hash = to;
  else if (where.tensor) showTensor(where.tensor);
  else showHead();
}

function address() {
  const found = {};
  for (const part of location.hash.slice(1).split("&")) {
    const at = part.indexOf("=");
    try {
      if (at > 0) found[part.slice(0, at)] = decodeURIComponent(part.slice(at + 1));
    } catch (error) { /* not an address of this page */ }
  }
  return found;
}

// Shows the head of the Point, and focuses it unless the reader chose it in a list.
function showHead() {
  const detail = document.getElementById("detail");
  if (!current.stays) detail.focus({preventScroll: true});
  current.stays = false;
  detail.scrollIntoView({block: "start"});
}

// Marks what has an anchor, and scrolls to the first: the map of its values, else its row.
function showTensor(anchor) {
  const detail = document.getElementById("detail");
  detail.querySelectorAll(".target").forEach((each) => each.classList.remove("target"));
  if (!anchor) return;
  const find = () => [...detail.querySelectorAll("[data-anchor]")]
    .filter((each) => each.dataset.anchor === anchor);
  let targets = find();
  if (!targets.some((each) => each.tagName === "TR")) {
    detail.querySelectorAll(".scroll").forEach((each) => each.showAll && each.showAll());
    targets = find();
  }
  targets.forEach((each) => each.classList.add("target"));
  const lead = targets.find((each) => each.tagName === "FIGURE") ||
    targets.find((each) => each.tagName === "TR") || targets[0];
  if (lead) {
    if (!lead.hasAttribute("tabindex") && lead.tagName !== "BUTTON") lead.tabIndex = -1;
    lead.scrollIntoView({block: "center"});
    lead.focus({preventScroll: true});
  }
}

function show(focus) {
  const where = address();
  const entry = data.entries.find((each) => each.key === where.point) || null;
  const changed = entry !== current.entry;
  current.entry = entry;
  if (entry && testOf(entry) !== state.test) choose(testOf(entry));
  if (changed || !focus) {
    drawSweep();
    if (entry) drawPoint(entry);
    else drawOverview();
  }
  document.title = entry ? `${shortName(entry)} · ${title}` : title;
  if (changed && focus) showHead();
  showTensor(where.tensor);
}

const title = document.title;
const count = {};
data.entries.forEach((entry) => {
  count[entry.outcome.verdict] = (count[entry.outcome.verdict] || 0) + 1;
});
const words = {fail: "failed", error: "ended with an error", inconclusive: "inconclusive",
  pass: "passed"};
document.getElementById("top").append(
  h("h1", {}, h("a", {href: "#"}, "trainsafe")),
  h("ul", {class: "counts"}, Object.keys(words).filter((each) => count[each]).map((each) =>
    h("li", {}, mark(each), ` ${count[each]} ${words[each]}`))),
  h("p", {class: "quiet"}, plural(data.runs.length, "run"), ", ", seconds(data.runs
    .reduce((sum, run) => sum + run.seconds, 0))));

if (data.entries.length) {
  const wrong = data.families.length ? data.entries[data.families[0].lead] : data.entries[0];
  choose(testOf(wrong));
}
addEventListener("hashchange", () => show(true));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the address names the Point
  document.getElementById("detail").focus();
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => {
  each.open = true;
}));
const failing = data.entries.filter((entry) => entry.outcome.verdict !== "pass");
if (failing.length === 1 && !location.hash) location.replace(linkTo({point: failing[0].key}));
show(false);
