// What happened, newest first: each notice with its effect on the flow, its severity and its sentence.

import { byId, el, glyph, keyed, setHidden } from "./dom.js";
import { clock } from "./format.js";

const TELLING = new Set(["loss", "doubt", "repair"]);
const EFFECTS = { loss: "failure", doubt: "warning", repair: "repair", change: "change", note: "note" };

export class History {
  constructor() {
    this.list = byId("history");
    this.filter = byId("history-filter");
    this.notices = [];
    this.filter.addEventListener("input", () => this.draw());
  }

  show(notices) {
    this.notices = [...notices].reverse();
    this.draw();
  }

  draw() {
    const shown = this.filter.checked ? this.notices.filter((one) => TELLING.has(one.effect) || one.severity === "error") : this.notices;
    keyed(this.list, shown, (one) => `${one.time_ms} ${one.node} ${one.text}`, make, () => {});
    setHidden(this.list, false);
  }
}

function make({ time_ms: time, node, named, text, kind, severity, effect }) {
  const when = el("time", { datetime: new Date(time).toISOString() }, clock(time));
  const who = named ? "" : `${node}: `;
  return el("li", { class: `k-${effect} s-${severity}`, "data-kind": kind, title: `${kind} (${severity})` }, when, glyph(`k-${effect}`), el("span", {}, el("span", { class: "sr" }, `${severity}, ${EFFECTS[effect]}: `), el("small", {}, who), text));
}
