// Every replica in a table: where it is, how far it has come, what its micro-batches are spent on, and how much it keeps.

import { byId, el, glyph, keyed, setAttribute, setClass, setGlyph, setHidden, setText } from "./dom.js";
import { STATES, bytes, count, span } from "./format.js";

export const PARTS = ["input", "plan", "query", "commit", "other"];

export class Replicas {
  constructor(open) {
    this.open = open;
    this.body = byId("replicas");
    this.search = byId("replicas-search");
    this.unwell = byId("replicas-unwell");
    this.last = null;
    for (const control of [this.search, this.unwell]) control.addEventListener("input", () => this.last && this.show(this.last));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.open(row.dataset.replica, row.refs.button);
    });
  }

  show(update) {
    this.last = update;
    const wanted = this.search.value.trim().toLowerCase();
    const shown = update.view.replicas.filter(
      (replica) =>
        (!this.unwell.checked || replica.look !== "active") &&
        (!wanted || replica.replica.toLowerCase().includes(wanted) || replica.node.toLowerCase().includes(wanted)),
    );
    // Bars of one table are drawn to one scale, so that they can be compared.
    const longest = Math.max(1, ...update.view.replicas.map((replica) => replica.batch_ms ?? 0));
    keyed(this.body, shown, (replica) => replica.replica, makeRow, (row, replica) => updateRow(row, replica, longest));
    setHidden(byId("replicas-empty"), shown.length > 0);
  }
}

function makeRow(replica) {
  const number = (more = "") => el("td", { class: `num${more}` });
  const refs = {
    button: el("button", { type: "button", class: "link" }, replica.replica),
    sub: el("span", { class: "sub" }),
    node: el("td", { class: "wide" }),
    shape: glyph("g-active"),
    word: el("span"),
    units: number(),
    behind: number(" wide"),
    lag: number(),
    latency: number(" wide"),
    bar: bar(),
    took: el("b"),
    rows: number(" wide"),
    size: number(),
  };
  refs.state = el("span", { class: "state" }, refs.shape, refs.word);
  const batch = el("td", {}, el("div", { class: "batch" }, refs.bar, refs.took));
  const row = el("tr", { "data-replica": replica.replica }, el("td", {}, refs.button, refs.sub), refs.node, el("td", {}, refs.state));
  row.append(refs.units, refs.behind, refs.lag, refs.latency, batch, refs.rows, refs.size);
  row.refs = refs;
  return row;
}

function updateRow({ refs }, replica, longest) {
  setText(refs.sub, replica.node);
  setText(refs.node, replica.node);
  setClass(refs.state, `state s-${replica.look}`);
  setGlyph(refs.shape, `g-${replica.look}`);
  setText(refs.word, STATES[replica.look]);
  setAttribute(refs.state, "title", replica.why ?? null);
  setText(refs.units, count(replica.units));
  setText(refs.behind, count(replica.behind));
  setText(refs.lag, span(replica.lag_ms));
  setText(refs.latency, span(replica.latency_ms));
  setText(refs.rows, count(replica.rows));
  setText(refs.size, bytes(replica.state_bytes));
  setText(refs.took, span(replica.batch_ms));
  drawBar(refs.bar, replica.split ?? {}, longest);
}

export function bar() {
  const node = el("div", { class: "bar", role: "img" });
  node.pieces = PARTS.map((part) => el("i", { class: `p-${part}` }));
  node.append(...node.pieces);
  return node;
}

/** Draw what a micro-batch was spent on, as shares of the longest one. */
export function drawBar(node, split, longest) {
  const words = PARTS.filter((part) => split[part]).map((part) => `${part} ${span(split[part])}`).join(", ");
  PARTS.forEach((part, i) => {
    const width = `${(((split[part] ?? 0) / longest) * 100).toFixed(1)}%`;
    if (node.pieces[i].style.width !== width) node.pieces[i].style.width = width;
  });
  setAttribute(node, "aria-label", words || "not known");
  setAttribute(node, "title", words || null);
}
