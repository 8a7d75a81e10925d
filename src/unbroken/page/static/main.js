// Puts the page together: each update goes to every panel, and what an update costs is measured where it is paid.

import { Actions } from "./actions.js";
import { Charts } from "./charts.js";
import { byId, setText } from "./dom.js";
import { follow } from "./feed.js";
import { clock, elapsed } from "./format.js";
import { Graph } from "./graph.js";
import { History } from "./history.js";
import { Inspector } from "./inspector.js";
import { Nodes } from "./nodes.js";
import { Replicas } from "./replicas.js";
import { Samples } from "./samples.js";
import { Summary } from "./summary.js";

const MEASURE = "update";
const MOST_MEASURES = 500;

const samples = new Samples();
const actions = new Actions();
const inspector = new Inspector(actions);
const open = (replica, opener) => inspector.open(replica, opener);
const graph = new Graph(open);
const charts = new Charts(samples);
const history = new History();
const panels = [new Summary(), graph, new Nodes(actions), new Replicas(open), inspector, actions];
inspector.onChoice = (replica) => graph.choose(replica);

let waiting = null;
let measured = 0;

/** Show an update: everything it says, and nothing twice. */
function show(text) {
  const began = performance.now();
  const update = JSON.parse(text);
  samples.add(update.samples, update.whole);
  if (update.history) history.show(update.history);
  if (document.hidden) {
    // Nobody looks: only what cannot be had again is taken in.
    waiting = update;
    if (update.marks) charts.setMarks(update.marks);
    return;
  }
  waiting = null;
  for (const panel of panels) panel.show(update);
  if (update.marks) charts.setMarks(update.marks);
  charts.show(update.view.time_ms);
  // Layout is part of what an update costs; without asking for it, it would be paid later and not counted.
  document.body.getBoundingClientRect();
  measure(began);
}

function measure(began) {
  if ((measured += 1) % MOST_MEASURES === 0) performance.clearMeasures(MEASURE);
  performance.measure(MEASURE, { start: began, end: performance.now() });
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && waiting) {
    for (const panel of panels) panel.show(waiting);
    charts.show(waiting.view.time_ms);
    waiting = null;
  }
});

follow(show, (state, heard) => {
  const node = byId("connection");
  if (node.dataset.state !== state) node.dataset.state = state;
  const lost = `no answer since ${clock(heard)} (${elapsed(Date.now() - heard)})`;
  setText(byId("connection-text"), state === "live" ? "live" : state === "lost" ? lost : "connecting");
  document.body.classList.toggle("stale", state === "lost");
});
