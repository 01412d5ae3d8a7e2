// The raw events, in a list that a filter thins out and in which runs of chunks are folded.

import { byId, make } from "./dom.js";
import { Filter } from "./filter.js";
import { Lines } from "./lines.js";
import { Rows } from "./rows.js";
import { timeElement } from "./times.js";
import { ToEnd } from "./toend.js";
import { marked } from "./visible.js";
import { chunkText, kindOf, summary } from "./words.js";

const ROW_PX = 32;
const DAY_PX = 32;
const CHUNK = "model_chunk_recorded";
const RUN_SUMMARY_N = 200;

export class Timeline {
  #session;
  #lines;
  #rows;
  #toEnd;
  #filter;
  #list = byId("timeline");
  /** The line that the keyboard is at, or null: its `sequence`, and whether it `isRun`. */
  #current = null;
  /** The sequence of the event whose payload is shown, or null. */
  #opened = null;
  #choose;
  #leave;

  /**
   * `choose(sequence, isStep)` is told which event a person chose, by stepping on from another
   * one or not; `leave()` that they want its payload away.
   */
  constructor(session, { choose, leave }) {
    this.#session = session;
    this.#choose = choose;
    this.#leave = leave;
    this.#lines = new Lines(session);
    this.#rows = new Rows(this.#list, byId("timeline-rows"), {
      render: (index) => this.#row(index),
      estimate: (index) => ROW_PX + (this.#lines.beginsDay(index) ? DAY_PX : 0),
      onPlace: () => this.#placed(),
    });
    this.#toEnd = new ToEnd(this.#rows, {
      name: "the timeline",
      label: "events",
      last: () => session.lastSequence,
      countAfter: (sequence) => this.#lines.countAfter(sequence),
    });
    byId("timeline-frame").append(this.#toEnd.button);
    this.#filter = new Filter(session, () => this.#thinOut());
    this.#list.addEventListener("keydown", (event) => this.#key(event));
    session.onChange((change) => this.#take(change));
  }

  /**
   * Go to an event, whose payload is shown: its kind is let through and its run opened, if need
   * be. `place` is where it comes into sight if it is not.
   */
  show(sequence, place) {
    this.#opened = sequence;
    this.#filter.allow(this.#event(sequence).type);
    const index = this.#lines.indexOf(sequence);
    if (this.#lines.isRun(index)) this.#toggle(index);
    this.#rows.show(this.#lines.indexOf(sequence), place);
    this.#moveTo({ sequence, isRun: false });
  }

  /** Forget that an event's payload was shown: it is no longer. */
  closed() {
    this.#opened = null;
    this.#markAll();
  }

  /** Give the list the keyboard. */
  focus() {
    this.#rows.focus();
  }

  #event(sequence) {
    return this.#session.events[sequence - 1];
  }

  // --- what there is ---------------------------------------------------------------------------

  #take({ isNew, eventsN }) {
    if (isNew) {
      this.#current = null;
      this.#lines.forget();
      this.#rows.replace(0);
    }
    for (const event of this.#session.events.slice(eventsN)) {
      const changed = this.#lines.add(event);
      if (changed !== null) this.#rows.refresh(changed);
    }
    this.#showCounts();
    this.#rows.grow(this.#lines.length);
    this.#toEnd.update(); // also while the list is not shown
  }

  #showCounts() {
    this.#filter.update();
    const [shownN, allN] = [this.#lines.eventsN, this.#session.lastSequence];
    const all = allN === 1 ? "1 event" : `${allN.toLocaleString()} events`;
    byId("timeline-count").textContent =
      shownN === allN ? all : `${shownN.toLocaleString()} of ${all}`;
    byId("timeline-empty").hidden = shownN > 0;
    byId("timeline-empty").textContent =
      allN === 0 ? "No event yet." : "No event of the kinds chosen.";
  }

  #thinOut() {
    const top = this.#rows.isAtEnd ? undefined : this.#lines.at(this.#rows.firstIndex);
    this.#lines.choose((type) => this.#filter.has(type), !this.#filter.hasOnly(CHUNK));
    this.#showCounts();
    const place = top === undefined ? null : this.#lines.indexOf(top.sequence, top.last > top.sequence);
    this.#rows.replace(this.#lines.length, place);
  }

  /** Open a run of chunks or close it; its own line stays where it is. */
  #toggle(index) {
    const changedN = this.#lines.toggle(index);
    this.#rows.refresh(index);
    this.#rows.refresh(index + 1 + Math.max(0, -changedN)); // its day may begin elsewhere now
    this.#rows.splice(index + 1, Math.max(0, -changedN), Math.max(0, changedN));
    if (changedN < 0 && this.#rows.seesEnd) this.#rows.goToEnd();
    this.#markAll();
  }

  // --- rows ------------------------------------------------------------------------------------

  #row(index) {
    const line = this.#lines.at(index);
    const event = this.#event(line.sequence);
    const isRun = this.#lines.isRun(index);
    const { name, tone } = isRun ? this.#runKind(line) : kindOf(event);
    const said = isRun ? this.#runSummary(line) : summary(event);
    const row = make(
      "div",
      {
        class: ["event", event.type, tone, line.isWithin ? "within" : ""].join(" ").trim(),
        id: `${isRun ? "run" : "row"}-${line.sequence}`,
        role: "treeitem",
        "aria-level": line.isWithin ? 2 : 1,
        "aria-expanded": isRun ? String(line.isOpen) : null,
        on: { click: () => this.#clicked({ sequence: line.sequence, isRun }) },
      },
      this.#lines.beginsDay(index)
        ? make("p", { class: "day" }, timeElement(event.recorded_at, "day"))
        : null,
      make("span", { class: "sequence", text: line.sequence.toLocaleString() }),
      make("span", { class: "kind", title: event.type, text: name }),
      make("span", { class: "said", dir: "auto" }, ...marked(said).nodes),
      timeElement(event.recorded_at, "exact"),
    );
    this.#mark(row, line, isRun);
    return row;
  }

  #runKind({ sequence, last }) {
    return { name: `${(last - sequence + 1).toLocaleString()} chunks`, tone: "run" };
  }

  #runSummary({ sequence, last }) {
    const range = `${sequence.toLocaleString()}–${last.toLocaleString()}`;
    let said = "";
    for (let at = sequence; at <= last && said.length < RUN_SUMMARY_N; at += 1) {
      said += chunkText(this.#event(at).payload.chunk);
    }
    return said === "" ? range : `${range} · ${said.replace(/\s+/gu, " ")}`;
  }

  #mark(row, { sequence, last, isOpen }, isRun) {
    // A closed run stands for what is in it.
    const isOpened = isRun
      ? !isOpen && sequence <= this.#opened && this.#opened <= last
      : sequence === this.#opened;
    row.setAttribute("aria-selected", String(this.#opened !== null && isOpened));
    row.classList.toggle("current", row.id === this.#currentId);
  }

  get #currentId() {
    const index = this.#currentIndex;
    if (index === null) return null;
    return `${this.#lines.isRun(index) ? "run" : "row"}-${this.#lines.at(index).sequence}`;
  }

  /** Where the keyboard is now, or would be if it was not filtered out; null if nowhere. */
  get #currentIndex() {
    if (this.#current === null) return null;
    const index = this.#lines.indexOf(this.#current.sequence, this.#current.isRun);
    return index < this.#lines.length ? index : null;
  }

  #markAll() {
    for (const [index, row] of this.#rows.drawn) {
      this.#mark(row, this.#lines.at(index), this.#lines.isRun(index));
    }
    this.#placed();
  }

  #placed() {
    // Only a row that is in the document can be pointed to.
    const id = this.#currentId;
    if (id === null || byId(id) === null) this.#list.removeAttribute("aria-activedescendant");
    else this.#list.setAttribute("aria-activedescendant", id);
    this.#toEnd?.update();
  }

  // --- what a person does ----------------------------------------------------------------------

  #clicked(line) {
    this.#moveTo(line);
    this.#act();
  }

  /** Do what Enter and a click do at the line where the keyboard is. */
  #act(isStep = false) {
    const index = this.#currentIndex;
    if (!this.#lines.isRun(index)) this.#choose(this.#lines.at(index).sequence, isStep);
    else if (!isStep) this.#toggle(index);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isAt = this.#currentIndex !== null;
    if ((event.key === "Enter" || event.key === " ") && isAt) this.#act();
    else if (event.key === "Escape" && this.#opened !== null) this.#leave();
    else if (event.key === "ArrowRight" && isAt) this.#goIn();
    else if (event.key === "ArrowLeft" && isAt) this.#goOut();
    else if (!this.#step(event.key)) return;
    event.preventDefault();
  }

  #goIn() {
    const index = this.#currentIndex;
    if (!this.#lines.isRun(index)) return;
    if (this.#lines.at(index).isOpen) this.#goTo(index + 1);
    else this.#toggle(index);
  }

  #goOut() {
    const index = this.#currentIndex;
    const run = this.#lines.runOf(index);
    if (run !== index) this.#goTo(run);
    else if (this.#lines.at(index).isOpen) this.#toggle(index);
  }

  #step(key) {
    const last = this.#lines.length - 1;
    const at = this.#currentIndex;
    const first = this.#rows.firstIndex;
    const targets = {
      ArrowDown: at === null ? first : at + 1,
      ArrowUp: at === null ? first : at - 1,
      PageDown: (at ?? first) + this.#rows.pageN,
      PageUp: (at ?? first) - this.#rows.pageN,
      Home: 0,
      End: last,
    };
    if (!Object.hasOwn(targets, key) || last < 0) return false;
    this.#goTo(Math.max(0, Math.min(targets[key], last)));
    return true;
  }

  #goTo(index) {
    if (index === this.#lines.length - 1) this.#rows.goToEnd();
    else this.#rows.show(index, "nearest");
    this.#moveTo({ sequence: this.#lines.at(index).sequence, isRun: this.#lines.isRun(index) });
    if (this.#opened !== null) this.#act(true);
  }

  #moveTo(line) {
    this.#current = line;
    this.#markAll();
  }
}
