// What was sent and is not on record yet. One message goes after the other, in the order in which
// they were written, and under the same id until its fate is known: the Host runs an id once,
// however often it comes.

import { grown } from "./follow.js";
import { cancel, post, stateOf, tooLong } from "./invocations.js";
import { Problem, Unreachable } from "./wire.js";

/** When to look whether the Host has what was just sent to it. */
const CONFIRM_MS = [100, 200, 400, 800, 1_600];
/** How soon to ask again for what stands in the queue, and to send again what did not arrive. */
const AGAIN_MS = [1_000, 5_000];

/**
 * Items have an `id`, a `text`, and a `state`:
 *
 * - `kept`: it has not left this page;
 * - `sending`: the Host has not said that it has it;
 * - `queued`: it is in the Host's queue;
 * - `lost`: it was sent, and the connection broke before there was an answer;
 * - `refused`: the Host did not take it, for the reason `why`.
 *
 * An item leaves when its input is on record, or when it is withdrawn.
 */
export class Outbox {
  #session;
  #follower;
  #on;
  #isPumping = false;
  #isAsking = false;
  #asksN = 0;
  #askAt = 0;
  #failuresN = 0;
  #notBefore = 0;
  items = [];

  /** `on.change()`, `on.accepted(item)` and `on.refused(item)` are told. */
  constructor(session, follower, on) {
    this.#session = session;
    this.#follower = follower;
    this.#on = on;
    follower.isNeeded = () => this.items.some(({ state }) => state !== "refused");
  }

  /** Send a text, now or when there is a Host. Throws Problem when it is too long. */
  send(text) {
    const problem = tooLong(text);
    if (problem !== null) throw problem;
    this.#add({ id: crypto.randomUUID(), text, state: "kept" });
    this.#notBefore = 0;
    if (this.#follower.isConnected) this.#pump();
    this.#follower.hurry();
  }

  /** Go on with what another page has written: `wasSent` tells whether it may have arrived. */
  takeOver({ id, text, wasSent, why }) {
    if (this.items.some((item) => item.id === id)) return;
    const problem = why && new Problem(why.status, why.code, why.message);
    const state = why ? "refused" : wasSent ? "lost" : "kept";
    this.#add({ id, text, state, wasSent, why: problem });
    this.#follower.hurry();
  }

  /** Refuse what another page has written for another history. */
  refuseForeign(kept) {
    const item = this.#add({ ...kept, state: "kept" });
    this.#refuse(item, anotherHistory());
  }

  #add(known) {
    const fresh = { wasSent: false, why: null, isLeaving: false, hangUp: null };
    const item = { ...fresh, since: performance.now(), ...known };
    this.items.push(item);
    this.#on.change();
    return item;
  }

