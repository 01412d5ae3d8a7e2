// Where a person writes, sends, and stops what runs.

import { byId, make } from "./dom.js";
import { Outbox } from "./outbox.js";
import { Problem, Unreachable } from "./wire.js";

const KEPT = "sessiond.kept";
const GLIMPSE_N = 120;

export class Composer {
  #session;
  #outbox;
  #text = byId("message");
  #send = byId("send");
  #stop = byId("stop");
  #notice = byId("notice");
  /** The item whose text is still in the field: not yet accepted. */
  #held = null;
  #stopping = null;
  #accepted;
  #isTakenUp = false;

  /** `accepted()` is told when the Host has taken a message of this page. */
  constructor(session, follower, accepted) {
    this.#session = session;
    this.#accepted = accepted;
    this.#outbox = new Outbox(session, follower, {
      change: () => {
        this.#show();
        this.#remember();
      },
      accepted: (item) => this.#wasAccepted(item),
      refused: (item, problem) => this.#wasRefused(item, problem),
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#text.addEventListener("keydown", (event) => this.#key(event));
    this.#text.addEventListener("input", () => {
      this.#tell(null);
      this.#show();
      this.#remember();
    });
    this.#stop.addEventListener("click", () => this.#stopRunning());
    session.onChange(({ isNew, isFirst }) => {
      if (isNew) this.#outbox.giveBack();
      if (isFirst) this.#takeUp();
      if (isFirst) this.#remember(); // now it is known which history this is for
      this.#show();
    });
    this.#show();
  }

  /** Look where that which was sent stands. */
  update() {
    this.#outbox.update();
    this.#show();
  }

  #key(event) {
    if (event.key !== "Enter" || event.isComposing || event.shiftKey || event.altKey) return;
    // On a touch screen there is no other key for a new line.
    const isTouch = matchMedia("(hover: none) and (pointer: coarse)").matches;
    if (isTouch && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.#submit();
  }

  #submit() {
    const text = this.#text.value;
    if (text.trim() === "" || this.#held !== null || this.#session.id === null) return;
    this.#tell(null);
    try {
      this.#hold(this.#outbox.send(text));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#tell(error);
    }
    this.#text.focus(); // the button cannot keep it
  }

  #hold(item) {
    this.#held = item;
    this.#show();
    this.#remember();
  }

  /** Keep what is written and what is on its way for the next load of this page. */
  #remember() {
    if (!this.#isTakenUp) return; // what is kept is still to be taken up
    const { id: session, origin } = this.#session;
    const items = this.#outbox.items.map(({ id, text }) => ({ id, text }));
    store({ session, origin, items, held: this.#held?.id ?? null, draft: this.#text.value });
  }

  /** Go on with what an earlier load of this page has sent without learning what became of it. */
  #takeUp() {
    const kept = this.#isTakenUp ? null : stored();
    this.#isTakenUp = true;
    if (kept === null || kept.session !== this.#session.id) return;
    if (this.#text.value === "") this.#text.value = kept.draft;
    for (const { id, text } of kept.items) {
      // What was meant for a history that is gone stays in the field, and is not sent.
      if (kept.origin !== this.#session.origin && !this.#session.invocations.has(id)) {
        if (id !== kept.held) this.#putBack(text);
        continue;
      }
      const item = this.#outbox.send(text, id, "lost");
      if (id === kept.held) this.#held = item;
    }
    this.#show();
  }

  #putBack(text) {
    this.#text.value = this.#text.value === "" ? text : `${this.#text.value}\n\n${text}`;
  }

  #wasAccepted(item) {
    if (item === this.#held) this.#clear();
    this.#accepted();
    this.#show();
    this.#remember();
  }

  #clear() {
    this.#held = null;
    this.#text.value = "";
  }

  #wasRefused(item, problem) {
    if (item === this.#held) this.#held = null;
    else if (this.#held === null) this.#putBack(item.text);
    this.#tell(problem.code === "cancelled" ? null : problem);
    this.#show();
    this.#remember();
    this.#text.focus();
  }

  async #stopRunning() {
    const turn = this.#session.turn;
    const id = turn?.invocationId ?? this.#held?.id ?? this.#outbox.items[0]?.id;
    if (id === undefined || this.#stopping !== null) return;
    this.#stopping = id;
    this.#show();
    await this.#cancel(id);
  }

  async #cancel(id) {
    this.#tell(null);
    try {
      await this.#outbox.cancel(id);
    } catch (error) {
      if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
      this.#stopping = null;
      // It came to its end by itself: there is nothing to tell.
      if (error.code !== "invocation_settled") this.#tell(error);
    }
    this.#show();
  }

  // --- what is seen ----------------------------------------------------------------------------

  #tell(error) {
    this.#notice.hidden = error === null;
    if (error === null) return;
    const code = error instanceof Problem ? error.code : "unreachable";
    this.#notice.replaceChildren(make("code", { text: code }), " ", error.message);
  }

  #show() {
    const waiting = this.#outbox.items.filter((item) => item.state === "waiting");
    // In the queue is accepted: the field is free for the next.
    if (waiting.includes(this.#held)) this.#clear();
    const held = this.#held;
    this.#text.readOnly = held !== null;
    this.#send.disabled = held !== null || this.#text.value.trim() === "";
    this.#send.textContent = held === null ? "Send" : "Sending …";
    byId("held").hidden = held?.state !== "lost";
    const running = this.#session.turn?.invocationId;
    const live = [running, ...this.#outbox.items.map((item) => item.id)];
    if (!live.includes(this.#stopping)) this.#stopping = null;
    this.#keepFocus(() => {
      this.#stop.hidden = running === undefined && this.#outbox.items.length === 0;
      // Not `disabled`: that would take the keyboard's focus from it.
      this.#stop.ariaDisabled = String(this.#stopping !== null);
    });
    const stop = running === undefined && held?.state === "lost" ? "Take back" : "Stop";
    this.#stop.textContent = this.#stopping === null ? stop : "Stopping …";
    this.#showWaiting(waiting);
  }

  /** The button goes away under the keyboard: it goes on in the field. */
  #keepFocus(change) {
    const hadFocus = document.activeElement === this.#stop;
    change();
    if (hadFocus && this.#stop.hidden) this.#text.focus();
  }

  #showWaiting(waiting) {
    const list = byId("waiting");
    const ids = waiting.map((item) => item.id).join(" ");
    if (list.dataset.ids === ids) return; // made anew it would lose the keyboard's focus
    list.dataset.ids = ids;
    list.hidden = waiting.length === 0;
    list.replaceChildren(
      ...waiting.map((item) =>
        make(
          "li",
          {},
          make("span", { class: "label", text: "In the queue" }),
          make("span", { class: "said", dir: "auto", text: item.text.slice(0, GLIMPSE_N) }),
          make("button", {
            type: "button",
            text: "Cancel",
            "aria-label": `Cancel “${item.text.slice(0, 40)}”`,
            on: { click: () => this.#cancel(item.id) },
          }),
        ),
      ),
    );
  }
}

// --- what outlives a reload ----------------------------------------------------------------------

function store(kept) {
  withStorage((storage) => storage.setItem(KEPT, JSON.stringify(kept)));
}

function stored() {
  return JSON.parse(withStorage((storage) => storage.getItem(KEPT)) ?? "null");
}

/** Return what `use` does, null where the browser is set to store nothing, or has no room. */
function withStorage(use) {
  try {
    return use(sessionStorage);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return null;
  }
}
