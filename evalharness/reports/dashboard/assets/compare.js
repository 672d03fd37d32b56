// Compares any two runs in the browser. A run's figures come from runs/<id>/data.js, loaded as a script so that the
// page works from a disk too.
"use strict";

const loaded = new Map();
let arrived = null;
window.evalharnessRun = (data) => { arrived = data; };

function load(id) {
  if (!loaded.has(id)) {
    loaded.set(id, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `runs/${encodeURIComponent(id)}/data.js`;
      script.onload = () => resolve(arrived);
      script.onerror = () => { loaded.delete(id); reject(new Error(`The data of ${id} cannot be read.`)); };
      document.head.append(script);
    }));
  }
  return loaded.get(id);
}

// Scores of a string of marks: tenths in hexadecimal, null for an answer that was lost.
const scores = (marks) => [...marks].map((c) => (c === "-" ? null : parseInt(c, 16) / 10));

// Differences summed by document, in tenths, over the questions that both runs answered.
function pairUp(before, after) {
  if (!before.marks || !after.marks || before.marks.length !== after.marks.length) return null;
  if (before.questions !== after.questions) return null;
  const [a, b] = [scores(before.marks), scores(after.marks)];
  const sums = new Map();
  const flips = { lost: [], gained: [] };
  let n = 0;
  a.forEach((was, i) => {
    if (was === null || b[i] === null) return;
    const document = Math.floor(i / before.repeats);
    const change = Math.round((b[i] - was) * 10);
    sums.set(document, (sums.get(document) || 0) + change);
    if (change) flips[change < 0 ? "lost" : "gained"].push(before.repeats > 1 ? `${document}/${i % before.repeats}` : `${document}`);
    n += 1;
  });
  return n ? { sums: [...sums.values()], flips, n } : null;
}

// Exact two-sided sign-flip test of the sum (Fisher 1935): each document's difference is as likely to have either
// sign. For differences of one size it is the exact McNemar test.
function signFlip(sums) {
  const sizes = sums.map(Math.abs).filter((size) => size > 0);
  const unit = sizes.reduce((a, b) => { while (b) [a, b] = [b, a % b]; return a; }, 0) || 1;
  let chance = new Map([[0, 1]]);
  sizes.forEach((size) => {
    const next = new Map();
    chance.forEach((p, sum) => [size / unit, -size / unit].forEach((step) =>
      next.set(sum + step, (next.get(sum + step) || 0) + p / 2)));
    chance = next;
  });
  const seen = Math.abs(sums.reduce((a, b) => a + b, 0)) / unit;
  let tail = 0;
  chance.forEach((p, sum) => { if (Math.abs(sum) >= seen - 1e-9) tail += p; });
  return Math.min(1, tail);
}

const pValue = (p) => (p >= 0.001 ? p.toFixed(3) : p > 0 ? p.toExponential(1) : "< 1e-300");

function forest(before, after) {
  const box = element("span", `forest ${after.css}`);
  const place = (part, value) => { part.style.left = `${value * 100}%`; box.append(part); };
  if (after.low !== null && after.high !== null) {
    const bar = element("i");
    bar.style.width = `${(after.high - after.low) * 100}%`;
    place(bar, after.low);
  }
  if (before.value !== null) place(element("b", "before"), before.value);
  if (after.value !== null) place(element("b"), after.value);
  return box;
}

function row(before, after) {
  const line = element("tr");
  const change = before.value === null || after.value === null ? null : after.value - before.value;
  const pair = pairUp(before, after);
  const p = pair ? signFlip(pair.sums) : null;
  const sure = p !== null && p < 0.05;
  const delta = element("span", `delta ${sure ? (change < 0 ? "bad" : "good") : ""}`, change === null ? "—" : `${change >= 0 ? "+" : ""}${change.toFixed(3)}`);
  const cell = (content, css) => { const made = element("td", css); made.append(content); line.append(made); };
  cell(after.task);
  const arm = element("span");
  arm.append(element("i", `swatch ${after.css}`), after.arm);
  cell(arm);
  cell(share(before.value), "num");
  cell(share(after.value), "num");
  cell(delta, "num");
  cell(pair ? pValue(p) : "—", "num");
  cell(forest(before, after));
  cell(tokens(before, after), "num");
  cell(pair ? flipWords(pair) : reason(before, after), "wide");
  return line;
}

