// Which lines the timeline has: one for each event that the filter lets through, but a single one
// for a run of chunks, with theirs below it when it is opened.

import { isSameDay } from "./times.js";

const CHUNK = "model_chunk_recorded";

/**
 * A line has the `sequence` of its event. That of a run has the sequence of the first one, and
 * `last`; the lines of its events, if it `isOpen`, follow it, with `isWithin`.
 *
 * A run is at least two chunks that follow one another in the session. Where chunks alone are let
 * through there are no runs: everything would be one.
 */
export class Lines {
  #session;
  #isShown = () => true;
  #hasRuns = true;
  #lines = [];
  #sequences = [];
  #opened = new Set();
  /** The index of the line that the next chunk may join. */
  #joined = null;

  constructor(session) {
    this.#session = session;
  }

  get length() {
    return this.#lines.length;
  }

  /** How many events are let through. */
  get eventsN() {
    return this.#sequences.length;
  }

  at(index) {
    return this.#lines[index];
  }

  /** Tell whether a line stands for several events. */
  isRun(index) {
    const { sequence, last } = this.#lines[index];
    return last > sequence;
  }

  /** Tell whether the line before is of another day. */
  beginsDay(index) {
    if (index === 0) return true;
    const [one, other] = [index - 1, index].map((at) => this.#event(this.#lines[at].sequence));
    return !isSameDay(one.recorded_at, other.recorded_at);
  }

  #event(sequence) {
    return this.#session.events[sequence - 1];
  }

  /** Forget everything, also which runs were opened. */
  forget() {
    this.#opened.clear();
    this.choose(this.#isShown, this.#hasRuns);
  }

  /** Let through the events of the types of which `isShown`, with runs or without. */
  choose(isShown, hasRuns) {
    this.#isShown = isShown;
    this.#hasRuns = hasRuns;
    this.#lines = [];
    this.#sequences = [];
    this.#joined = null;
    for (const event of this.#session.events) this.add(event);
  }

  /** Take in the next event. Returns the index of a line that is another by it, or null. */
  add({ type, sequence }) {
    if (!this.#isShown(type)) return null;
    this.#sequences.push(sequence);
    const isChunk = this.#hasRuns && type === CHUNK;
    const run = this.#joined === null ? null : this.#lines[this.#joined];
    if (isChunk && run?.last === sequence - 1) {
      run.last = sequence;
      if (this.#opened.has(run.sequence)) this.#addWithin(run, sequence);
      return this.#joined;
    }
    this.#joined = isChunk ? this.#lines.length : null;
    this.#lines.push({ sequence, last: sequence, isOpen: false, isWithin: false });
    return null;
  }

  #addWithin(run, sequence) {
    if (!run.isOpen) this.#lines.push(within(run.sequence));
    run.isOpen = true;
    this.#lines.push(within(sequence));
  }

  /** Open a run, or close it; returns how many lines have come after it, or gone (negative). */
  toggle(index) {
    const run = this.#lines[index];
    const eventsN = run.last - run.sequence + 1;
    run.isOpen = !run.isOpen;
    if (run.isOpen) this.#opened.add(run.sequence);
    else this.#opened.delete(run.sequence);
    const inside = Array.from({ length: eventsN }, (_, n) => within(run.sequence + n));
    this.#lines = [
      ...this.#lines.slice(0, index + 1),
      ...(run.isOpen ? inside : []),
      ...this.#lines.slice(index + 1 + (run.isOpen ? 0 : eventsN)),
    ];
    const changedN = run.isOpen ? eventsN : -eventsN;
    if (this.#joined !== null && this.#joined > index) this.#joined += changedN;
    return changedN;
  }

  /**
   * Return the index of an event's line, or of its run's where that is closed or `isRun`; where
   * the event is not let through, that of the next one that is.
   */
  indexOf(sequence, isRun = false) {
    const after = firstAfter(this.#lines, sequence, (line) => line.sequence);
    const found = this.#lines[after - 1];
    if (found === undefined || found.last < sequence) return after;
    const hasOwnRun = isRun && found.isWithin && this.#lines[after - 2]?.sequence === sequence;
    return hasOwnRun ? after - 2 : after - 1;
  }

  /** Return the index of the run that the line at `index` is in, `index` where it is in none. */
  runOf(index) {
    let at = index;
    while (this.#lines[at].isWithin) at -= 1;
    return at;
  }

  /** Return how many events that are let through came after an event. */
  countAfter(sequence) {
    return this.#sequences.length - firstAfter(this.#sequences, sequence, (each) => each);
  }
}

function within(sequence) {
  return { sequence, last: sequence, isOpen: false, isWithin: true };
}

/** Return the index of the first item whose sequence comes after this one; they are in order. */
function firstAfter(items, sequence, sequenceOf) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sequenceOf(items[middle]) <= sequence) low = middle + 1;
    else high = middle;
  }
  return low;
}
