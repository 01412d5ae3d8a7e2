// One event, whole.

import { byId } from "./dom.js";
import { longText } from "./longtext.js";
import { timeElement } from "./times.js";
import { escaped, jsonNodes } from "./visible.js";

const SHOWN_N = 200_000;
const TOLD_MS = 2_000;

export class Payload {
  #session;
  #on;
  #panel = byId("payload");
  #text = byId("payload-text");
  #copy = byId("payload-copy");
  #toEntry = byId("payload-entry");
  #event = null;

  /**
   * `on.showEntry(sequence)` goes to the event's entry in the transcript, `on.leave()` is told
   * that a person wants the payload away, `on.closed(hadFocus)` that it is, `on.say(words)`
   * what is to be spoken.
   */
  constructor(session, on) {
    this.#session = session;
    this.#on = on;
    byId("payload-close").addEventListener("click", () => on.leave());
    this.#copy.addEventListener("click", () => this.#copyText());
    this.#toEntry.addEventListener("click", () => on.showEntry(this.#event.sequence));
    this.#panel.addEventListener("keydown", (event) => {
      if (event.key === "Escape") on.leave();
    });
  }

  /** Show an event. */
  open(event) {
    this.#panel.hidden = false;
    this.#toEntry.hidden = this.#session.entryIndex(event.sequence) === undefined;
    if (this.#event === event) return;
    this.#event = event;
    byId("payload-title").textContent = `Event ${event.sequence.toLocaleString()}`;
    byId("payload-type").textContent = event.type;
    byId("payload-time").replaceChildren(timeElement(event.recorded_at, "dated"));
    const show = (text) => this.#text.replaceChildren(...jsonNodes(text));
    const button = longText(this.#json(), SHOWN_N, show);
    byId("payload-more").replaceChildren(...(button === null ? [] : [button]));
    this.#text.scrollTop = 0;
  }

  /** Put it away. */
  close() {
    if (this.#event === null) return;
    this.#event = null;
    const hadFocus = this.#panel.contains(document.activeElement);
    this.#panel.hidden = true;
    this.#text.replaceChildren();
    this.#on.closed(hadFocus);
  }

  #json() {
    return JSON.stringify(this.#event.payload, null, 2);
  }

  async #copyText() {
    let told = "Copied";
    try {
      await navigator.clipboard.writeText(escaped(this.#json()));
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
      told = "Not allowed"; // the browser's settings, or the person, say so
    }
    this.#copy.textContent = told;
    this.#on.say(told);
    setTimeout(() => {
      this.#copy.textContent = "Copy";
    }, TOLD_MS);
  }
}
