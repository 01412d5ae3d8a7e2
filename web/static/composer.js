// Where a person writes and sends, and stops what runs.

import { byId, make, setText } from "./dom.js";
import { Keep } from "./keep.js";
import { Outbox } from "./outbox.js";
import { Pending } from "./pending.js";
import { spelled } from "./visible.js";
import { Problem, Unreachable } from "./wire.js";

/** A press this soon after one Turn followed another was meant for the one before. */
const SETTLES_MS = 500;
/** What a keyboard sends while a method of input composes, where `isComposing` comes too late. */
const COMPOSING_CODE = 229;

export class Composer {
  #session;
  #follower;
  #outbox;
  #pending;
  #keep = new Keep();
  #isTakenUp = false;
  #isLoaded = false;
  #text = byId("message");
  #stop = byId("stop");
  #notice = byId("notice");
  #accepted;
  /** The invocation that Stop stands for, since when, and whether it was asked to stop. */
  #running = { id: null, notBefore: 0, isStopping: false };

  /** `accepted()` is told when the Host has taken a message of this page. */
  constructor(session, follower, accepted) {
    this.#session = session;
    this.#follower = follower;
    this.#accepted = accepted;
    this.#pending = new Pending({
      edit: (item) => this.#takeBack(item, true),
      remove: (item) => this.#takeBack(item, false),
    });
    this.#outbox = new Outbox(session, follower, {
      change: () => {
        this.#show();
        this.#remember();
      },
      accepted: () => this.#accepted(),
      refused: (item) => this.#wasRefused(item),
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
    session.onChange((change) => this.#take(change));
    this.#show();
  }

  /** Look where that which was sent stands. */
  update() {
    this.#outbox.update();
    this.#show();
  }

  #take({ isNew, isFirst }) {
    // What was written before any history was known is for the first that there is.
    if (isNew && this.#isLoaded) this.#outbox.giveBack();
    if (isFirst) {
      if (!this.#isLoaded) this.#takeUp();
      this.#isLoaded = true;
      this.#remember(); // now it is known which history this is for
    }
    this.#show();
  }

  // --- writing and sending ------------------------------------------------------------------------

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.altKey) return;
    if (event.isComposing || event.keyCode === COMPOSING_CODE) return;
    // On a touch screen there is no other key for a new line.
    const isTouch = matchMedia("(hover: none) and (pointer: coarse)").matches;
    if (isTouch && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (!event.repeat) this.#submit();
  }

  #submit() {
    const text = this.#text.value;
    if (text.trim() === "") return;
    this.#tell(null);
    try {
      this.#text.value = "";
      this.#outbox.send(text);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#text.value = text;
      this.#tell(error);
    }
    this.#show();
    this.#text.focus(); // the button cannot keep it
  }

  /** Have an item back before it runs; `isEdited` puts its text into the field. */
  async #takeBack(item, isEdited) {
    if (item.isLeaving) return;
    this.#tell(null);
    const isUncertain = item.state === "lost";
    try {
      if (!(await this.#outbox.withdraw(item))) return;
    } catch (error) {
      this.#tellFailure(error);
      return;
    }
    if (isUncertain) {
      this.#tell(new Problem(0, "taken_back", "had it arrived all the same, it runs"));
    }
    if (isEdited) this.#putBack(item.text);
    this.#text.focus();
  }

  #putBack(text) {
    this.#text.value = this.#text.value === "" ? text : `${this.#text.value}\n\n${text}`;
    this.#show();
    this.#remember();
  }

  /** A text that was refused is for the field, or stays in the list where that has another. */
  #wasRefused(item) {
    this.#tell(item.why);
    if (this.#text.value !== "") return;
    this.#putBack(item.text);
    this.#outbox.withdraw(item); // at once: it is nowhere but here
  }

  // --- what outlives this page --------------------------------------------------------------------

  async #takeUp() {
    const kept = await this.#keep.open();
    this.#isTakenUp = true;
    const rest = kept === null ? null : this.#takeOver(kept, true);
    if (rest !== null) this.#keep.leave(rest);
    this.#remember();
    this.#keep.watch((value, isEarlier) => this.#takeOver(value, isEarlier));
  }

  /** Go on with what another page has left; return what is not for this one, null for nothing. */
  #takeOver(kept, takesDraft) {
    if (kept.session !== this.#session.id) return kept;
    const isSame = kept.origin === this.#session.origin;
    for (const item of kept.items) {
      const isOurs = isSame || item.why !== null || this.#session.invocations.has(item.id);
      if (isOurs) this.#outbox.takeOver(item);
      else this.#outbox.refuseForeign(item);
    }
    const isTaken = takesDraft && this.#text.value === "";
    if (isTaken) this.#putBack(kept.draft);
    return isTaken || kept.draft === "" ? null : { ...kept, items: [] };
  }

  #remember() {
    // What is kept is still to be taken up, or nobody knows which history this is for.
    if (!this.#isTakenUp || this.#session.id === null) return;
    const { id: session, origin } = this.#session;
    const items = this.#outbox.items.map(({ id, text, wasSent, why }) => ({
      id,
      text,
      wasSent,
      why: why && { status: why.status, code: why.code, message: why.message },
    }));
    const draft = this.#text.value;
    this.#keep.write(items.length === 0 && draft === "" ? null : { session, origin, items, draft });
  }

  // --- stopping -----------------------------------------------------------------------------------

  async #stopRunning() {
    const { id, notBefore, isStopping } = this.#running;
    if (id === null || isStopping || performance.now() < notBefore) return;
    this.#running.isStopping = true;
    this.#tell(null);
    this.#show();
    try {
      await this.#outbox.cancel(id);
    } catch (error) {
      if (this.#running.id === id) this.#running.isStopping = false;
      // It came to its end by itself: there is nothing to tell.
      if (error.code !== "invocation_settled") this.#tellFailure(error);
    }
    this.#show();
  }

  // --- what is seen -------------------------------------------------------------------------------

  #tellFailure(error) {
    if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
    this.#tell(error);
  }

  #tell(error) {
    this.#notice.hidden = error === null;
    if (error === null) return;
    const code = error instanceof Problem ? error.code : "unreachable";
    this.#notice.replaceChildren(make("code", { text: spelled(code) }), ` ${spelled(error.message)}`);
  }

  #show() {
    byId("send").disabled = this.#text.value.trim() === "";
    this.#pending.show(this.#outbox.items, this.#follower.isConnected);
    this.#showRunning();
  }

  #showRunning() {
    // Of what runs while the Host is away nothing is known, and nothing can be stopped.
    const turn = this.#follower.isConnected ? this.#session.turn : null;
    const id = turn?.invocationId ?? null;
    if (id !== this.#running.id) {
      const follows = id !== null && this.#running.id !== null;
      const notBefore = follows ? performance.now() + SETTLES_MS : 0;
      this.#running = { id, notBefore, isStopping: false };
    }
    const hadFocus = document.activeElement === this.#stop;
    byId("running").hidden = turn === null;
    // The button goes away under the keyboard: it goes on in the field.
    if (hadFocus && turn === null) this.#text.focus();
    if (turn === null) return;
    setText("running-turn", `${turn.id} is running. What is sent now waits for its end.`);
    setText("stop", this.#running.isStopping ? "Stopping …" : `Stop ${turn.id}`);
    // Not `disabled`: that would take the keyboard's focus from it.
    this.#stop.ariaDisabled = String(this.#running.isStopping);
  }
}
