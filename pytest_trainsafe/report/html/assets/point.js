// One Point: what is wrong with it, and the panels of every judge; and the page before one is chosen.

function headOf(entry) {
  const {outcome} = entry;
  const letter = entry.family >= 0 ? h("span", {class: `letter f${entry.family % 6}`,
    title: `cause ${FAMILY(entry.family)}`}, h("span", {class: "away"}, "cause "),
  FAMILY(entry.family)) : null;
  const stages = Object.entries(entry.stages).map(([stage, value]) => `${stage} ${seconds(value)}`);
  const wrong = outcome.verdict !== "pass";
  return [
    h("header", {class: "point-head"},
      h("h2", {}, mark(outcome.verdict), " ", path(outcome.point || shortName(entry)), " ", letter),
      h("p", {class: "quiet"}, path(outcome.nodeid), outcome.program ? [" · ",
        path(outcome.program)] : null)),
    wrong ? facts(answersOf(entry), "answers") : null,
    facts([
      ["arguments", outcome.arguments ? name(outcome.arguments, "said") : ""],
      ...(wrong ? detailsOf(entry) : []),
      ["closest", !wrong && outcome.worst_name ? [path(outcome.worst_name),
        `: ${short(outcome.worst)} of what is allowed`] : ""],
      ["tensors", outcome.tensors.length ? `${outcome.tensors.join(" / ")} compared` : ""],
      ["rerun", command(entry.rerun)],
      ["time", `${seconds(outcome.seconds)}${stages.length ? `: ${stages.join(", ")}` : ""}`],
    ]),
    wrong ? h("details", {class: "words"}, h("summary", {}, "Words on this page"),
      facts(WORDS)) : null];
}

// What the words of the page mean.
const WORDS = [
  ["compare, exact, …", "the judge of a section: compare allows what rounding explains; exact " +
    "computes with exact numbers, of which none may differ"],
  ["Point", "one choice of values for the axes, such as tp=2 cp=2; a test runs the program at it"],
  ["Run", "the program executed once: as the candidate at a Point, or as its reference"],
  ["cause A", "failures that look alike have one letter"],
  ["first wrong", "the first tensor in the order of the computation that differs"],
  ["error", "the norm of the difference as a share of the reference's norm, so that an error of 1 " +
    "is as large as the reference; of exact numbers, the share of the elements that differ"],
  ["error ÷ allowed", "the error as a multiple of what rounding explains: above 1 it is wrong; ≠ " +
    "and ∞ stand where no error is allowed, or where ranks that must agree differ"],
  ["pattern", "how the wrong values follow from the right ones; “not looked for”: other wrong " +
    "tensors came before; rows and positions are indices of a dimension, however it is drawn"],
  ["missing", "one of the two Runs has no such tensor, such as the gradient of a parameter that " +
    "the backward does not reach"],
  ["replica", "one of the ranks' copies of what several ranks hold; copies must be equal"],
  ["layout", "which elements of a tensor each rank holds, by default all; an annotation of the " +
    "program declares another one, and “local” declares a tensor that the reference lacks"],
  ["tied", "one parameter in two places, such as the first and the last pipeline stage; each has " +
    "a copy, and the gradients of the copies must be summed"],
  ["mark", "an attribute that the program sets on some parameters, such as sequence_parallel, and " +
    "by which it decides how to reduce their gradients"],
  ["generated gradients", "random gradients that both Runs are given in place of wrong ones, so " +
    "that the optimizer's step is judged alone"],
  ["root module", "the model itself, whose output is called “output”"],
  ["look at", "the most suspect place first, then what it calls and what leads to it"],
];

// The facts that say what is wrong, on which axis, in which tensor and at which line.
function answersOf(entry) {
  const {outcome} = entry;
  const {first} = outcome;
  const measured = first.dtype === "exact" ? " of the elements differ" : first.dtype ?
    ` of the reference's norm, in ${first.dtype}` : "";
  const error = first.error === null ? null : h("span", {}, short(first.error), measured,
    first.allowed === null ? "" : first.allowed === 0 ? "; the values must be equal" :
      `; rounding allows ${short(first.allowed)}`);
  return [
    ["finding", outcome.line ? path(withoutPlace(outcome)) : ""],
    ["first wrong", first.where ? h("span", {}, h("a", {href: linkTo({point: entry.key,
      tensor: first.where})}, path(once(first.where))), meaningOf(first.where)) : ""],
    ["error", error],
    [unmeasured(first), outcome.line.includes(first.message) ? "" : missing(first)],
    ["also missing", alsoMissing(entry)],
    ["pattern", patternOf(first)],
    ["so", first.cause ? name(first.cause, "said") : ""],
    ...factsOf(first).filter(([label]) => BESIDE.includes(label)),
    ["reason", !first.where && outcome.reason && !outcome.line.includes(
      outcome.reason.slice(0, 40)) ? name(outcome.reason, "said") : ""],
    ["also seen", alsoSeen(entry)],
    ["look at", lookAt(entry)],
  ];
}

