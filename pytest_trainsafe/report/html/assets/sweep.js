// The sweep: a matrix of any two axes, the others as filters, the families of failures, the Points.

const FAMILY = (number) => (number < 26 ? String.fromCharCode(65 + number) : String(number + 1));
const state = {test: "", x: "", y: "", filters: {}, text: "", verdict: ""};

const testOf = (entry) => entry.outcome.nodeid.split("[")[0];
const keyOf = (entry, number) => (entry.twin ? `${entry.outcome.nodeid} #${number}` :
  entry.outcome.nodeid);
const axisOf = (entry, axis) => (entry.outcome.axes.find((pair) => pair[0] === axis) || ["", ""])[1];

const byValue = (left, right) => left.localeCompare(right, "en", {numeric: true});
const valuesOf = (entries, axis) => [...new Set(entries.map((entry) => axisOf(entry, axis)))]
  .sort(byValue);

function axesOf(entries) {
  const names = [...new Set(entries.flatMap((entry) => entry.outcome.axes.map((pair) => pair[0])))];
  return names.map((axis) => [axis, valuesOf(entries, axis)]);
}

function choose(test) {
  state.test = test;
  state.filters = {};
  const varied = axesOf(data.entries.filter((entry) => testOf(entry) === test))
    .filter(([, values]) => values.length > 1).map(([axis]) => axis);
  [state.x, state.y] = [varied[0] || "", varied[1] || ""];
}

const ofTest = () => data.entries.filter((entry) => testOf(entry) === state.test);
const filtered = (entries) => entries.filter((entry) => Object.entries(state.filters)
  .every(([axis, value]) => !value || axisOf(entry, axis) === value));

const worstOf = (entries) => ["fail", "error", "inconclusive", "pass"]
  .find((verdict) => entries.some((entry) => entry.outcome.verdict === verdict)) || "skipped";

function cellOf(entries, where) {
  if (!entries.length) return h("td", {class: "absent"}, h("span", {class: "away"}, "no point"));
  const verdict = worstOf(entries);
  const wrong = entries.filter((entry) => entry.outcome.verdict !== "pass");
  const letters = [...new Set(wrong.map((entry) => entry.family).filter((each) => each >= 0))];
  const sign = verdict === "pass" ? "✓" : letters.map(FAMILY).join("") ||
    VERDICTS[verdict][0];
  const count = entries.length > 1 ? ` ${wrong.length}/${entries.length}` : "";
  const worst = Math.max(...entries.map((entry) => asNumber(entry.outcome.worst ?? 0)));
  const said = `${where}: ${entries.length === 1 ? verdict : `${wrong.length} of ` +
    `${entries.length} points do not pass`}${letters.length ? `, cause ${letters.map(FAMILY)
    .join(" ")}` : ""}`;
  const tint = verdict === "pass" ? `pass l${level(worst)}` : `${verdict} f${(letters[0] ?? 7) % 6}`;
  const chosen = entries.includes(current.entry);
  return h("td", {}, h("button", {type: "button", class: `point ${tint}${chosen ? " chosen" : ""}`,
    "aria-label": said, title: said, "aria-current": chosen ? "true" : null,
    onclick: () => (entries.length === 1 ? goTo({point: entries[0].key}) : narrow(entries))},
  sign, count ? h("small", {}, count) : null));
}

// Filters the list to the Points of a cell that stands for several.
function narrow(entries) {
  for (const axis of [state.x, state.y]) {
    if (axis && valuesOf(entries, axis).length === 1) state.filters[axis] = axisOf(entries[0], axis);
  }
  drawSweep();
  document.querySelector("#points a")?.focus();
}

// In a grid of buttons the arrow keys move, and Tab leaves it.
function roving(table) {
  const rows = [...table.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td")]
    .map((cell) => cell.querySelector("button")));
  const all = rows.flat().filter(Boolean);
  all.forEach((button) => button.setAttribute("tabindex", "-1"));
  (table.querySelector("button.chosen, button.first") || all[0])
    ?.setAttribute("tabindex", "0");
  table.addEventListener("keydown", (event) => {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
    const move = step[event.key];
    if (!move) return;
    event.preventDefault();
    let row = rows.findIndex((cells) => cells.includes(document.activeElement));
    if (row < 0) return;
    let column = rows[row].indexOf(document.activeElement);
    for (;;) {
      row += move[0]; column += move[1];
      if (row < 0 || row >= rows.length || column < 0 || column >= rows[row].length) return;
      if (rows[row][column]) break;
    }
    all.forEach((button) => button.setAttribute("tabindex", "-1"));
    rows[row][column].setAttribute("tabindex", "0");
    rows[row][column].focus();
  });
}

