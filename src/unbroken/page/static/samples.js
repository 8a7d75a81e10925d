// The samples that the charts are drawn from, as columns of numbers, no more than the server keeps either.

const MOST = 1800;

export class Samples {
  constructor() {
    this.columns = {};
  }

  get length() {
    return this.columns.time_ms?.length ?? 0;
  }

  /** Take in what came with an update: all there is, or what follows what is here. */
  add(columns, isWhole) {
    for (const [name, values] of Object.entries(columns)) {
      const kept = isWhole ? values : [...(this.columns[name] ?? []), ...values];
      this.columns[name] = kept.length > MOST ? kept.slice(kept.length - MOST) : kept;
    }
  }

  time(place) {
    return this.columns.time_ms[place];
  }

  value(field, place) {
    return this.columns[field]?.[place] ?? null;
  }

  latest(field) {
    return this.length ? this.value(field, this.length - 1) : null;
  }

  /** The first sample at or after a time. */
  firstAfter(time) {
    const times = this.columns.time_ms ?? [];
    let low = 0;
    let high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The sample nearest to a time; null if there is none. */
  nearest(time) {
    if (!this.length) return null;
    const after = Math.min(this.firstAfter(time), this.length - 1);
    if (after > 0 && time - this.time(after - 1) < this.time(after) - time) return after - 1;
    return after;
  }
}
