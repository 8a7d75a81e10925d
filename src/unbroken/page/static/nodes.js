// The nodes in a table: how they are, what they have to do, and what can be done to them.

import { byId, el, glyph, keyed, setAttribute, setClass, setGlyph, setHidden, setText } from "./dom.js";
import { NODE_STATES } from "./format.js";

export class Nodes {
  constructor(actions) {
    this.actions = actions;
  }

  show({ view, page }) {
    const offered = page?.actions ?? [];
    setHidden(byId("actions-head"), !offered.length);
    keyed(byId("nodes"), view.nodes, (node) => node.node, (node) => this.make(node), (row, node) => this.update(row, node, offered));
  }

  make(node) {
    const refs = {
      sub: el("span", { class: "sub" }),
      shape: glyph("g-active"),
      word: el("span"),
      why: el("span", { class: "why" }),
      replicas: el("td", { class: "num" }),
      tasks: el("td", { class: "wide tasks" }),
      buttons: el("td", { class: "buttons" }),
    };
    refs.state = el("span", { class: "state" }, refs.shape, refs.word);
    const row = el("tr", { "data-node": node.node });
    row.append(el("td", {}, node.node, refs.sub), el("td", {}, refs.state, " ", refs.why), refs.replicas, refs.tasks, refs.buttons);
    row.refs = refs;
    return row;
  }

  update({ refs }, node, offered) {
    setClass(refs.state, `state s-${node.look}`);
    setGlyph(refs.shape, `g-${node.look}`);
    setText(refs.word, wordOf(node));
    setText(refs.why, node.look === "active" ? "" : node.why);
    setAttribute(refs.why, "title", node.why || null);
    setText(refs.replicas, String(node.replicas));
    const tasks = tasksOf(node);
    setText(refs.tasks, tasks);
    setText(refs.sub, tasks);
    setHidden(refs.buttons, !offered.length);
    keyed(refs.buttons, this.actions.forNode(node, offered), (action) => action.name, (action) => this.actions.button(action), () => {});
  }
}

function wordOf(node) {
  if (node.frozen) return "frozen";
  if (node.draining) return node.look === "active" ? "being drained" : NODE_STATES[node.look];
  if (node.look === "suspected" && node.state === "silent") return "silent";
  return NODE_STATES[node.look];
}

function tasksOf(node) {
  return [...node.roles, node.metrics ? `metrics ${node.metrics}` : "", node.push ? `push ${node.push}` : ""].filter(Boolean).join(", ");
}
