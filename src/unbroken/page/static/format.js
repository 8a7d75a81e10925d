// Numbers, times and sizes as a person reads them. What is not known is a dash.

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clockTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** 950, 12,345, 1.23 M */
export function count(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(Math.abs(value) >= 1e8 ? 0 : Math.abs(value) >= 1e7 ? 1 : 2)} M`;
  return whole.format(value);
}

/** A rate: two digits below ten, one below a hundred. */
export function rate(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value > 0 && value < 10) return value.toFixed(1);
  return count(value);
}

/** A span of time in milliseconds: 350 ms, 2.4 s, 3 min 5 s, 2 h 10 min. */
export function span(ms) {
  if (!isKnown(ms)) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

/** Whole seconds, for something that is counted while it is read. */
export function elapsed(ms) {
  if (!isKnown(ms)) return UNKNOWN;
  return ms < 60_000 ? `${Math.max(0, Math.floor(ms / 1000))} s` : span(ms);
}

/** 12 kB, 3.4 MB */
export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  const names = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let place = 0;
  while (size >= 1000 && place < names.length - 1) {
    size /= 1000;
    place += 1;
  }
  return `${place && size < 10 ? size.toFixed(1) : Math.round(size)} ${names[place]}`;
}

/** The time of day of a moment in milliseconds. */
export function clock(ms) {
  return isKnown(ms) ? clockTime.format(new Date(ms)) : UNKNOWN;
}

/** The names of states as the page says them. */
export const STATES = {
  active: "active",
  standby: "standing by",
  joining: "catching up",
  waiting: "waiting",
  tentative: "tentative",
  suspected: "suspected",
  dead: "dead",
  missing: "missing",
};

export const NODE_STATES = { ...STATES, active: "running", joining: "starting", suspected: "suspected", dead: "dead" };
