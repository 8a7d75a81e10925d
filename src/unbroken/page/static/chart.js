// One chart: lines over time with marks for what happened, drawn as SVG in the size it has on the screen.

import { el, keyed, setAttribute, setText, svg } from "./dom.js";
import { clock } from "./format.js";

const LEFT = 44;
const RIGHT = 6;
const TOP = 9;
const BOTTOM = 16;

/**
 * A specification has a `title`, `lines` (each with the `field` of the samples, a `name` and a class `a` or `b`),
 * `format` for values and the least `top` of the scale. The first line may have its area filled.
 */
export class Chart {
  constructor(host, spec) {
    this.spec = spec;
    this.values = el("div", { class: "values" });
    this.svg = svg("svg", { role: "img", tabindex: "0" });
    this.grid = svg("g");
    this.marks = svg("g");
    this.area = svg("path", { class: "area" });
    this.paths = spec.lines.map((line) => svg("path", { class: line.kind }));
    this.cross = svg("line", { class: "cross" });
    this.dots = spec.lines.map((line) => svg("circle", { class: `dot ${line.kind}`, r: 3.2 }));
    this.svg.append(this.grid, this.area, this.marks, ...this.paths, this.cross, ...this.dots);
    host.append(el("section", { class: "chart", "aria-label": spec.title }, el("h3", {}, spec.title), this.values, this.svg));
    this.size = { width: 300, height: 118 };
    new ResizeObserver(([entry]) => {
      this.size = { width: entry.contentRect.width, height: entry.contentRect.height };
      this.onResize?.();
    }).observe(this.svg);
  }

  /** The time at a place of the screen. */
  timeAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    const share = (clientX - box.left - LEFT) / Math.max(1, box.width - LEFT - RIGHT);
    return this.from + Math.min(1, Math.max(0, share)) * (this.to - this.from);
  }

  draw(samples, marks, from, to, hovered) {
    this.from = from;
    this.to = to;
    const first = Math.max(0, samples.firstAfter(from) - 1);
    const top = this.topOf(samples, first);
    const x = (time) => LEFT + ((time - from) / (to - from)) * (this.size.width - LEFT - RIGHT);
    const y = (value) => this.size.height - BOTTOM - (value / top) * (this.size.height - TOP - BOTTOM);
    this.drawGrid(top, x, y);
    this.drawMarks(marks, x);
    this.spec.lines.forEach((line, i) => setAttribute(this.paths[i], "d", pathOf(samples, line.field, first, from, x, y)));
    if (this.spec.filled) setAttribute(this.area, "d", areaOf(samples, this.spec.lines[0].field, first, from, x, y));
    this.drawCross(samples, hovered, x, y);
    this.showValues(samples, hovered);
  }

  topOf(samples, first) {
    let most = 0;
    for (const { field } of this.spec.lines) {
      for (let i = first; i < samples.length; i += 1) most = Math.max(most, samples.value(field, i) ?? 0);
    }
    return niceTop(Math.max(most, this.spec.top));
  }

  drawGrid(top, x, y) {
    const rows = [0, top / 2, top].map((value) => ({ key: `y ${value}`, y: y(value), text: this.spec.format(value) }));
    const columns = ticksOf(this.from, this.to, this.size.width).map((time) => ({ key: `x ${time}`, x: x(time), text: clock(time) }));
    keyed(this.grid, [...rows, ...columns], (tick) => tick.key, makeTick, (node, tick) => this.updateTick(node, tick));
  }

  updateTick(node, tick) {
    const [line, text] = node.children;
    const right = this.size.width - RIGHT;
    setText(text, tick.text);
    if (tick.x === undefined) {
      place(line, { x1: LEFT, x2: right, y1: tick.y, y2: tick.y });
      place(text, { x: LEFT - 6, y: tick.y + 3.5, "text-anchor": "end" });
    } else {
      place(line, { x1: tick.x, x2: tick.x, y1: TOP, y2: this.size.height - BOTTOM });
      place(text, { x: tick.x, y: this.size.height - 4, "text-anchor": "middle" });
    }
  }

  drawMarks(marks, x) {
    const seen = marks.filter((mark) => mark.time_ms >= this.from && mark.time_ms <= this.to);
    keyed(this.marks, seen, (mark) => `${mark.effect} ${mark.time_ms}`, makeMark, (node, mark) => {
      const at = x(mark.time_ms);
      const [line, head] = node.children;
      place(line, { x1: at, x2: at, y1: TOP - 1, y2: this.size.height - BOTTOM });
      setAttribute(head, "transform", `translate(${Math.round(at * 10) / 10} ${TOP - 4})`);
    });
  }

  drawCross(samples, hovered, x, y) {
    const shown = hovered !== null && samples.time(hovered) >= this.from;
    setAttribute(this.cross, "visibility", shown ? null : "hidden");
    if (shown) {
      const at = x(samples.time(hovered));
      place(this.cross, { x1: at, x2: at, y1: TOP, y2: this.size.height - BOTTOM });
    }
    this.spec.lines.forEach(({ field }, i) => {
      const value = shown ? samples.value(field, hovered) : null;
      setAttribute(this.dots[i], "visibility", value === null ? "hidden" : null);
      if (value !== null) place(this.dots[i], { cx: x(samples.time(hovered)), cy: y(value) });
    });
  }

  showValues(samples, hovered) {
    const at = hovered ?? samples.length - 1;
    const read = (field) => (samples.length ? samples.value(field, at) : null);
    const shown = [...this.spec.lines, ...(this.spec.more ?? [])];
    keyed(this.values, shown, (line) => line.field, makeValue, (node, line) => {
      setText(node.refs.value, (line.format ?? this.spec.format)(read(line.field)));
      setText(node.refs.name, line.name);
    });
    const spoken = shown.map((line) => `${line.name} ${(line.format ?? this.spec.format)(read(line.field))}`).join(", ");
    setAttribute(this.svg, "aria-label", `${this.spec.title}: ${spoken}. Left and right arrow keys go back and forth in time.`);
  }
}

