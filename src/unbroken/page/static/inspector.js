// One replica in all that is known of it, with what can be done to it. Escape closes it and gives the focus back.

import { byId, el, glyph, keyed, setAttribute, setClass, setGlyph, setHidden, setText } from "./dom.js";
import { STATES, bytes, count, span } from "./format.js";
import { PARTS, bar, drawBar } from "./replicas.js";

export class Inspector {
  constructor(actions) {
    this.actions = actions;
    this.host = byId("inspector");
    this.chosen = null;
    this.opener = null;
    this.last = null;
    this.onChoice = () => {};
    this.build();
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.chosen && !document.querySelector("dialog[open]")) this.close();
    });
  }

  open(replica, opener) {
    this.chosen = replica;
    this.opener = opener;
    setHidden(this.host, false);
    this.onChoice(replica);
    if (this.last) this.show(this.last);
    this.host.focus({ preventScroll: true });
  }

  close() {
    this.chosen = null;
    setHidden(this.host, true);
    this.onChoice(null);
    if (this.opener?.isConnected) this.opener.focus({ preventScroll: true });
  }

  show(update) {
    this.last = update;
    if (!this.chosen) return;
    const replica = update.view.replicas.find((one) => one.replica === this.chosen);
    if (!replica) {
      setClass(this.state, "state s-missing");
      setGlyph(this.shape, "g-missing");
      setText(this.word, "gone");
      setText(this.why, "It is not part of the flow any more; another one takes its place.");
      keyed(this.buttons, [], (one) => one, () => null, () => {});
      return;
    }
    const node = update.view.nodes.find((one) => one.node === replica.node);
    setText(this.title, replica.replica);
    setClass(this.state, `state s-${replica.look}`);
    setGlyph(this.shape, `g-${replica.look}`);
    setText(this.word, STATES[replica.look]);
    setText(this.why, replica.why ?? "");
    keyed(this.list, factsOf(replica), ([name]) => name, makeFact, (pair, [name, value]) => {
      setText(pair.firstChild, name);
      setText(pair.lastChild, value);
    });
    drawBar(this.bar, replica.split ?? {}, Math.max(1, replica.batch_ms ?? 0));
    setHidden(this.bar, !replica.split);
    const parts = PARTS.filter((part) => replica.split?.[part]);
    keyed(this.parts, parts, (part) => part, (part) => el("li", { class: `p-${part}` }), (item, part) => setText(item, `${part} ${span(replica.split[part])}`));
    this.showPeers(update.view, replica);
    const offered = update.page?.actions ?? [];
    const possible = [...this.actions.forReplica(replica, offered), ...(node ? this.actions.forNode(node, offered) : [])];
    keyed(this.buttons, possible, (action) => action.name, (action) => this.actions.button(action), () => {});
  }

  showPeers(view, replica) {
    const peers = view.replicas.filter((one) => one.shard === replica.shard && one.replica !== replica.replica);
    setHidden(this.peers, !peers.length);
    keyed(this.peers, peers, (one) => one.replica, (one) => {
      const item = el("li", {}, el("span", {}, `${one.replica} on ${one.node}`), el("span", { class: "state" }, glyph("g-active"), el("span")));
      return item;
    }, (item, one) => {
      const state = item.lastChild;
      setClass(state, `state s-${one.look}`);
      setGlyph(state.firstChild, `g-${one.look}`);
      setText(state.lastChild, STATES[one.look]);
    });
  }

  build() {
    this.title = el("h2", { id: "inspector-title" });
    this.shape = glyph("g-active");
    this.word = el("span");
    this.state = el("p", { class: "state" }, this.shape, this.word);
    this.why = el("p", { class: "why" });
    this.list = el("dl");
    this.bar = bar();
    this.parts = el("ul", { class: "parts", "aria-label": "What the last micro-batch was spent on" });
    this.peers = el("ul", { class: "peers", "aria-label": "Other replicas of the shard" });
    this.buttons = el("div", { class: "row" });
    const close = el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.close() }, "✕");
    this.host.append(el("header", {}, el("div", {}, this.title, this.state), close), this.why, this.list, this.bar, this.parts, this.peers, this.buttons);
    setAttribute(this.host, "role", "region");
  }
}

function factsOf(replica) {
  const facts = [
    ["node", replica.node],
    ["units produced", count(replica.units)],
    ["behind", replica.behind === undefined ? "–" : `${count(replica.behind)} units`],
    ["lag", span(replica.lag_ms)],
  ];
  if (replica.gap_ms !== undefined) facts.push(["since its last result", span(replica.gap_ms)]);
  if (replica.latency_ms !== undefined) facts.push(["latency of its last result", span(replica.latency_ms)]);
  if (replica.rows !== undefined) facts.push(["rows of the last micro-batch", count(replica.rows)]);
  facts.push(["size of its state", bytes(replica.state_bytes)], ["last micro-batch", span(replica.batch_ms)]);
  return facts;
}

function makeFact() {
  return el("div", {}, el("dt"), el("dd"));
}