// Notes on what is not compared that bear on the fault: what lacks a counterpart, and what is said
// of the modules at fault.  The other notes stand at the end of their section.
function alsoSeen(entry) {
  const {first} = entry.outcome;
  const faulty = (first.facts || []).filter(([label]) => label === "faulty")
    .flatMap(([, text]) => text.split(/[\s,:;()]+/)).filter((each) => each.includes("."));
  const words = new Set([first.module, ...faulty].filter(Boolean));
  return listed(judgedOf(entry).flatMap((section) => section.notes || [])
    .filter((note) => note.includes(" have no counterpart ") ||
      note.split(/[\s,:;()]+/).some((word) => words.has(word)))
    .slice(0, MOST_SEEN).flatMap(unsaid).map((note) => h("div", {},
      name(note.replace(/^not compared: (what follows from )?/, ""), "said"))));
}
const listed = (rows) => (rows.length ? rows : "");
const MOST_SEEN = 3;

const judgedOf = (entry) => entry.sections.filter((section) => section.verdict !== "pass");

// How many tensors of each kind, beside the first wrong one, only one of the Runs has.
function alsoMissing(entry) {
  const found = {};
  for (const panel of judgedOf(entry).flatMap((section) => section.panels || [])) {
    const [kind, over] = ["kind", "error ÷ allowed"].map((each) =>
      (panel.type === "table" ? panel.columns || [] : []).indexOf(each));
    if (kind < 0 || over < 0) continue;
    panel.rows.forEach((row, i) => {
      if (row[over] !== "missing" || panel.states[i] === "first") return;
      (found[row[kind]] = found[row[kind]] || new Set()).add(row[0]);
    });
  }
  return listed(Object.entries(found).map(([kind, names]) => h("div", {}, `${kind} of `,
    name([...names].slice(0, 2).join(", "), "said"),
    names.size > 2 ? ` and ${names.size - 2} more` : "")));
}

// What a tensor without a measured error lacks: a counterpart, or equal values on all ranks.
const unmeasured = (first) => ({missing: "missing", replicas: "ranks"}[first.check] || "differs");

// The other facts about what is wrong.
const detailsOf = ({outcome}) =>
  factsOf(outcome.first).filter(([label]) => !BESIDE.includes(label));

// The facts that stand beside the answers.
const BESIDE = ["axis", "stage", "begins", "faulty", "also faulty", "why", "marks", "settings"];

// The finding; its place is left out where the lines to look at follow.
const withoutPlace = ({line, first}) => once(
  first.source ? line.replace(/, at \S+:\d+$/, "") : line);
const once = (line) => line.replace(/^(\w+) · \1(?=:| ·)/, "$1");  // a tensor that has its kind's name

// What the kind of a tensor means, by the tensor's name: "weight · param_grad · step 0".
function meaningOf(where) {
  const kind = where.split(" · ").slice(1).find((each) => Object.hasOwn(data.kinds, each));
  return kind ? h("span", {class: "quiet"}, ` – ${kind}: ${data.kinds[kind]}`) : null;
}

// What is said of a tensor without a measured error, such as a missing one.
const missing = (first) => (first.error === null && first.where && first.message &&
  first.message !== first.pattern ? name(first.message, "said") : "");

// The relation of a wrong tensor to the reference's; a missing one has none.
function patternOf(first) {
  if (first.pattern) return name(first.pattern, "said");
  return first.error === null ? "" : h("span", {class: "quiet"}, "no pattern fits");
}

// The axis, the step in which the failure begins, and what the localisation found.
const factsOf = (first) => (first.facts || []).map(([label, text]) =>
  [label, name(text, "said")]);

// The most places that the answers have, and the most lines beside each.
const MOST_PLACES = 6;
const MOST_ALSO = 3;

// The places to look at, one a line: those of the cards with their lines, and in their order.
function lookAt(entry) {
  const {source, what} = entry.outcome.first;
  const cards = judgedOf(entry).flatMap((section) => section.panels || [])
    .filter((panel) => panel.type === "code");
  if (cards.length) {
    const more = cards.length - MOST_PLACES;
    return [cards.slice(0, MOST_PLACES).map(({file, first, lines, marked, note, also}) => {
      const place = `${file.replace(/:\d+$/, "")}:${marked}`;
      const line = (lines[marked - first] || "").trim();
      return h("div", {title: place}, path(place),
        line ? [" ", h("code", {class: "said-line"}, h("bdi", {}, line))] : null,
        (also || []).slice(0, MOST_ALSO).map((each) => [
          h("span", {class: "quiet"}, ` with line ${each} `),
          h("code", {class: "said-line"}, h("bdi", {}, (lines[each - first] || "").trim()))]),
        unsaid(note).map((each) => [" ", h("span", {class: "quiet"}, name(each, "said"))]));
    }), more > 0 ? h("div", {class: "quiet"}, `and ${plural(more, "place")} below`) : null];
  }
  if (!source) return "";
  const [own, ...others] = what.split("; ");
  return [h("div", {title: source}, path(source),
    own ? [" ", h("span", {class: "quiet"}, name(own, "said"))] : null),
  others.map((each) => h("div", {title: each}, name(each, "said")))];
}

function panelOf(panel) {
  const maker = draw[panel.type];
  return maker ? maker(panel) : null;
}

