// What was sent and is not on record yet. An id is sent again until its fate is known: the Host
// runs an id once, however often it comes.

import { ask, invocationPath, json, Problem, problemOf, Unreachable } from "./wire.js";

const BODY_BYTES = 1_048_576;

/**
 * Items have an `id`, a `text`, and a `state`:
 *
 * - `sending`: the Host has not said that it has it;
 * - `waiting`: it is in the Host's queue;
 * - `lost`: the connection broke; sent again, under the same id, when there is one.
 *
 * An item leaves when its input is on record, or when it is refused.
 */
export class Outbox {
  #session;
  #follower;
  #on;
  #inquiries = new Set();
  items = [];

  /** `on.change()`, `on.accepted(item)` and `on.refused(item, problem)` are told. */
  constructor(session, follower, on) {
    this.#session = session;
    this.#follower = follower;
    this.#on = on;
  }

  /**
   * Send a text; `id` and the state `lost` for one that an earlier page did not see through.
   * Throws Problem when it is too long.
   */
  send(text, id = crypto.randomUUID(), state = "sending") {
    if (new Blob([bodyOf(text)]).size > BODY_BYTES) {
      throw new Problem(413, "body_too_large", "a message may have 1 MiB at most");
    }
    const item = { id, text, state, looksN: 0, hangUp: null };
    this.items.push(item);
    if (state === "sending") {
      this.#post(item);
      this.#follower.hurry(); // the Turn may begin at once
    }
    return item;
  }

  /** Look where each item stands, now that the session is up to date. */
  update() {
    for (const item of [...this.items]) {
      if (this.#session.invocations.has(item.id)) this.#accept(item);
      else if (!this.#follower.isConnected) continue;
      else if (item.state === "lost") this.#post(item);
      else if (item.state === "waiting" || this.#mayBeQueued(item)) this.#inquire(item);
      item.looksN += 1;
    }
  }

  /** Give everything back: what was meant for one history is nothing for another. */
  giveBack() {
    const told = "this was meant for another history, and was not sent to this one";
    for (const item of this.items) this.#refuse(item, new Problem(0, "another_history", told));
  }

  /** Ask for an invocation to be cancelled; throws Problem or Unreachable. */
  async cancel(id) {
    const item = this.items.find((each) => each.id === id);
    if (item?.state === "lost") {
      const told = "taken back; had it arrived all the same, it runs";
      this.#refuse(item, new Problem(0, "taken_back", told));
      return;
    }
    const response = await ask(invocationPath(id), { method: "DELETE" });
    if (!response.ok) throw await problemOf(response);
    this.#follower.hurry();
  }

  async #post(item) {
    item.state = "sending";
    item.looksN = 0;
    item.hangUp = new AbortController();
    const { signal } = item.hangUp;
    this.#on.change();
    try {
      // The Host may be another by now, with another history: see that first.
      await this.#follower.lookAfresh();
      if (signal.aborted || this.#session.invocations.has(item.id)) return;
      if (!this.#follower.isConnected) {
        this.#lose(item);
        return;
      }
      const headers = { "Content-Type": "application/json" };
      const request = { method: "POST", headers, body: bodyOf(item.text), signal };
      const response = await ask(invocationPath(item.id), request);
      const problem = response.ok ? null : await problemOf(response);
      await this.#answered(item, problem);
    } catch (error) {
      if (signal.aborted) return; // it is in the queue or on record: nobody waits here
      if (!(error instanceof Unreachable)) throw error;
      this.#lose(item);
    }
  }

  /** Tell whether to ask: most messages find no Turn before them, and are on record at once. */
  #mayBeQueued(item) {
    return this.#session.turn !== null && item.looksN > 0;
  }

  async #answered(item, problem) {
    await this.#follower.lookAfresh();
    if (!this.items.includes(item)) return;
    // A Turn that failed answers a problem too: what is on record was accepted.
    if (this.#session.invocations.has(item.id)) this.#accept(item);
    else if (problem?.code === "invocation_live") this.#wait(item);
    // Nothing was recorded, or it could not be looked up.
    else if (problem === null || problem.code === "shutting_down") this.#lose(item);
    else if (!this.#follower.isConnected) this.#lose(item);
    else this.#refuse(item, problem);
  }

  async #inquire(item) {
    if (this.#inquiries.has(item)) return;
    this.#inquiries.add(item);
    try {
      const response = await ask(invocationPath(item.id));
      const isKnown = response.status !== 404;
      if (isKnown && !response.ok) throw await problemOf(response);
      const found = isKnown ? await json(response) : { state: "unknown" };
      if (this.items.includes(item)) this.#judge(item, found);
    } catch (error) {
      // The follower finds out what is wrong with the Host, and tells; this is asked again then.
      if (!(error instanceof Unreachable || error instanceof Problem)) throw error;
    } finally {
      this.#inquiries.delete(item);
    }
  }

  #judge(item, { state, error }) {
    if (state === "queued") this.#wait(item);
    // Its queue ended with its Host, and nothing was run.
    else if (state === "unknown" && item.state === "waiting") this.#lose(item);
    else if (error !== undefined) {
      this.#answered(item, new Problem(409, error.code, error.message));
    }
  }

  #lose(item) {
    item.state = "lost";
    this.#on.change();
  }

  #wait(item) {
    if (item.state === "waiting") return;
    item.state = "waiting";
    item.hangUp?.abort(); // a browser has six connections to a Host: not one for each in the queue
    this.#on.change();
  }

  #accept(item) {
    this.#drop(item);
    this.#on.accepted(item);
  }

  #refuse(item, problem) {
    this.#drop(item);
    this.#on.refused(item, problem);
  }

  #drop(item) {
    this.items = this.items.filter((each) => each !== item);
    item.hangUp?.abort();
  }
}

function bodyOf(text) {
  return JSON.stringify({ input: text });
}
