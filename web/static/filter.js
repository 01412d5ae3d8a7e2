// Which kinds of events are let through, each with how many of it there are.

import { byId, make } from "./dom.js";
import { KINDS } from "./words.js";

export class Filter {
  #session;
  #changed;
  #chips = new Map();
  #all = make("button", { type: "button", class: "all" });

  /** `changed()` is told when other kinds are let through than before. */
  constructor(session, changed) {
    this.#session = session;
    this.#changed = changed;
    for (const [kind, name] of KINDS) this.#addChip(kind, name);
    this.#all.addEventListener("click", () => {
      const isAll = this.#isAll;
      for (const { box } of this.#chips.values()) box.checked = !isAll;
      this.#tell();
    });
    byId("kinds").append(this.#all);
    this.#name();
  }

  /** Tell whether a kind is let through. */
  has(kind) {
    return this.#chips.get(kind)?.box.checked ?? true;
  }

  /** Tell whether this kind is let through, and no other. */
  hasOnly(kind) {
    return [...this.#chips.keys()].every((each) => this.has(each) === (each === kind));
  }

  /** Let a kind through. */
  allow(kind) {
    if (this.has(kind)) return;
    this.#chips.get(kind).box.checked = true;
    this.#tell();
  }

  /** Show how many events there are of each kind. */
  update() {
    for (const [kind, { count }] of this.#chips) {
      count.textContent = this.#session.counts.get(kind).toLocaleString();
    }
  }

  get #isAll() {
    return [...this.#chips.values()].every(({ box }) => box.checked);
  }

  #addChip(kind, name) {
    const box = make("input", { type: "checkbox", class: kind });
    const count = make("span", { class: "count", text: "0" });
    box.checked = true;
    box.addEventListener("change", () => this.#tell());
    this.#chips.set(kind, { count, box });
    byId("kinds").append(make("label", { class: "chip", title: kind }, box, name, " ", count));
  }

  #tell() {
    this.#name();
    this.#changed();
  }

  /** All, or none when there are all: so two clicks and a third choose a single kind. */
  #name() {
    this.#all.textContent = this.#isAll ? "Hide all" : "Show all";
  }
}