// What a judge shows; its report is folded if it has panels, which the facts above lead to.
function sectionOf(section) {
  const plain = section.verdict !== "pass" && !(section.panels || []).length;
  const notes = (section.notes || []).flatMap(unsaid);
  return h("section", {class: "judged"},
    h("h3", {}, mark(section.verdict), " ", name(section.judge),
      section.what ? h("span", {class: "quiet"}, " ", path(section.what)) : null),
    section.text ? h("details", {class: "message", open: plain},
      h("summary", {}, "Report"), h("pre", {tabindex: "0", role: "region",
        "aria-label": "Report"}, section.text)) : null,
    (section.panels || []).map((panel, i, all) => panelOf(panel.type === "maps" &&
      all.findIndex((each) => each.type === "maps") < i ? {...panel, plain: true} : panel)),
    notes.length ? h("details", {class: "notes"},
      h("summary", {}, `Not compared: ${notes.length}`),
      h("ul", {}, notes.map((note) => h("li", {}, name(note, "said"))))) : null);
}

function drawPoint(entry) {
  const article = document.getElementById("detail");
  said.clear();
  const failing = judgedOf(entry);
  const order = [...failing, ...entry.sections.filter((section) => section.verdict === "pass")];
  article.replaceChildren(...[h("p", {class: "back"}, h("a", {href: "#"}, "All points")),
    headOf(entry), order.map(sectionOf), runOf(entry.run)]
    .flat(3).filter(Boolean));
  showLeads(article);
}

// Scrolls boxes that are too narrow sideways to what is wrong first.
function showLeads(article) {
  for (const box of article.querySelectorAll(".scroll")) {
    const lead = box.scrollWidth > box.clientWidth && box.querySelector(".node.first, .leads");
    if (lead) {
      const at = lead.getBoundingClientRect().right - box.getBoundingClientRect().left;
      box.scrollLeft = Math.max(0, at + 20 - box.clientWidth);
    }
  }
}

function runOf(number) {
  const run = data.runs[number] || data.runs[0];
  if (!run) return null;
  const pairs = (values) => Object.entries(values).map(([key, value]) => `${key} ${value}`)
    .join(" · ");
  return h("section", {class: "run"}, h("h3", {}, "Settings and versions"), facts([
    ["settings", pairs(run.settings) ? name(pairs(run.settings), "said") : "the defaults"],
    ["versions", name(pairs(run.versions), "said")],
    ["skipped", Object.entries(run.skipped).length ? h("ul", {}, Object.entries(run.skipped)
      .map(([reason, count]) => h("li", {}, name(reason, "said"), ` (${count})`))) : ""],
  ]));
}

// Before a Point is chosen: the causes of failures, and the Points closest to what is allowed.
function drawOverview() {
  const causes = data.families.map((family, number) => {
    const lead = data.entries[family.lead];
    const {first} = lead.outcome;
    return h("section", {class: "cause"},
      h("h3", {}, h("span", {class: `letter f${number % 6}`}, FAMILY(number)), " ",
        h("a", {href: linkTo({point: lead.key})}, path(family.what))),
      facts([
        ["where", family.where ? name(family.where, "said") : ""],
        ["error", family.size],
        [unmeasured(first), missing(first)],
        ["pattern", patternOf(first)],
        ["so", family.cause ? name(family.cause, "said") : ""],
        ...factsOf(first),
        ["look at", lookAt(lead)],
        [plural(family.members.length, "point"), path(family.points)],
        ["rerun", command(lead.rerun)],
      ]));
  });
  const passing = data.entries.filter((entry) => entry.outcome.verdict === "pass" &&
    entry.outcome.worst !== null)
    .sort((a, b) => asNumber(b.outcome.worst) - asNumber(a.outcome.worst)).slice(0, 25);
  const closest = passing.length ? h("figure", {class: "panel"},
    h("figcaption", {}, h("h4", {}, "Closest to the allowance"), h("p", {class: "quiet"},
      "the largest error of each passing point, as a share of what rounding allows")),
    scrolled(h("table", {class: "rows"}, h("thead", {}, h("tr", {}, ["point", "tensor",
      "error ÷ allowed", "tensors"].map((each) => h("th", {scope: "col"}, each)))),
    h("tbody", {}, passing.map((entry) => h("tr", {},
      h("th", {scope: "row"}, h("a", {href: linkTo({point: entry.key})}, path(shortName(entry)))),
      h("td", {}, path(entry.outcome.worst_name)),
      h("td", {class: "share"}, h("span", {class: "share-bar", style: {width:
        `${Math.min(100, 100 * asNumber(entry.outcome.worst))}%`}}), h("span", {},
        short(entry.outcome.worst))),
      h("td", {class: "number"}, entry.outcome.tensors.join(" / ")))))), "Closest")) : null;
  document.getElementById("detail").replaceChildren(...[
    h("h2", {class: causes.length ? null : "away"}, causes.length ? "What fails" : "All points pass"),
    causes, closest, data.runs.map((_, number) => number).slice(0, 1).map(runOf)]
    .flat(3).filter(Boolean));
}