function place(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    setAttribute(node, name, typeof value === "number" ? Math.round(value * 10) / 10 : value);
  }
}

function makeTick() {
  const node = svg("g");
  node.append(svg("line", { class: "grid" }), svg("text", { class: "axis" }));
  return node;
}

const HEADS = { loss: "M-3 -3 3 -3 0 3z", doubt: "M0 -3 3 2.4 -3 2.4z", repair: "M-3 -.6 -.6 2 3 -2.6" };

function makeMark(mark) {
  const node = svg("g", { class: `mark k-${mark.effect}` });
  const head = svg("path", { d: HEADS[mark.effect] ?? HEADS.doubt });
  node.append(svg("line"), head);
  return node;
}

function makeValue(line) {
  const value = el("b");
  const name = el("span");
  const node = el("span", { class: line.kind ?? "none" }, ...(line.kind ? [el("i", { "aria-hidden": "true" })] : []), value, name);
  node.refs = { value, name };
  return node;
}

/** A line through all values that are known; where they are not, it is interrupted. */
function pathOf(samples, field, first, from, x, y) {
  let d = "";
  let isOpen = false;
  for (let i = first; i < samples.length; i += 1) {
    const value = samples.value(field, i);
    if (value === null || samples.time(i) < from) {
      isOpen = false;
      continue;
    }
    d += `${isOpen ? "L" : "M"}${x(samples.time(i)).toFixed(1)} ${y(value).toFixed(1)}`;
    isOpen = true;
  }
  return d || null;
}

function areaOf(samples, field, first, from, x, y) {
  let d = "";
  let last = null;
  for (let i = first; i <= samples.length; i += 1) {
    const value = i < samples.length && samples.time(i) >= from ? samples.value(field, i) : null;
    if (value === null) {
      if (last !== null) d += `L${x(last).toFixed(1)} ${y(0).toFixed(1)}z`;
      last = null;
      continue;
    }
    const time = samples.time(i);
    if (last === null) d += `M${x(time).toFixed(1)} ${y(0).toFixed(1)}`;
    d += `L${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
    last = time;
  }
  return d || null;
}

/** The next of 1, 2, 4, 5, 6, 8 times a power of ten, so that half of it can be read, too. */
export function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 6, 8, 10].map((step) => step * power).find((top) => top >= value * 0.999) ?? value;
}

/** Moments for the labels of the time axis, as many as there is room for. */
function ticksOf(from, to, width) {
  const most = Math.max(2, Math.floor((width - LEFT) / 84));
  const steps = [10, 15, 30, 60, 120, 300, 600, 1200].map((seconds) => seconds * 1000);
  const step = steps.find((length) => (to - from) / length <= most) ?? steps[steps.length - 1];
  const ticks = [];
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
    const share = (time - from) / (to - from);
    if (share > 0.04 && share < 0.93) ticks.push(time);
  }
  return ticks;
}
