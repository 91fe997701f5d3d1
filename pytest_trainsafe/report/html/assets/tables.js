// Panels that are tables: rows of cells, heat maps, dataflow, and lines of code.

const draw = {};

const LONG = 40;  // rows that a table shows at first

// The element in which an anchor is shown; links to a tensor look for it.
const anchored = (anchor, attributes) =>
  (anchor ? {...attributes, "data-anchor": anchor} : attributes);

function figure(panel, body, legend) {
  return h("figure", {class: `panel ${panel.type}`},
    h("figcaption", {}, h("h4", {}, panel.title), legend || null),
    body,
    unsaid(panel.note).map((note) => h("p", {class: "note"}, note)));
}

// The clauses of a text that the page of this Point has not said yet, as one text; none for none.
// A short clause is a label, which may be said of several things.
const said = new Set();
const LABEL = 30;
function unsaid(text) {
  const clauses = (text || "").split("; ").filter((each) => each &&
    (each.length <= LABEL || !said.has(each.toLowerCase())));
  clauses.forEach((each) => said.add(each.toLowerCase()));
  return clauses.length ? [clauses.join("; ")] : [];
}

// A table in a box that scrolls sideways, also by keyboard.
function scrolled(table, label) {
  return h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label}, table);
}

draw.table = (panel) => {
  const columns = panel.columns || [];
  const numeric = columns.map((_, i) => i > 0 &&
    panel.rows.some((row) => typeof row[i] === "number") &&
    panel.rows.every((row) => row[i] === null || row[i] === "missing" || !isText(row[i])));
  const long = columns.map((_, i) => panel.rows.some((row) => isText(row[i]) &&
    row[i].length > 60));
  const rows = panel.rows.map((row, number) => {
    const state = (panel.states || [])[number] || "";
    const anchor = (panel.anchors || [])[number];
    const cells = row.map((cell, i) => {
      const text = isText(cell) ? path(cell) : short(cell, 2);
      if (i === 0) {
        const said = state && STATES[state] && state !== "pale" ?
          h("span", {class: `tag ${state}`}, STATES[state]) : null;
        return h("th", {scope: "row"}, text, said && " ", said);
      }
      return h("td", {class: numeric[i] ? "number" : long[i] ? "long" : null}, text);
    });
    return h("tr", anchored(anchor, {class: state || null}), cells);
  });
  const body = h("tbody", {}, rows.slice(0, LONG));
  const head = columns.length ? h("thead", {}, h("tr", {}, columns.map((column, i) =>
    h("th", {scope: "col", class: numeric[i] ? "number" : null}, column)))) : null;
  const table = h("table", {class: columns.length ? "rows" : "rows facts-table"}, head, body);
  const more = rows.length > LONG ? h("button", {class: "more", type: "button",
    onclick: () => { body.append(...rows.slice(LONG)); more.remove(); }},
  `Show all ${rows.length} rows`) : null;
  if (more) table.showAll = () => more.isConnected && more.click();
  const box = scrolled(table, panel.title);
  if (more) box.showAll = table.showAll;
  return figure(panel, [box, more]);
};

const LEVELS = [["0", "equal"], ["2", "≤ 0.1"], ["4", "≤ 1"], ["5", "≤ 10"], ["6", "≤ 1000"],
  ["7", "more"]];

const legend = (values) => h("div", {class: "legend", "aria-label": "Colours"},
  h("span", {class: "quiet"}, "error ÷ allowed"),
  LEVELS.map(([each, text]) => h("span", {class: `key l${each}`}, text)),
  values.includes("missing") ? h("span", {class: "quiet"}, "missing: in one Run only") : null);

