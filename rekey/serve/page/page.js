"use strict";
// Shows the progress document as it changes. All that comes from it is set as text, never as markup.

const PHASES = ["prepare", "dual_write", "backfill", "reconcile", "cutover", "complete", "retire"];
const SVG = "http://www.w3.org/2000/svg";
const HISTORY_EVERY_MS = 10000;
const state = { history: { samples: {}, events: [] }, document: null };

function make(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "onclick") made.addEventListener("click", value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const number = (value, digits = 0) =>
  value.toLocaleString(undefined, { maximumFractionDigits: digits });

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const clock = (text) => new Date(text).toLocaleTimeString();

function phases(migration) {
  const now = migration.phase;
  return make("ol", { class: "phases", "aria-label": "Phases" }, ...PHASES
    .filter((name) => name !== "dual_write" || migration.capture === "dual-write")
    .map((name) => {
      const done = migration.phases.includes(name);
      const here = now.name === name && now.state !== "done";
      const stopped = here && ["stopped", "cut-off"].includes(now.state);
      const kind = stopped ? "stopped" : here ? "now" : done ? "done" : "later";
      const item = make("li", { class: kind }, here && now.state !== "at-work" ? `${name}: ${now.state}` : name);
      if (here) item.setAttribute("aria-current", "step");
      return item;
    }));
}

function figure(name, value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}

function figures(migration) {
  const found = [];
  const work = migration.work;
  if (work) {
    const whole = work.estimated_rows;
    found.push(figure(work.label, whole ? `${number(work.rows)} of ${number(whole)} rows` : `${number(work.rows)} rows`));
    if (work.rows_per_second !== null) found.push(figure("rate", `${number(work.rows_per_second)} rows/s`));
    if (work.eta) {
      found.push(figure("left", `${duration(work.eta.seconds)} (${duration(work.eta.least_s)} to ${duration(work.eta.most_s)})`));
    }
  }
  if (migration.lag_s !== null) found.push(figure("lag", duration(migration.lag_s)));
  if (migration.checkpoint) found.push(figure("last checkpoint", `${duration(migration.checkpoint.age_s)} ago`));
  if (migration.divergences !== null) found.push(figure("rows that differ", number(migration.divergences)));
  if (migration.journal) found.push(figure("intents", number(migration.journal.depth)));
  return found.length ? make("dl", { class: "figures" }, ...found) : null;
}

function rates(migration) {
  const samples = (state.history.samples[migration.script_id] || []).filter((one) => one.rows_per_second !== null);
  if (samples.length < 2) return null;
  const times = samples.map((one) => Date.parse(one.at));
  const highest = Math.max(...samples.map((one) => one.rows_per_second), 1);
  const first = times[0];
  const span = Math.max(1, times[times.length - 1] - first);
  const points = samples.map((one, at) =>
    `${(1000 * (times[at] - first) / span).toFixed(1)},${(96 - 90 * one.rows_per_second / highest).toFixed(1)}`);
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("viewBox", "0 0 1000 100");
  drawn.setAttribute("preserveAspectRatio", "none");
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", `Rate, at most ${number(highest)} rows a second`);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", points.join(" "));
  drawn.append(line);
  return make("div", {},
    make("h3", {}, `Rate of the last hour, at most ${number(highest)} rows/s`), drawn,
    make("div", { class: "axis" }, make("span", {}, clock(samples[0].at)),
      make("span", {}, clock(samples[samples.length - 1].at))));
}

