// One event, whole.

import { byId, longText } from "./dom.js";
import { timeElement } from "./words.js";

const SHOWN_N = 200_000;
const TOLD_MS = 2_000;

export class Payload {
  #panel = byId("payload");
  #text = byId("payload-text");
  #copy = byId("payload-copy");
  #toEntry = byId("payload-entry");
  #event = null;

  /** `showEntry(sequence)` goes to the event's entry in the transcript; `closed(hadFocus)` is told. */
  constructor(session, { showEntry, closed }) {
    this.session = session;
    this.closed = closed;
    byId("payload-close").addEventListener("click", () => this.close());
    this.#copy.addEventListener("click", () => this.#copyText());
    this.#toEntry.addEventListener("click", () => showEntry(this.#event.sequence));
    this.#panel.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  /** Show an event. */
  open(event) {
    this.#event = event;
    byId("payload-title").textContent = `Event ${event.sequence.toLocaleString()}`;
    byId("payload-about").replaceChildren(
      event.type,
      " · ",
      timeElement(event.recorded_at, { exact: true }),
    );
    this.#text.replaceChildren(...longText(this.#json(), SHOWN_N));
    this.#text.scrollTop = 0;
    this.#toEntry.hidden = this.session.entryIndex(event.sequence) === undefined;
    this.#panel.hidden = false;
    history.replaceState(null, "", `#event-${event.sequence}`);
  }

  /** Put it away. */
  close() {
    if (this.#event === null) return;
    this.#event = null;
    const hadFocus = this.#panel.contains(document.activeElement);
    this.#panel.hidden = true;
    this.#text.replaceChildren();
    history.replaceState(null, "", location.pathname);
    this.closed(hadFocus);
  }

  #json() {
    return JSON.stringify(this.#event.payload, null, 2);
  }

  async #copyText() {
    let told = "Copied";
    try {
      await navigator.clipboard.writeText(this.#json());
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
      told = "Not allowed"; // the browser's settings, or the person, say so
    }
    this.#copy.textContent = told;
    setTimeout(() => {
      this.#copy.textContent = "Copy";
    }, TOLD_MS);
  }
}
