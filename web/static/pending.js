// The list of what was written and is not on record yet: where each stands, and how to have it back.

import { byId, make } from "./dom.js";
import { beginning } from "./longtext.js";
import { marked, spelled, spelledLine } from "./visible.js";

const GLIMPSE_N = 120;
const NAME_N = 40;
/** Most are on record at once: only what takes longer is shown to be under way. */
const SOON_MS = 500;

const LABELS = {
  kept: "Waiting to be sent",
  sending: "Sending",
  queued: "In the queue",
  lost: "Sent, answer not known",
  refused: "Not accepted",
};
const AWAY = {
  kept: "The host is away. What waits was not sent yet; it is sent when the host is back.",
  lost:
    "The connection broke before what was sent had an answer. It is asked for again under the " +
    "same id when the host is back, and runs once.",
};

export class Pending {
  #list = byId("waiting");
  #items = [];
  #isConnected = false;
  #rows = new Map();
  #on;
  #timer = null;

  /** `on.edit(item)` and `on.remove(item)` are told. */
  constructor(on) {
    this.#on = on;
  }

  /** Show where the items of an Outbox stand. */
  show(items, isConnected) {
    this.#items = items;
    this.#isConnected = isConnected;
    this.#showRows();
    const states = isConnected ? [] : items.map(({ state }) => state);
    const told = Object.keys(AWAY).filter((state) => states.includes(state));
    const text = told.map((state) => AWAY[state]).join(" ");
    const held = byId("held");
    held.hidden = text === "";
    if (held.textContent !== text) held.textContent = text;
  }

  #showRows() {
    const shown = this.#items.filter((item) => this.#isShown(item));
    if (shown.length < this.#items.length) {
      this.#timer ??= setTimeout(() => {
        this.#timer = null;
        this.#showRows();
      }, SOON_MS);
    }
    const hadFocus = this.#list.contains(document.activeElement);
    for (const [item, row] of this.#rows) {
      if (shown.includes(item)) continue;
      row.element.remove();
      this.#rows.delete(item);
    }
    shown.forEach((item, index) => {
      if (!this.#rows.has(item)) this.#rows.set(item, this.#row(item));
      const { element } = this.#rows.get(item);
      // Moved without need it would lose the keyboard's focus.
      const there = this.#list.children[index] ?? null;
      if (there !== element) this.#list.insertBefore(element, there);
      this.#update(item);
    });
    this.#list.hidden = shown.length === 0;
    if (hadFocus && !this.#list.contains(document.activeElement)) byId("message").focus();
  }

  #isShown({ state, since }) {
    const isUnderWay = state === "sending" || (state === "kept" && this.#isConnected);
    return !isUnderWay || performance.now() - since >= SOON_MS;
  }

  #row(item) {
    const said = marked(beginning(item.text, GLIMPSE_N)).nodes;
    const name = spelledLine(beginning(item.text, NAME_N));
    const button = (text, act) =>
      make("button", { type: "button", text, "aria-label": `${text} “${name}”`, on: { click: act } });
    const label = make("span", { class: "label" });
    const buttons = [
      button("Edit", () => this.#on.edit(item)),
      button("Remove", () => this.#on.remove(item)),
    ];
    const element = make("li", {}, label, make("span", { class: "said", dir: "auto" }, ...said), ...buttons);
    return { element, label, buttons };
  }

  #update(item) {
    const { element, label, buttons } = this.#rows.get(item);
    const told = item.why === null ? LABELS[item.state] : `${LABELS.refused}: ${item.why.code}`;
    if (label.textContent !== told) label.textContent = told;
    element.title = item.why === null ? "" : spelled(item.why.message);
    element.dataset.state = item.state;
    // Not `disabled`: that would take the keyboard's focus from them.
    for (const button of buttons) button.ariaDisabled = String(item.isLeaving);
  }
}