function clients(migration) {
  if (!migration.clients.length) return null;
  const head = make("tr", {},
    ...["client", "view", "host", "standing"].map((name) => make("th", { scope: "col" }, name)),
    ...["epoch", "in flight", "left"].map((name) => make("th", { scope: "col", class: "number" }, name)));
  const rows = migration.clients.map((one) => make("tr", {},
    ...[one.name, one.view, one.host, one.current ? one.standing : `${one.standing}, behind`]
      .map((value) => make("td", { title: value }, value)),
    ...[one.epoch, one.in_flight, one.left].map((value) => make("td", { class: "number" }, number(value)))));
  return make("div", {}, make("h3", {}, "Clients"),
    make("div", { class: "scrolls" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
}

function next(migration) {
  const { command, remark } = migration.next;
  if (!command && !remark) return null;
  const shown = make("div", { class: "next" });
  if (command) {
    const button = make("button", { type: "button", onclick: () => copy(command, button) }, "Copy");
    shown.append(make("code", {}, command), button);
  }
  return make("div", {}, make("h3", {}, "Next"), shown, remark ? make("p", {}, remark) : null);
}

function copy(text, button) {
  const said = (done) => { button.textContent = done; setTimeout(() => { button.textContent = "Copy"; }, 2000); };
  if (!navigator.clipboard) { said("Select it by hand"); return; } // pages without TLS have none
  navigator.clipboard.writeText(text).then(() => said("Copied"), () => said("Select it by hand"));
}

function verdict(one) {
  return make("p", { class: one.safe ? "verdict" : "verdict attention" },
    make("strong", {}, one.safe ? "Safe. " : "Attention. "), one.sentence);
}

function groupCard(group) {
  return make("article", { class: "migration" },
    make("h2", {}, `Group ${group.name}`),
    make("p", { class: "tables" }, `${group.members.join(", ")} · ${group.stage}`),
    verdict(group), next(group));
}

function card(migration) {
  const whole = migration.work && migration.work.estimated_rows;
  const bar = whole
    ? make("progress", { max: whole, value: Math.min(whole, migration.work.rows), "aria-label": migration.work.label })
    : null;
  const held = migration.held_back.map((one) => make("li", {}, one.text));
  return make("article", { class: "migration" },
    make("h2", {}, migration.script_id),
    make("p", { class: "tables" }, `${migration.source} → ${migration.targets.join(", ")} · capture ${migration.capture} · ${migration.stage}`),
    verdict(migration),
    phases(migration), bar, figures(migration),
    held.length ? make("div", { class: "held" }, make("h3", {}, "Held back by"), make("ul", {}, ...held)) : null,
    rates(migration), clients(migration), next(migration));
}

function draw() {
  if (!state.document) return;
  // What is being copied or selected stays: nothing is replaced while there is a selection.
  if (String(window.getSelection())) return;
  const { groups = [], migrations } = state.document;
  document.getElementById("migrations").replaceChildren(...groups.map(groupCard), ...migrations.map(card));
  const events = [...state.history.events].reverse().slice(0, 50);
  document.getElementById("recent").hidden = events.length === 0;
  document.getElementById("events").replaceChildren(...events.map((one) =>
    make("li", {}, make("time", { datetime: one.at }, clock(one.at)), `${one.script_id}: ${one.text}`)));
}

function say(text, lost) {
  const shown = document.getElementById("state");
  shown.textContent = text;
  shown.className = lost ? "lost" : "";
}

async function remember() {
  try {
    const answer = await fetch("progress/history");
    if (answer.ok) state.history = await answer.json();
  } catch { /* the stream tells that the connection is lost */ }
  draw();
}

function listen() {
  const source = new EventSource("progress/stream");
  source.addEventListener("progress", (event) => {
    state.document = JSON.parse(event.data);
    const steering = state.document.steering;
    say(`As of ${clock(state.document.as_of)}${steering && steering.paused ? " · paused by the operator" : ""}`, false);
    draw();
  });
  source.addEventListener("problem", (event) => say(`Not up to date: ${JSON.parse(event.data) || "nothing was read yet"}`, true));
  source.onerror = () => {
    say("The connection to rekey is lost; trying again. What is shown is old.", true);
    // A server that was restarted, or refuses: browsers give up on that by themselves.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

remember();
setInterval(remember, HISTORY_EVERY_MS);
listen();
