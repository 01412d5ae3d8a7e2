// The button that leads to the end of a list, and says how much has come since one was there.

import { make } from "./dom.js";

export class ToEnd {
  #rows;
  #options;
  #seen = 0;

  /**
   * `name` is the list's, `label` what it lists. `last()` returns how far the list goes now,
   * `countAfter(seen)` how many of its items came after what that returned before.
   */
  constructor(rows, options) {
    this.#rows = rows;
    this.#options = options;
    this.button = make("button", { type: "button", class: "to-end", hidden: true });
    this.button.addEventListener("click", () => {
      rows.goToEnd();
      rows.focus(); // the button is gone
    });
  }

  /** Show the button, with how much is new, unless the reader is at the end. */
  update() {
    const { name, label, last, countAfter } = this.#options;
    const isAtEnd = this.#rows.isAtEnd || this.#rows.seesEnd;
    if (isAtEnd) this.#seen = last();
    const newN = countAfter(this.#seen);
    const text = newN > 0 ? `${newN.toLocaleString()} new` : "";
    this.button.hidden = isAtEnd;
    this.button.textContent = `${text} ↓`.trim();
    this.button.ariaLabel = newN > 0 ? `${text} ${label} below` : `To the end of ${name}`;
  }
}
