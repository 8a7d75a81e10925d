// The dataflow from left to right: a box for each part, a row for each shard, a cell for each replica on its node.

import { byId, el, glyph, keyed, setAttribute, setClass, setGlyph, setHidden, setText } from "./dom.js";
import { Edges } from "./edges.js";
import { STATES, count, span } from "./format.js";
import { moveFocus } from "./keyboard.js";

const DENSE = 60; // From so many replicas on, cells are smaller and leave out what all nodes' names begin with.
const TALL = 8; // Shards in a column of a box.

const AVAILABILITY = { active: "", "active-standby": "active standby", passive: "passive", upstream: "upstream backup", none: "not replicated" };

export class Graph {
  constructor(open) {
    this.open = open;
    this.host = byId("graph");
    this.host.keyedFirst = byId("edges");
    this.edges = new Edges(this.host, byId("edges"));
    this.chosen = null;
    this.shape = "";
    this.host.addEventListener("click", (event) => this.clicked(event));
    this.host.addEventListener("keydown", (event) => moveFocus(this.host, event));
  }

  show({ view }) {
    this.replicas = new Map(view.replicas.map((replica) => [replica.replica, replica]));
    this.dense = view.replicas.length >= DENSE;
    this.prefix = this.dense ? view.prefix : "";
    setClass(this.host, this.dense ? "graph dense" : "graph");
    const stops = [...view.parts, ...view.lanes.map((lane) => ({ ...lane, kind: "lane", name: `${lane.from} ${lane.to}` }))];
    keyed(this.host, columnsOf(stops), (column) => column.place, () => el("div", { class: "column" }), (node, column) => {
      keyed(node, column.parts, (part) => part.name, makePart, (box, part) => this.updatePart(box, part));
    });
    this.keepTabStop();
    this.edges.show(view.edges, stops);
    showLegend(view.counts);
  }

  /** Mark the replica that the inspector shows. */
  choose(replica) {
    this.chosen = replica;
    for (const cell of this.host.querySelectorAll(".cell")) {
      setAttribute(cell, "aria-expanded", cell.dataset.replica === replica ? "true" : null);
    }
  }

  clicked(event) {
    const cell = event.target.closest?.(".cell[data-replica]");
    if (cell) this.open(cell.dataset.replica, cell);
  }

  updatePart(box, part) {
    if (part.kind === "lane") return;
    const missing = part.shards.filter((shard) => shard.missing !== undefined);
    const gone = part.shards.some((shard) => !shard.replicas.some((name) => isWell(this.replicas.get(name))));
    const state = part.kind === "sink" ? "" : gone ? " stopped" : missing.length ? " short" : "";
    setClass(box, `part ${part.kind}${state}`);
    setText(box.refs.small, smallOf(part));
    if (box.refs.note) setText(box.refs.note, noteOf(part));
    const { shards } = box.refs;
    if (!shards) return;
    const rows = Math.ceil(part.shards.length / Math.ceil(part.shards.length / TALL));
    const template = `repeat(${rows}, auto)`;
    if (shards.style.gridTemplateRows !== template) shards.style.gridTemplateRows = template;
    keyed(shards, part.shards, (shard) => shard.shard, makeShard, (node, shard) => this.updateShard(node, shard, part));
  }

  updateShard(node, shard, part) {
    setHidden(node.refs.label, part.shards.length === 1);
    const cells = shard.replicas.map((name) => ({ key: name, replica: this.replicas.get(name) }));
    for (let i = 0; i < (shard.missing ?? 0); i += 1) cells.push({ key: `missing ${i}`, replica: null });
    keyed(node, cells, (cell) => cell.key, makeCell, (cell, item) => this.updateCell(cell, item, shard));
  }

