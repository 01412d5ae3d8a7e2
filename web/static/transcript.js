// The transcript as people read a conversation, and below it what is being said right now.

import { byId, make } from "./dom.js";
import { callNodes, Entries } from "./entries.js";
import { Prose } from "./prose.js";
import { Rows } from "./rows.js";
import { ToEnd } from "./toend.js";

export class Transcript {
  #session;
  #entries;
  #rows;
  #toEnd;
  #live = new Prose(byId("live-text"));

  /** `openEvent(sequence)` shows the event behind an entry. */
  constructor(session, openEvent) {
    this.#session = session;
    this.#entries = new Entries(session, { openEvent, stay: () => this.#rows.stay() });
    this.#rows = new Rows(byId("transcript"), byId("transcript-rows"), {
      render: (index) => this.#entries.element(index),
      estimate: (index) => this.#entries.estimatedPx(index),
      onPlace: () => this.#toEnd?.update(),
    });
    this.#toEnd = new ToEnd(this.#rows, {
      name: "the transcript",
      label: "entries",
      last: () => session.entries.length,
      countAfter: (seenN) => session.entries.length - seenN,
    });
    byId("transcript-frame").append(this.#toEnd.button);
    byId("transcript").addEventListener("keydown", (event) => this.#key(event));
    session.onChange((change) => this.#take(change));
  }

  /** Bring the entry of an event into sight, and the focus to it. */
  show(sequence) {
    const index = this.#session.entryIndex(sequence);
    if (index === undefined) return;
    this.#rows.show(index);
    this.#rows.element(index)?.focus({ preventScroll: true });
  }

  /** Go to what was said last. */
  goToEnd() {
    this.#rows.goToEnd();
  }

  #take({ isNew }) {
    if (isNew) {
      this.#entries.forget();
      this.#rows.replace(0);
    }
    this.#showLive();
    const { entries, turn } = this.#session;
    byId("transcript-rows").hidden = entries.length === 0; // a feed of nothing is no feed
    byId("transcript-empty").hidden = isNew || entries.length > 0 || turn !== null;
    this.#rows.grow(entries.length);
    this.#toEnd.update(); // also while the transcript is not shown
  }

  #key(event) {
    // The view's own End and Home would go to where the end was guessed to be.
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey) return;
    if (event.key === "End") this.#rows.goToEnd();
    else if (event.key === "Home" && this.#rows.length > 0) this.#rows.show(0, "nearest");
    else return;
    event.preventDefault();
  }

  #showLive() {
    const { turn, step, isReachable } = this.#session;
    byId("live").hidden = turn === null;
    const text = step?.text ?? "";
    this.#live.show(text);
    byId("live-text").hidden = text === "";
    const calls = step === null ? [] : [...step.calls.values()];
    const doing =
      calls.length > 0 ? ["Running ", ...callNodes(calls)] : [text ? "Answering" : "Working"];
    const told = isReachable
      ? make("span", {}, ...doing, " …")
      : make("span", { text: "Broken off: the host is away" });
    const shown = byId("live-doing");
    if (shown.textContent !== told.textContent) shown.replaceChildren(...told.childNodes);
  }
}
