// Panels that are drawn: lines over places, and events in lanes.

const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2", "4 4", "", ""];

// The values of a drawing as a table, for readers who cannot see it.
function asTable(summary, columns, rows) {
  const details = h("details", {class: "values"}, h("summary", {}, summary));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(scrolled(h("table", {class: "rows"},
      h("thead", {}, h("tr", {}, columns.map((each) => h("th", {scope: "col"}, each)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((each, i) =>
        (i ? h("td", {class: isText(each) ? null : "number"}, isText(each) ? path(each) :
          short(each)) : h("th", {scope: "row"}, path(each)))))))), summary));
  });
  return details;
}

draw.series = (panel) => {
  const count = panel.places.length;
  const known = panel.lines.flatMap((line) => line.values.map(asNumber))
    .filter((value) => Number.isFinite(value) && value > 0);
  const least = known.length ? Math.floor(Math.log10(Math.min(...known))) : -1;
  const most = Math.max(Math.ceil(Math.log10(Math.max(...known, 10 ** least))), least + 1);
  // Whole parts of a name: the last ones, and before them the number of the layer.
  const tail = (text) => {
    const parts = text.split(".");
    if (text.length <= 26 || parts.length < 3) return text.length > 34 ? `…${text.slice(-33)}` : text;
    const layer = parts.slice(0, -2).find((part) => /^\d+$/.test(part));
    const end = parts.slice(-2).join(".");
    const kept = end.length > 28 ? `…${end.slice(-27)}` : end;
    return layer === undefined ? `…${kept}` : `${layer} … ${kept}`;
  };
  const longest = Math.max(0, ...panel.places.map((place) => tail(place).length));
  const none = panel.lines.some((line) => line.values.includes(0)) ? 22 : 0;  // a row for zeros
  const [left, right, top, height, below] = [150, 12, 20, 180, none + 16 + 4.2 * longest];
  const room = document.getElementById("detail").clientWidth - 50;
  const width = Math.max(420, Math.min(1100, room, left + right + 18 * count));
  const x = (i) => left + (count > 1 ? (i * (width - left - right)) / (count - 1) : 20);
  const y = (value) => {
    const given = asNumber(value);
    if (given === 0) return top + height + none - 4;
    const power = given <= 0 ? least : Math.min(most, Math.max(least, Math.log10(given)));
    return top + (height * (most - power)) / (most - least);
  };
  const step = Math.max(1, Math.ceil((most - least) / 6));
  const powers = [];
  for (let power = least; power <= most; power += step) powers.push(power);
  const grid = powers.map((power) => [
    s("line", {class: "grid", x1: left, x2: width - right, y1: y(10 ** power), y2: y(10 ** power)}),
    s("text", {class: "tick", x: left - 6, y: y(10 ** power) + 4, "text-anchor": "end"},
      `1e${power}`)]);
  if (none) {
    grid.push(s("text", {class: "tick zero", x: left - 6, y: y(0) + 4, "text-anchor": "end"},
      "exactly 0"));
  }
  const every = Math.max(1, Math.ceil((14 * count) / (width - left - right)));
  const places = panel.places.map((place, i) => (i % every ? null : s("text", {class: "tick",
    transform: `translate(${x(i) + 3},${top + height + none + 10}) rotate(-48)`,
    "text-anchor": "end"},
  tail(place))));
  const curves = panel.lines.map((line, n) => {
    let pen = false;
    const d = line.values.map((value, i) => {
      // An exact zero has no place on the logarithmic axis: a dot apart, and no line.
      if (!value || Number.isNaN(asNumber(value))) { pen = false; return ""; }
      const to = `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = true;
      return to;
    }).join("");
    const dots = line.values.map((value, i) => (value === null ? null : s("circle",
      {class: `dot c${n}`, cx: x(i), cy: y(value), r: 2.6},
      s("title", {}, `${panel.places[i]}: ${line.name} ${short(value)}`))));
    return s("g", {}, s("path", {class: `curve c${n}`, d, "stroke-dasharray": DASHES[n]}), dots);
  });
  const firsts = (panel.states || []).map((state, i) => (state === "first" ? s("g", {},
    s("line", {class: "first", x1: x(i), x2: x(i), y1: top, y2: top + height}),
    s("text", {class: "flag", x: x(i), y: top - 6,
      "text-anchor": i > count / 2 ? "end" : "start"}, "first wrong")) : null));
  const names = panel.lines.map((line) => line.name).join(", ");
  const drawing = s("svg", {class: "series", role: "img", width, height: top + height + below,
    viewBox: `0 0 ${width} ${top + height + below}`,
    "aria-label": `${panel.title}: ${names} at ${plural(count, "place")}`}, grid, places, curves,
  firsts);
  const keys = h("div", {class: "legend"}, panel.lines.map((line, n) => h("span", {class: "line-key"},
    s("svg", {width: 26, height: 10, "aria-hidden": "true"}, s("line", {class: `curve c${n}`, x1: 0,
      x2: 26, y1: 5, y2: 5, "stroke-dasharray": DASHES[n]})), line.name)));
  const rows = panel.places.map((place, i) => [place, ...panel.lines.map((line) => line.values[i])]);
  return figure(panel, [scrolled(drawing, panel.title),
    asTable("Values", [panel.quantity || "place", ...panel.lines.map((line) => line.name)], rows)],
  keys);
};

draw.timeline = (panel) => {
  const starts = panel.events.map((event) => event[1]);
  const least = starts.length ? Math.min(...starts) : 0;
  const most = Math.max(...panel.events.map((event) => event[1] + event[2]), least + 1);
  const groups = [...new Set(panel.events.map((event) => event[4]))];
  // Eight colours, then the same with stripes.
  const shade = (n) => `g${n % 8}${Math.floor(n / 8) % 2 ? " striped" : ""}`;
  const columns = most - least;
  const ordinal = panel.events.every((event) => event[2] === 1 && Number.isInteger(event[1]));
  const percent = (value) => `${(100 * value) / columns}%`;
  const lanes = panel.lanes.map((lane, number) => {
    const bars = panel.events.filter((event) => event[0] === number).map((event) => {
      const [, start, length, label, group, state, detail, anchor] = event;
      const said = [STATES[state], label, detail].filter(Boolean).join(", ");
      return h("li", anchored(anchor, {class: `bar ${shade(groups.indexOf(group))} ${state || ""}`,
        title: said, style: {left: percent(start - least), width: percent(length)}}),
      h("span", {}, label), state ? h("span", {class: "away"}, `, ${STATES[state]}`) : null);
    });
    return h("div", {class: "lane"}, h("div", {class: "lane-name"}, name(lane)),
      h("ol", {class: "bars", "aria-label": lane}, bars));
  });
  const wide = ordinal ? {"min-width": `${Math.min(4000, 96 + 72 * columns)}px`} : {};
  const body = h("div", {class: "lanes", style: wide}, lanes,
    h("div", {class: "axis"}, h("span", {}, short(least)), h("span", {}, panel.unit || ""),
      h("span", {}, short(most))));
  const keys = groups.length > 1 && groups.length <= 16 ? h("div", {class: "legend"},
    groups.map((group, n) => h("span", {class: `group-key ${shade(n)}`}, group || "other"))) : null;
  const rows = panel.events.map((event) => [panel.lanes[event[0]], event[1], event[3],
    event[6] || "", STATES[event[5]] || ""]);
  return figure(panel, [scrolled(body, panel.title),
    asTable("Events", ["lane", panel.unit || "start", "event", "detail", "state"], rows)], keys);
};