draw.heat = (panel) => {
  const first = panel.first || [-1, -1];
  const rows = panel.rows.map((row, i) => h("tr", {}, h("th", {scope: "row"}, path(row)),
    panel.values[i].map((value, j) => {
      const leads = first[0] === i && first[1] === j;
      const anchor = ((panel.anchors || [])[i] || [])[j];
      return h("td", anchored(anchor, {class: `cell l${level(value)}${leads ? " leads" : ""}`,
        title: anchor || null}),
      value === null ? "" : short(value), leads ? h("span", {class: "away"}, " first wrong") : null);
    })));
  const head = h("thead", {}, h("tr", {}, h("td"),
    panel.columns.map((column) => h("th", {scope: "col"}, broken(column)))));
  return figure(panel, scrolled(h("table", {class: "heatmap"}, head, h("tbody", {}, rows)),
    panel.title), legend(panel.values.flat()));
};

// Modules in rows and phases in lanes; a line through a lane shows where data flows.
draw.graph = (panel) => {
  const up = new Set(panel.up || []);
  const at = new Map();
  for (const node of panel.nodes) {
    const key = `${node[0]} ${node[1]}`;
    at.set(key, [...(at.get(key) || []), node]);
  }
  const ends = panel.lanes.map((_, lane) => {
    const rows = panel.nodes.filter((node) => node[0] === lane).map((node) => node[1]);
    return [Math.min(...rows), Math.max(...rows)];
  });
  const cell = (lane, row) => {
    const nodes = at.get(`${lane} ${row}`) || [];
    const inside = row >= ends[lane][0] && row <= ends[lane][1];
    const flow = [inside && "flow", row === ends[lane][0] && "top", row === ends[lane][1] && "end"];
    return h("td", {class: flow.filter(Boolean).join(" ") || null}, nodes.map((node) => {
      const [, , state, value, detail, anchor] = node;
      const said = [anchor, STATES[state], value === null ? "" : isText(value) ? value :
        `${short(value)} times the allowed`,
        detail].filter(Boolean).join(", ");
      return h("button", anchored(anchor, {type: "button", class: `node l${level(value)} ${state}`,
        "aria-label": said, title: said, onclick: () => anchor && goTo({tensor: anchor})}),
      state === "first" ? h("span", {class: "flag"}, "first wrong ") : null, short(value));
    }));
  };
  const head = h("thead", {}, h("tr", {}, h("th", {scope: "col"}, "module"),
    panel.lanes.map((lane, i) => h("th", {scope: "col"}, broken(lane),
      h("span", {class: "arrow", "aria-label": up.has(i) ? "upwards" : "downwards", role: "img"},
        up.has(i) ? " ↑" : " ↓")))));
  const rows = panel.rows.map((row, i) => h("tr", {}, h("th", {scope: "row"}, path(row)),
    panel.lanes.map((_, lane) => cell(lane, i))));
  const table = h("table", {class: "dataflow"}, head, h("tbody", {}, rows));
  roving(table);
  return figure(panel, scrolled(table, panel.title), legend(panel.nodes.map((node) => node[3])));
};

draw.code = (panel) => {
  const lines = panel.lines.map((line, i) => {
    const number = panel.first + i;
    const marked = number === panel.marked;
    const kind = marked ? "marked" : LINES.find((each) => (panel[each] || []).includes(number));
    const said = kind ? `${OF_LINES[kind]} ` : "";
    return h("tr", {class: kind || null},
      h("td", {class: "line", title: said.trim() || null},
        said ? h("span", {class: "away"}, said) : null, number),
      h("td", {}, h("code", {}, line || " ")));
  });
  const table = h("table", {class: "source"}, h("tbody", {}, lines));
  const kinds = LINES.filter((kind) => (panel[kind] || []).length).map((kind) => OF_BARS[kind]);
  const note = [panel.note, ...kinds].filter(Boolean).join("; ");
  return figure({...panel, note}, [h("p", {class: "file"}, path(panel.file),
    panel.runs ? h("span", {class: "quiet"}, ` ${panel.runs}`) : null),
  scrolled(table, panel.file)]);
};

// Lines beside the one that matters, by what they have to do with it.
const LINES = ["also", "steps", "idle"];
const OF_LINES = {marked: "this line", also: "may be at fault too",
  steps: "decides whether these lines run, or makes the result", idle: "did not run"};
const OF_BARS = {also: "bar at the number: may be at fault too",
  steps: "dotted bar: decides whether these lines run, or makes the result",
  idle: "pale text: did not run"};