function tokens(before, after) {
  if (before.output_tokens === null || after.output_tokens === null) return "—";
  return `${before.output_tokens.toFixed(0)} → ${after.output_tokens.toFixed(0)}`;
}

function flipWords({ flips, n }) {
  const named = (list) => (list.length ? `: ${list.slice(0, 8).join(", ")}${list.length > 8 ? " …" : ""}` : "");
  return `${n} pairs; ${flips.lost.length} lost${named(flips.lost)}; ${flips.gained.length} gained${named(flips.gained)}`;
}

function reason(before, after) {
  if (before.questions !== after.questions) return "not the same questions: only the figures compare";
  return "answers of one run are not at hand: only the figures compare";
}

function summary(run) {
  const line = element("p", "sub");
  const link = element("a", "", run.id);
  link.href = `runs/${encodeURIComponent(run.id)}/index.html`;
  const tones = { PASS: "good", INCONCLUSIVE: "warn" };
  line.append(link, " ", element("span", `chip ${tones[run.verdict] || "bad"}`, run.verdict), ` ${run.model} · ${run.version}`);
  return line;
}

function table(before, after) {
  const earlier = new Map(before.scores.map((s) => [`${s.task}\n${s.arm}`, s]));
  const rows = after.scores.filter((s) => earlier.has(`${s.task}\n${s.arm}`)).map((s) => row(earlier.get(`${s.task}\n${s.arm}`), s));
  if (!rows.length) return element("p", "sub", "The two runs share no task and arm.");
  const made = element("table");
  const head = element("tr");
  [["task"], ["arm"], ["before", "num"], ["after", "num"], ["change", "num"], ["p (paired)", "num"], ["0 … 1"], ["tokens", "num"], ["questions that flipped"]]
    .forEach(([name, css]) => head.append(element("th", css, name)));
  const [thead, tbody] = [element("thead"), element("tbody")];
  thead.append(head);
  tbody.append(...rows);
  made.append(thead, tbody);
  const box = element("div", "scroll");
  box.append(made);
  return box;
}

async function compare() {
  const [first, second] = [before.value, after.value];
  history.replaceState(null, "", `#${encodeURIComponent(first)},${encodeURIComponent(second)}`);
  try {
    const runs = [await load(first), await load(second)];
    if (before.value !== first || after.value !== second) return;
    result.replaceChildren(summary(runs[0]), summary(runs[1]), table(...runs));
  } catch (error) {
    result.replaceChildren(element("p", "sub", error.message));
  }
}

function fill(select, choices) {
  const groups = new Map();
  choices.forEach(([id, profile, created, verdict, version]) => {
    if (!groups.has(profile)) {
      const group = document.createElement("optgroup");
      group.label = profile;
      groups.set(profile, group);
    }
    const option = element("option", "", `${created} · ${verdict}${version ? ` · ${version}` : ""}`);
    option.value = id;
    groups.get(profile).append(option);
  });
  select.replaceChildren(...groups.values());
}

const [before, after, result] = ["before", "after", "result"].map((id) => document.getElementById(id));

function start() {
  const choices = JSON.parse(document.getElementById("choices").textContent);
  if (choices.length < 2) {
    result.replaceChildren(element("p", "sub", "There are no two runs to compare yet."));
    return;
  }
  [before, after].forEach((select) => { fill(select, choices); select.addEventListener("change", compare); });
  const ids = new Set(choices.map((choice) => choice[0]));
  const asked = window.location.hash.slice(1).split(",").map(decodeURIComponent);
  before.value = ids.has(asked[0]) ? asked[0] : choices[1][0];
  after.value = ids.has(asked[1]) ? asked[1] : choices[0][0];
  document.getElementById("swap").addEventListener("click", () => {
    [before.value, after.value] = [after.value, before.value];
    compare();
  });
  compare();
}

start();
window.addEventListener("hashchange", () => window.location.reload());
