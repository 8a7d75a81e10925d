// The lines between the boxes of the dataflow. They are drawn again when boxes move, not with every update.

import { svg } from "./dom.js";

export class Edges {
  constructor(host, canvas) {
    this.host = host;
    this.canvas = canvas;
    this.edges = [];
    this.known = "";
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(host);
    this.watched = new Set();
  }

  show(edges, parts) {
    const shape = JSON.stringify([edges, parts.map((part) => [part.name, part.column, part.row])]);
    if (shape === this.known) return;
    this.known = shape;
    this.edges = edges;
    for (const box of this.watched) this.watch.unobserve(box);
    this.watched = new Set(this.host.querySelectorAll(".part, .lane"));
    for (const box of this.watched) this.watch.observe(box);
    this.draw();
  }

  draw() {
    const origin = this.host.getBoundingClientRect();
    const isUpright = getComputedStyle(this.host).flexDirection === "column";
    const boxOf = (node) => node?.getBoundingClientRect();
    const paths = this.edges.map(([from, to, source]) => {
      const part = this.host.querySelector(`.part[data-part="${CSS.escape(from)}"]`);
      const start = boxOf((!isUpright && part?.querySelector(`[data-source="${CSS.escape(source)}"]`)) || part);
      const end = boxOf(this.host.querySelector(`.part[data-part="${CSS.escape(to)}"]`));
      if (!start || !end) return "";
      if (isUpright) return downwards(start, end, origin);
      const lanes = [...this.host.querySelectorAll(`[data-lane="${CSS.escape(`${from} ${to}`)}"]`)].map(boxOf);
      const right = boxOf(part).right;
      return rightwards([{ ...middleOf(start), right }, ...lanes.map(middleOf), middleOf(end)], origin);
    });
    this.canvas.replaceChildren(...paths.filter(Boolean).map((d) => svg("path", { d })));
  }
}

const round = (value) => Math.round(value * 10) / 10;

const middleOf = (box) => ({ left: box.left, right: box.right, y: box.top + box.height / 2 });

/** From stop to stop: straight through each, and bent between them. */
function rightwards(stops, origin) {
  let path = "";
  stops.slice(0, -1).forEach((stop, i) => {
    const next = stops[i + 1];
    const [x1, y1] = [stop.right - origin.left, stop.y - origin.top];
    const [x2, y2] = [next.left - origin.left, next.y - origin.top];
    const bend = Math.max(10, (x2 - x1) / 2);
    path += `${i ? "L" : "M"}${round(x1)} ${round(y1)}C${round(x1 + bend)} ${round(y1)} ${round(x2 - bend)} ${round(y2)} ${round(x2)} ${round(y2)}`;
  });
  return path;
}

function downwards(start, end, origin) {
  const x1 = start.left + start.width / 2 - origin.left;
  const y1 = start.bottom - origin.top;
  const x2 = end.left + end.width / 2 - origin.left;
  const y2 = end.top - origin.top;
  const bend = Math.max(8, (y2 - y1) / 2);
  return `M${round(x1)} ${round(y1)}C${round(x1)} ${round(y1 + bend)} ${round(x2)} ${round(y2 - bend)} ${round(x2)} ${round(y2)}`;
}
