// The raw events, in a list that a filter thins out. Opening one shows its payload.

import { byId, make } from "./dom.js";
import { endButton, Rows } from "./rows.js";
import { KINDS, summary, timeElement } from "./words.js";

const ROW_PX = 32;

export class Timeline {
  #session;
  #rows;
  #toEnd;
  #list = byId("timeline");
  #all = make("button", { type: "button", class: "chip all", text: "None" });
  #hidden = new Set();
  /** The sequences of the events that the filter lets through. */
  #sequences = [];
  #counts = new Map();
  /** The sequence the keyboard is at, or null; and that whose payload is shown. */
  #current = null;
  #opened = null;
  #open;
  #close;

  /** `open(event)` shows an event's payload, `close()` puts it away. */
  constructor(session, { open, close }) {
    this.#session = session;
    this.#open = open;
    this.#close = close;
    this.#rows = new Rows(this.#list, byId("timeline-rows"), {
      render: (index) => this.#row(this.#sequences[index]),
      estimate: () => ROW_PX,
      onPlace: () => this.#placed(),
    });
    this.#toEnd = endButton(this.#rows, "the timeline", "events below");
    byId("timeline-frame").append(this.#toEnd.button);
    this.#makeFilter();
    this.#list.addEventListener("keydown", (event) => this.#key(event));
    session.onChange((change) => this.#take(change));
  }

  /** Go to an event and show its payload; its kind is let through if it was not. */
  show(sequence) {
    const event = this.#session.events[sequence - 1];
    if (event === undefined) return;
    if (this.#hidden.has(event.type)) {
      this.#hidden.delete(event.type);
      this.#counts.get(event.type).box.checked = true;
      this.#filter();
    }
    this.#rows.show(this.#indexOf(sequence));
    this.#moveTo(sequence);
    this.#openAt(sequence);
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

  // --- what there is ---------------------------------------------------------------------------

  #take({ isNew, eventsN }) {
    if (isNew) {
      this.#sequences = [];
      this.#current = null;
      if (this.#opened !== null) this.#close();
      this.#rows.replace(0);
    }
    const added = this.#session.events.slice(eventsN);
    for (const event of added) {
      if (!this.#hidden.has(event.type)) this.#sequences.push(event.sequence);
    }
    this.#showCounts();
    this.#rows.grow(this.#sequences.length);
  }

  #showCounts() {
    for (const [kind, { count }] of this.#counts) {
      count.textContent = this.#session.counts.get(kind).toLocaleString();
    }
    const [shownN, allN] = [this.#sequences.length, this.#session.lastSequence];
    const all = allN === 1 ? "1 event" : `${allN.toLocaleString()} events`;
    byId("timeline-count").textContent =
      shownN === allN ? all : `${shownN.toLocaleString()} of ${all}`;
    byId("timeline-empty").hidden = shownN > 0;
    byId("timeline-empty").textContent =
      allN === 0 ? "No event yet." : "No event of the kinds chosen.";
  }

  // --- the filter ------------------------------------------------------------------------------

  #makeFilter() {
    for (const [kind, name] of KINDS) {
      const box = make("input", { type: "checkbox", checked: true });
      const count = make("span", { class: "count", text: "0" });
      const label = make("label", { class: `chip ${kind}`, title: kind }, box, name, " ", count);
      box.addEventListener("change", () => {
        if (box.checked) this.#hidden.delete(kind);
        else this.#hidden.add(kind);
        this.#filter();
      });
      this.#counts.set(kind, { count, box });
      byId("kinds").append(label);
    }
    byId("kinds").append(this.#all);
    this.#all.addEventListener("click", () => {
      // All, or none when there are all: so two clicks and a third choose a single kind.
      const isAll = this.#hidden.size === 0;
      for (const [kind, { box }] of this.#counts) {
        box.checked = !isAll;
        if (isAll) this.#hidden.add(kind);
        else this.#hidden.delete(kind);
      }
      this.#filter();
    });
  }

  #filter() {
    const place = this.#rows.isAtEnd ? null : (this.#sequences[this.#rows.firstIndex] ?? null);
    this.#sequences = this.#session.events
      .filter((event) => !this.#hidden.has(event.type))
      .map((event) => event.sequence);
    this.#all.textContent = this.#hidden.size === 0 ? "None" : "All";
    this.#showCounts();
    this.#rows.replace(this.#sequences.length, place === null ? null : this.#indexOf(place));
  }

  /** Return the index of an event, or of the first one after it that is let through. */
  #indexOf(sequence) {
    let [low, high] = [0, this.#sequences.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#sequences[middle] < sequence) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // --- rows ------------------------------------------------------------------------------------

  #row(sequence) {
    const event = this.#session.events[sequence - 1];
    const row = make(
      "div",
      {
        class: `event ${event.type}`,
        id: `row-${sequence}`,
        role: "option",
        on: {
          click: () => {
            this.#moveTo(sequence);
            this.#openAt(sequence);
          },
        },
      },
      make("span", { class: "sequence", text: String(sequence) }),
      make("span", { class: "kind", title: event.type, text: KINDS.get(event.type) ?? event.type }),
      make("span", { class: "said", dir: "auto", text: summary(event) }),
      timeElement(event.recorded_at, { exact: true }),
    );
    this.#mark(row, sequence);
    return row;
  }

  #mark(row, sequence) {
    row.setAttribute("aria-selected", String(sequence === this.#opened));
    row.classList.toggle("current", sequence === this.#current);
  }

  #markAll() {
    for (const row of this.#rows.list.children) this.#mark(row, Number(row.id.slice(4)));
    this.#placed();
  }

  #placed() {
    // Only a row that is in the document can be pointed to.
    const row = this.#current === null ? null : document.getElementById(`row-${this.#current}`);
    if (row === null) this.#list.removeAttribute("aria-activedescendant");
    else this.#list.setAttribute("aria-activedescendant", row.id);
    this.#toEnd?.update();
  }

  // --- the keyboard ----------------------------------------------------------------------------

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isAt = this.#current !== null;
    if ((event.key === "Enter" || event.key === " ") && isAt) this.#openAt(this.#current);
    else if (event.key === "Escape" && this.#opened !== null) this.#close();
    else if (!this.#step(event.key)) return;
    event.preventDefault();
  }

  #step(key) {
    const last = this.#sequences.length - 1;
    const at = this.#current === null ? null : this.#indexOf(this.#current);
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
    const index = Math.max(0, Math.min(targets[key], last));
    if (index === last) this.#rows.goToEnd();
    else this.#rows.show(index, "nearest");
    this.#moveTo(this.#sequences[index]);
    if (this.#opened !== null) this.#openAt(this.#current);
    return true;
  }

  #moveTo(sequence) {
    this.#current = sequence;
    this.#markAll();
  }

  #openAt(sequence) {
    this.#opened = sequence;
    this.#markAll();
    this.#open(this.#session.events[sequence - 1]);
    // The payload takes room from the list.
    this.#rows.show(this.#indexOf(sequence), "nearest");
  }
}
