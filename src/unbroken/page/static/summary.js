// The first lines of the page: which flow, how it is as a whole, and since when.

import { byId, el, keyed, setAttribute, setHidden, setText } from "./dom.js";
import { clock, count, elapsed, span } from "./format.js";

const TITLES = { whole: "Redundant.", short: "Not fully redundant.", stopped: "Interrupted.", unknown: "Looking." };
const WORDS = { whole: "redundant", short: "not fully redundant", stopped: "interrupted", unknown: "looking" };
const GLYPHS = { whole: "#g-active", short: "#g-suspected", stopped: "#g-dead", unknown: "#g-standby" };

export class Summary {
  constructor() {
    this.said = "";
  }

  show({ view, page }) {
    setText(byId("flow"), view.flow || "Unbroken");
    document.title = `${view.flow || "Unbroken"}: ${WORDS[this.state(view)]}`;
    setText(byId("about"), aboutOf(view, page));
    keyed(byId("facts"), factsOf(view), (fact) => fact[0], makeFact, updateFact);
    this.showBanner(view);
    const trouble = troubleOf(view);
    setHidden(byId("trouble"), !trouble);
    setText(byId("trouble"), trouble);
    setText(byId("foot"), footOf(view, page));
  }

  state({ redundancy }) {
    if (redundancy.whole === null) return "unknown";
    if (redundancy.whole) return "whole";
    return redundancy.shards.some((shard) => shard.there === 0) ? "stopped" : "short";
  }

  showBanner(view) {
    const state = this.state(view);
    const { sentence, since_ms: since } = view.redundancy;
    setAttribute(byId("banner"), "data-state", state);
    setAttribute(byId("banner-glyph"), "href", GLYPHS[state]);
    setText(byId("banner-title"), TITLES[state]);
    setText(byId("banner-text"), sentence);
    const known = since !== null && since !== undefined;
    setText(byId("banner-since"), known ? `since ${clock(since)}, ${elapsed(view.time_ms - since)}` : "");
    if (this.said !== state) {
      // Said once when it changes; every second would be too much to listen to.
      if (this.said) setText(byId("announcer"), `${TITLES[state]} ${sentence}`);
      this.said = state;
    }
  }
}

function aboutOf(view, page) {
  const code = view.code ? `generation ${view.code.generation} of ${view.code.file.split("/").pop()}` : "";
  return page?.simulated ? "simulated" : code;
}

function factsOf(view) {
  const well = view.nodes.filter((node) => node.look === "active").length;
  const facts = [["nodes", `${well} of ${view.nodes.length}`]];
  const { pulse } = view;
  if (pulse) {
    facts.push(["pulse", pulse.period_ms ? `${count(pulse.number)}, every ${span(pulse.period_ms)}` : count(pulse.number)]);
    facts.push(["rows", count(pulse.rows)]);
    if (pulse.bad_rows) facts.push(["bad rows", count(pulse.bad_rows)]);
    if (pulse.late_rows) facts.push(["late rows", count(pulse.late_rows)]);
    if (pulse.ended) facts.push(["sources", "ended"]);
  }
  if (view.overhead !== null) facts.push(["bytes for availability", `${view.overhead} per byte`]);
  return facts;
}

function makeFact() {
  return el("div", {}, el("dt"), el("dd"));
}

function updateFact(node, [name, value]) {
  setText(node.firstChild, name);
  setText(node.lastChild, value);
}

function troubleOf(view) {
  const away = Object.entries(view.pulse?.unreached_ms ?? {}).map(([source, ms]) => `${source} has not been reached for ${span(ms)}.`);
  return [
    view.trouble ? `The flow cannot be looked at: ${view.trouble}` : "",
    view.pause ? `The flow is paused since ${clock(view.pause.since_ms)}${view.pause.reason ? ` (${view.pause.reason})` : ""}: no source is read.` : "",
    view.zookeeper_away ? "ZooKeeper is away. Results go on; nothing is repaired until it is back." : "",
    view.divergences.length ? `Replicas differ: ${view.divergences.slice(0, 3).join("; ")}` : "",
    ...away,
  ].filter(Boolean).join(" ");
}

function footOf(view, page) {
  const version = page?.version ? `Unbroken ${page.version}` : "Unbroken";
  return `${version} · ${view.replicas.length} replicas on ${view.nodes.length} nodes · looked at ${clock(view.time_ms)}`;
}
