// The four charts, which share one time axis: what is pointed at in one of them is shown in all.

import { Chart } from "./chart.js";
import { byId, el, setAttribute } from "./dom.js";
import { clock, count, rate, span } from "./format.js";

const RANGES = [["1 min", 60_000], ["5 min", 300_000], ["30 min", 1_800_000]];
const MOST_BY_ITSELF = 1; // The longest range that is taken as the samples become more, until somebody chooses one.
const NEAR_PX = 7; // How near to a mark the pointer has to be to be told of it.

const SPECS = [
  {
    title: "Throughput",
    filled: true,
    top: 10,
    format: (value) => (value === null ? "–" : count(value)),
    lines: [{ field: "rows_per_s", name: "rows/s in", kind: "a" }],
    more: [{ field: "units_per_s", name: "result units/s", format: rate }],
  },
  {
    title: "Latency of results",
    top: 100,
    format: span,
    lines: [{ field: "latency_p50_ms", name: "p50", kind: "a" }, { field: "latency_p99_ms", name: "p99", kind: "b" }],
  },
  {
    title: "Output gap",
    filled: true,
    top: 1000,
    format: span,
    lines: [{ field: "gap_ms", name: "since the last result", kind: "a" }],
  },
  {
    title: "Lag",
    top: 1000,
    format: span,
    lines: [{ field: "lag_ms", name: "fastest replica", kind: "a" }, { field: "slowest_lag_ms", name: "slowest", kind: "b" }],
  },
];

export class Charts {
  constructor(samples) {
    this.samples = samples;
    this.marks = [];
    this.now = 0;
    this.hovered = null;
    this.isChosen = false;
    this.charts = SPECS.map((spec) => this.make(spec));
    this.makeRanges();
  }

  setMarks(marks) {
    this.marks = marks;
  }

  show(now) {
    this.now = now;
    const known = this.samples.length ? now - this.samples.time(0) : 0;
    const fitting = RANGES.findIndex(([, length]) => known <= length);
    if (!this.isChosen) this.choose(fitting < 0 ? MOST_BY_ITSELF : Math.min(fitting, MOST_BY_ITSELF));
    this.draw();
  }

  choose(i) {
    this.range = RANGES[i][1];
    this.buttons.forEach((button, place) => {
      setAttribute(button, "aria-checked", String(place === i));
      setAttribute(button, "tabindex", place === i ? 0 : -1);
    });
  }

  draw() {
    if (!this.now) return;
    const place = this.hovered === null ? null : this.samples.nearest(this.hovered);
    for (const chart of this.charts) chart.draw(this.samples, this.marks, this.now - this.range, this.now, place);
    this.tell(place);
  }

  /** Say in words what is at the time that is pointed at. */
  tell(place) {
    const readout = byId("readout");
    if (place === null) {
      if (readout.firstChild) readout.replaceChildren();
      return;
    }
    const perPixel = this.range / Math.max(1, this.charts[0].size.width - 50);
    const near = this.marks.filter((mark) => Math.abs(mark.time_ms - this.hovered) <= NEAR_PX * perPixel);
    const text = near.flatMap((mark) => mark.texts).join("; ");
    readout.replaceChildren(el("b", {}, clock(near[0]?.time_ms ?? this.samples.time(place))), text ? ` ${text}` : "");
    setAttribute(readout, "title", text || null);
  }

  make(spec) {
    const chart = new Chart(byId("charts"), spec);
    chart.onResize = () => this.draw();
    chart.svg.addEventListener("pointermove", (event) => this.hover(chart.timeAt(event.clientX)));
    chart.svg.addEventListener("pointerleave", () => this.hover(null));
    chart.svg.addEventListener("blur", () => this.hover(null));
    chart.svg.addEventListener("keydown", (event) => this.step(event));
    return chart;
  }

  hover(time) {
    this.hovered = time;
    this.draw();
  }

  /** Arrow keys go from sample to sample, with Shift from mark to mark. */
  step(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape" && this.hovered !== null) this.hover(null);
    if (!direction || !this.samples.length) return;
    event.preventDefault();
    const from = this.hovered ?? this.now;
    if (event.shiftKey) {
      const aside = this.marks.map((mark) => mark.time_ms).filter((time) => (time - from) * direction > 0 && time >= this.now - this.range);
      if (aside.length) this.hover(direction > 0 ? Math.min(...aside) : Math.max(...aside));
      return;
    }
    const place = Math.min(this.samples.length - 1, Math.max(0, this.samples.nearest(from) + (this.hovered === null ? 0 : direction)));
    this.hover(this.samples.time(place));
  }

  makeRanges() {
    const host = byId("ranges");
    const pick = (i) => {
      this.isChosen = true;
      this.choose(i);
      this.draw();
    };
    this.buttons = RANGES.map(([name], i) => el("button", { type: "button", role: "radio", onclick: () => pick(i) }, name));
    host.addEventListener("keydown", (event) => {
      const direction = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!direction) return;
      event.preventDefault();
      const next = (this.buttons.indexOf(document.activeElement) + direction + RANGES.length) % RANGES.length;
      pick(next);
      this.buttons[next].focus();
    });
    host.append(...this.buttons);
    this.choose(0);
  }
}