  /** Look where each item stands, now that it was looked at the Host. */
  update() {
    for (const item of [...this.items]) {
      if (this.#session.invocations.has(item.id)) this.#accept(item);
      else if (!this.#follower.isConnected) this.#lose(item);
    }
    if (!this.#follower.isConnected) this.#failuresN = this.#notBefore = 0;
    else {
      if (performance.now() >= this.#notBefore) this.#pump();
      if (performance.now() >= this.#askAt) this.#askForQueued();
    }
  }

  /** Give everything back: what was meant for one history is nothing for another. */
  giveBack() {
    for (const item of [...this.items]) {
      if (item.state !== "refused") this.#refuse(item, anotherHistory());
    }
  }

  /**
   * Take an item back; return whether it left, and not to be run. Throws Problem or Unreachable
   * when that could not be asked for.
   */
  async withdraw(item) {
    const isHere = ["kept", "refused"].includes(item.state);
    if (!isHere && this.#follower.isConnected) {
      item.isLeaving = true;
      this.#on.change();
      try {
        if (await this.#isPastCancelling(item.id)) return false;
      } finally {
        item.isLeaving = false;
        this.#on.change();
      }
    }
    return this.#drop(item);
  }

  /** Ask for an invocation to be cancelled; return its state. Throws Problem or Unreachable. */
  async cancel(id) {
    const state = await cancel(id);
    this.#follower.hurry();
    return state;
  }

  async #isPastCancelling(id) {
    try {
      return (await this.cancel(id)) === "running";
    } catch (error) {
      if (error.code === "invocation_not_found") return false;
      if (error.code !== "invocation_settled") throw error;
      await this.#follower.lookAfresh();
      return true;
    }
  }

  // --- sending ----------------------------------------------------------------------------------

  async #pump() {
    if (this.#isPumping) return;
    this.#isPumping = true;
    try {
      const isDue = ({ state, isLeaving }) => ["kept", "lost"].includes(state) && !isLeaving;
      for (;;) {
        const item = this.items.find(isDue);
        if (item === undefined || !(await this.#deliver(item))) return;
      }
    } finally {
      this.#isPumping = false;
    }
  }

  /** See to it that the Host has an item, or refuses it; false where neither is known yet. */
  async #deliver(item) {
    // The Host may be another by now, with another history: see that first.
    await this.#follower.lookAfresh();
    if (!this.#isDue(item)) return true;
    if (!this.#follower.isConnected) return false;
    if (item.wasSent) await this.#inquire(item);
    if (this.#isDue(item)) await this.#post(item);
    const isDelivered = !this.#isDue(item);
    if (isDelivered) this.#failuresN = 0;
    else this.#notBefore = performance.now() + grown(AGAIN_MS, this.#failuresN++);
    return isDelivered;
  }

  #isDue(item) {
    return this.items.includes(item) && ["kept", "lost"].includes(item.state);
  }

  async #post(item) {
    item.wasSent = true;
    item.hangUp = new AbortController();
    this.#move(item, "sending");
    let isOver = false;
    const answered = this.#answer(item).finally(() => {
      isOver = true;
    });
    // The answer comes when the Turn has ended: that the Host has it is to be seen before.
    const isOpen = () => !isOver && item.state === "sending" && this.items.includes(item);
    for (let looksN = 0; isOpen(); looksN += 1) {
      await Promise.race([answered, pause(CONFIRM_MS[Math.min(looksN, CONFIRM_MS.length - 1)])]);
      if (isOpen()) await this.#follower.look();
      // With no Turn before it, it is on record at once: there is nothing to ask for.
      if (isOpen() && (this.#session.turn !== null || looksN > 0)) await this.#inquire(item);
    }
  }

  async #answer(item) {
    const { signal } = item.hangUp;
    try {
      const problem = await post(item.id, item.text, signal);
      await this.#follower.lookAfresh();
      if (signal.aborted || item.isLeaving) return;
      this.#judge(item, problem);
    } catch (error) {
      if (signal.aborted) return; // it is in the queue or on record: nobody waits here
      if (!(error instanceof Unreachable)) throw error;
      this.#lose(item);
      this.#follower.hurry();
    }
  }

  /** Judge an answer after which the input is not on record. */
  #judge(item, problem) {
    // It could not be looked up.
    if (!this.#follower.isConnected || problem === null) this.#lose(item);
    else if (problem.code === "shutting_down") {
      item.wasSent = false; // a Host that stops has recorded nothing of it
      this.#move(item, "kept");
    } else if (problem.code !== "invocation_live") this.#refuse(item, problem);
  }

  // --- the Host's queue -------------------------------------------------------------------------

  /** Ask now and then for the first that stands in the queue: who else cancels it tells nobody. */
  async #askForQueued() {
    const item = this.items.find(({ state, isLeaving }) => state === "queued" && !isLeaving);
    if (item === undefined || this.#isAsking || this.#isPumping) return;
    this.#isAsking = true;
    try {
      this.#askAt = performance.now() + grown(AGAIN_MS, this.#asksN);
      this.#asksN += 1;
      await this.#inquire(item);
    } finally {
      this.#isAsking = false;
    }
  }

  async #inquire(item) {
    try {
      const { state, error } = await stateOf(item.id);
      if (!this.items.includes(item) || item.isLeaving) return;
      if (state === "queued") this.#wait(item);
      // Its queue ended with its Host, and nothing was run.
      else if (state === "unknown" && item.state === "queued") this.#lose(item);
      else if (state === "running" && item.state === "lost") this.#move(item, "queued");
      else if (error !== undefined) await this.#settled(item, error);
    } catch (error) {
      // The follower finds out what is wrong with the Host, and tells; this is asked again then.
      if (!(error instanceof Unreachable || error instanceof Problem)) throw error;
      this.#follower.hurry();
    }
  }

  async #settled(item, { code, message }) {
    await this.#follower.lookAfresh();
    if (this.items.includes(item)) this.#judge(item, new Problem(409, code, message));
  }

  // --- moves ------------------------------------------------------------------------------------

  #move(item, state) {
    if (!this.items.includes(item) || item.state === state) return;
    item.state = state;
    this.#on.change();
  }

  #lose(item) {
    if (!["sending", "queued"].includes(item.state)) return;
    item.hangUp?.abort();
    this.#move(item, "lost");
  }

  #wait(item) {
    item.hangUp?.abort(); // a browser has six connections to a Host: not one for each in the queue
    if (item.state !== "queued") this.#askAt = performance.now() + grown(AGAIN_MS, 0);
    this.#move(item, "queued");
  }

  #accept(item) {
    this.#drop(item);
    this.#asksN = 0; // the queue has moved
    this.#on.accepted(item);
  }

  #refuse(item, problem) {
    if (!this.items.includes(item)) return;
    item.hangUp?.abort();
    item.why = problem;
    item.state = "refused";
    this.#on.refused(item);
    this.#on.change();
  }

  #drop(item) {
    const wasThere = this.items.includes(item);
    this.items = this.items.filter((each) => each !== item);
    item.hangUp?.abort();
    if (wasThere) this.#on.change();
    return wasThere;
  }
}

function anotherHistory() {
  const told = "this was meant for another history, and was not sent to this one";
  return new Problem(0, "another_history", told);
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