  updateCell(cell, { key, replica }, shard) {
    const look = replica ? replica.look : "missing";
    setClass(cell, `cell s-${look}`);
    setGlyph(cell.firstChild, `g-${look}`);
    setText(cell.lastChild, replica ? labelOf(replica.node, this.prefix) : this.dense ? "?" : "missing");
    setAttribute(cell, "aria-label", replica ? describe(replica) : `${shard.shard}: a replica is missing`);
    setAttribute(cell, "title", replica ? describe(replica) : "A replica is missing and has no place yet");
    setAttribute(cell, "data-replica", replica ? key : null);
    setAttribute(cell, "aria-expanded", replica && key === this.chosen ? "true" : null);
    const copied = replica?.copied ?? null;
    if (cell.refs.copied !== copied) {
      cell.refs.copied = copied;
      cell.style.setProperty("--copied", copied ?? 0);
    }
  }

  /** One cell at a time can be reached with Tab; from there on arrows go further. */
  keepTabStop() {
    const stops = this.host.querySelectorAll('.cell[tabindex="0"]');
    if (stops.length === 1) return;
    for (const stop of stops) stop.setAttribute("tabindex", "-1");
    this.host.querySelector(".cell")?.setAttribute("tabindex", "0");
  }
}

const WELL = new Set(["active", "standby", "waiting", "tentative"]);
const isWell = (replica) => replica !== undefined && WELL.has(replica.look);

function columnsOf(parts) {
  const columns = new Map();
  for (const part of parts) {
    if (!columns.has(part.column)) columns.set(part.column, []);
    columns.get(part.column).push(part);
  }
  return [...columns.keys()].sort((a, b) => a - b).map((place) => ({
    place,
    parts: columns.get(place).sort((a, b) => a.row - b.row),
  }));
}

function makePart(part) {
  // An edge that passes a column has a place of its own there, which shows nothing.
  if (part.kind === "lane") return el("div", { class: "lane", "data-lane": part.name });
  const refs = { small: el("small"), note: null, shards: null };
  const box = el("section", { class: "part", "data-part": part.name, "aria-label": `${part.kind} ${part.name}` }, el("h3", {}, part.name, refs.small));
  if (part.kind === "ingress") {
    box.append(el("ul", { class: "sources", "aria-label": "sources" }, ...part.sources.map((name) => el("li", { "data-source": name }, name))));
  }
  if (part.kind === "sink") refs.note = box.appendChild(el("p"));
  else refs.shards = box.appendChild(el("div", { class: "shards" }));
  box.refs = refs;
  return box;
}

function smallOf(part) {
  if (part.kind === "sink") return "sink";
  if (part.kind === "ingress") return part.sources.length === 1 ? "source" : "sources";
  const shards = part.shards.length === 1 ? "" : `${part.shards.length} shards`;
  return [shards, AVAILABILITY[part.ha] ?? part.ha].filter(Boolean).join(", ");
}

function noteOf(part) {
  if (part.client) return "read by clients";
  return part.units === null || part.units === undefined ? "" : `${count(part.units)} units`;
}

function makeShard(shard) {
  const label = el("span", {}, shard.shard.slice(shard.shard.lastIndexOf(".") + 1));
  const node = el("div", { class: "shard" }, label);
  node.refs = { label };
  node.keyedFirst = label;
  return node;
}

function makeCell() {
  const cell = el("button", { type: "button", class: "cell", tabindex: "-1" }, glyph("g-active"), el("span"));
  cell.refs = { copied: null };
  return cell;
}

function labelOf(node, prefix) {
  return prefix && node.startsWith(prefix) ? node.slice(prefix.length) : node;
}

/** A replica in one sentence, for a pointer that rests on it and for those who listen. */
export function describe(replica) {
  const units = replica.units === undefined ? "" : `, ${count(replica.units)} units`;
  const lag = replica.lag_ms > 1000 ? `, ${span(replica.lag_ms)} behind` : "";
  return `${replica.replica} on ${replica.node}: ${STATES[replica.look]}${replica.why ? ` (${replica.why})` : ""}${units}${lag}`;
}

function showLegend(counts) {
  keyed(byId("legend"), Object.entries(counts), ([look]) => look, ([look]) => {
    const number = el("b");
    const item = el("li", {}, glyph(`g-${look}`), el("span", {}, STATES[look]), number);
    item.refs = { number };
    return item;
  }, (item, [look, number]) => {
    setClass(item, number ? `s-${look}` : `s-${look} none`);
    setText(item.refs.number, String(number));
  });
}
