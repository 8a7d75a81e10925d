// What happened, in sentences, newest first.

import { byId, el, glyph, keyed, setHidden } from "./dom.js";
import { clock } from "./format.js";

const TELLING = new Set(["loss", "doubt", "repair"]);
const KINDS = { loss: "failure", doubt: "warning", repair: "repair", change: "change", note: "note" };

export class History {
  constructor() {
    this.list = byId("history");
    this.filter = byId("history-filter");
    this.sentences = [];
    this.filter.addEventListener("input", () => this.draw());
  }

  show(sentences) {
    this.sentences = [...sentences].reverse();
    this.draw();
  }

  draw() {
    const shown = this.filter.checked ? this.sentences.filter((one) => TELLING.has(one.kind)) : this.sentences;
    keyed(this.list, shown, (one) => `${one.time_ms} ${one.node} ${one.text}`, make, () => {});
    setHidden(this.list, false);
  }
}

function make({ time_ms: time, node, text, kind }) {
  const when = el("time", { datetime: new Date(time).toISOString() }, clock(time));
  const who = text.startsWith(node) || node === "page" ? "" : `${node}: `;
  return el("li", { class: `k-${kind}` }, when, glyph(`k-${kind}`), el("span", {}, el("span", { class: "sr" }, `${KINDS[kind]}: `), el("small", {}, who), text));
}