function matrix() {
  const entries = filtered(ofTest());
  const axes = axesOf(ofTest());
  const columns = state.x ? valuesOf(ofTest(), state.x) : [""];
  const rows = state.y ? valuesOf(ofTest(), state.y) : [""];
  const table = h("table", {class: "matrix"},
    h("caption", {class: "away"}, `Points of ${state.test}`),
    h("thead", {}, h("tr", {}, h("td", {class: "corner"}, state.y ? name(state.y) : ""),
      columns.map((value) => h("th", {scope: "col"}, state.x ? name(`${state.x}=${value}`) : "")))),
    h("tbody", {}, rows.map((value) => h("tr", {},
      h("th", {scope: "row"}, state.y ? name(value || "–") : ""),
      columns.map((each) => cellOf(entries.filter((entry) =>
        (!state.x || axisOf(entry, state.x) === each) &&
        (!state.y || axisOf(entry, state.y) === value)),
      [state.x && `${state.x}=${each}`, state.y && `${state.y}=${value}`].filter(Boolean).join(" ") ||
        state.test))))));
  roving(table);
  const names = axes.map(([axis]) => axis);
  const pick = (label, own, other) => choice(label, [["", "none"], ...names.map((n) => [n, n])],
    state[own], (value) => {
      if (value && value === state[other]) state[other] = state[own];
      state[own] = value;
      drawSweep();
    });
  const filters = axes.filter(([axis, values]) => values.length > 1 && axis !== state.x &&
    axis !== state.y).map(([axis, values]) => choice(axis, [["", "all"],
    ...values.map((value) => [value, value || "–"])], state.filters[axis] || "",
  (value) => { state.filters[axis] = value; drawSweep(); }));
  return [
    axes.some(([, values]) => values.length > 1) ? h("div", {class: "controls"}, pick("columns", "x", "y"), pick("rows", "y", "x"),
      filters) : null,
    scrolled(table, "Sweep")];
}

// The name of the test, or a list if there are several.
function testChoice() {
  const tests = [...new Set(data.entries.map(testOf))];
  if (tests.length < 2) return h("p", {class: "file"}, path(state.test));
  return choice("test", tests.map((each) => [each, `${mixed(each)} ${each}`]), state.test,
    (value) => {
      current.stays = true;
      goTo({point: worstPoint(value).key});
    });
}

// The first Point of a test that has the test's worst verdict.
function worstPoint(test) {
  const own = data.entries.filter((entry) => testOf(entry) === test);
  const verdict = worstOf(own);
  return own.find((entry) => entry.outcome.verdict === verdict) || own[0];
}

const mixed = (test) => VERDICTS[worstOf(data.entries.filter((entry) => testOf(entry) === test))]
  ?.[0] ?? "";

function familyList() {
  const shown = data.families.filter((family) => family.members.length);
  if (!shown.length) return null;
  return [h("h2", {}, plural(shown.length, "cause")), h("ol", {class: "families"},
    shown.map((family, number) => {
      const lead = data.entries[family.lead];
      return h("li", {}, h("span", {class: `letter f${number % 6}`}, FAMILY(number)),
        h("div", {}, h("a", {href: linkTo({point: lead.key})}, path(family.what)),
          h("p", {class: "quiet"}, plural(family.members.length, "point"),
            family.where ? `: ${family.where}` : ""),
          family.pattern ? h("p", {}, name(family.pattern, "said")) : null));
    }))];
}

function pointList() {
  const wanted = filtered(ofTest()).filter((entry) =>
    (!state.verdict || (state.verdict === "wrong" ? entry.outcome.verdict !== "pass" :
      entry.outcome.verdict === state.verdict)) &&
    (!state.text || entry.outcome.nodeid.includes(state.text) ||
      entry.outcome.line.includes(state.text)));
  const most = 200;
  const active = Object.entries(state.filters).filter(([, value]) => value);
  return [h("h2", {}, plural(wanted.length, "point")),
    h("div", {class: "controls"},
      choice("verdict", [["", "all"], ["wrong", "not passed"], ["pass", "passed"]], state.verdict,
        (value) => { state.verdict = value; drawSweep(); }),
      active.length ? h("button", {type: "button", class: "more",
        onclick: () => { state.filters = {}; drawSweep(); }}, "Clear filters") : null),
    h("p", {class: "quiet columns"}, h("span", {}, "point"),
      h("span", {}, "largest error ÷ allowed")),
    h("ul", {id: "points"}, wanted.slice(0, most).map((entry) => h("li", {},
      h("a", {href: linkTo({point: entry.key}), "aria-current": entry === current.entry ? "true" :
        null}, mark(entry.outcome.verdict), path(shortName(entry)),
      h("span", {class: "number quiet"}, ratioOf(entry.outcome)))))),
    wanted.length > most ? h("p", {class: "quiet"}, `and ${wanted.length - most} more`) : null];
}

// The largest ratio; of a failure without one, such as a missing tensor, nothing.  Values that must
// be equal and differ have no ratio.
function ratioOf({verdict, worst, first}) {
  if (worst === null || (verdict === "fail" && asNumber(worst) <= 1)) return "";
  if (asNumber(worst) === Infinity && first.allowed === 0) return "≠";
  return short(worst);
}

const shortName = (entry) => entry.outcome.point || (entry.outcome.nodeid.match(/\[(.*)\]$/) ||
  [])[1] || entry.outcome.nodeid.split("::").pop();

function drawSweep() {
  const focused = document.activeElement?.closest?.("label")?.textContent;
  const nav = document.getElementById("sweep");
  if (!nav.childElementCount) {  // tests and causes stay: a browser would measure each anew
    nav.append(h("div", {class: "controls tests"}, testChoice()), h("div"),
      h("div", {}, familyList()), h("div"));
  }
  const [test, points, , list] = nav.children;
  if (test.querySelector("select")) test.querySelector("select").value = state.test;
  points.replaceChildren(...matrix().filter(Boolean));
  list.replaceChildren(...pointList().filter(Boolean));
  if (focused) {
    [...nav.querySelectorAll("label")].find((each) => each.textContent === focused)
      ?.querySelector("select")?.focus();
  }
}
