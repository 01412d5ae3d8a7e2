// Following the session: asking for what is new, more often the likelier there is something.

import { ask, json, Problem, problemOf, Unreachable } from "./wire.js";

/** How soon to look again: the first after a change, then ever later, up to the second. */
const RUNNING_MS = [250, 1_000];
const IDLE_MS = [500, 5_000];
const LOST_MS = [250, 4_000];
const GROWTH = 1.5;
/** In a tab that nobody sees, and only as long as something of its own is under way. */
const HIDDEN_MS = 15_000;

/** Keeps a Session as the Host has it, through restarts of the Host. */
export class Follower {
  #session;
  #tell;
  #tag = null;
  #unchangedN = 0;
  #failuresN = 0;
  #wake = () => {};
  #looking = null;

  /** `tell` is called with what is known of the Host whenever one look at it is over. */
  constructor(session, tell) {
    this.#session = session;
    this.#tell = tell;
    this.isConnected = false;
    /** Whether to look even while nobody sees the page. */
    this.isNeeded = () => false;
  }

  /** Follow for as long as the page is there. */
  async run() {
    for (const name of ["online", "pageshow"]) addEventListener(name, () => this.hurry());
    for (const name of ["visibilitychange", "resume"]) {
      document.addEventListener(name, () => this.hurry());
    }
    for (;;) {
      await this.look();
      await this.#pause();
    }
  }

  /** Look now instead of later, and soon again: something is about to happen, or did. */
  hurry() {
    this.#unchangedN = 0;
    this.#failuresN = Math.min(this.#failuresN, 1);
    this.#wake();
  }

  /** Bring the Session up to date, if the Host answers; who asks meanwhile gets the same look. */
  look() {
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null;
    });
    return this.#looking;
  }

  /** As `look`, and what is on record by now is seen: a look that has begun may be too early. */
  async lookAfresh() {
    await this.#looking;
    await this.look();
  }

  async #look() {
    try {
      const notice = await this.#update();
      this.#failuresN = 0;
      this.#isConnected(true);
      this.#tell({ state: "connected", notice });
    } catch (error) {
      if (!(error instanceof Unreachable || error instanceof Problem)) throw error;
      this.#failuresN += 1;
      this.#unchangedN = 0;
      this.#isConnected(false);
      const detail = error instanceof Problem ? `${error.code}: ${error.message}` : error.message;
      this.#tell({ state: "lost", detail });
    }
  }

  #isConnected(isConnected) {
    this.isConnected = isConnected;
    this.#session.setReachable(isConnected);
  }

  /** Return what a reader must be told of, null for nothing. */
  async #update() {
    if (this.#session.id === null) await this.#meet();
    const response = await this.#askForMore();
    if (response.status === 304) {
      this.#unchangedN += 1;
      return null;
    }
    if (response.ok) {
      await this.#take(response);
      return null;
    }
    const problem = await problemOf(response);
    // 409: another history. 422: one that is shorter. 404: another session altogether.
    if (![404, 409, 422].includes(response.status)) throw problem;
    this.#startOver(null);
    await this.#meet();
    const whole = await this.#askForMore();
    if (!whole.ok) throw await problemOf(whole);
    await this.#take(whole);
    return "The host now serves another history. It was loaded anew.";
  }

  async #take(response) {
    const document = await json(response);
    this.#tag = response.headers.get("ETag");
    this.#unchangedN = document.events.length > 0 ? 0 : this.#unchangedN + 1;
    this.#session.grow(document);
  }

  /** Learn which session the Host serves. */
  async #meet() {
    const response = await ask("/health");
    const { session_id: id } = await json(response); // also a Host that is failing says so
    if (typeof id !== "string") throw new Problem(response.status, "no_session", "not a host");
    this.#startOver(id);
  }

  #startOver(id) {
    this.#tag = null;
    this.#session.startOver(id);
  }

  #askForMore() {
    const { id, digest, lastSequence } = this.#session;
    const query = new URLSearchParams({ after: lastSequence });
    // That event N is the one known here, and with it all before: digests are chained.
    if (digest !== null) query.set("digest", digest);
    const headers = this.#tag === null ? {} : { "If-None-Match": this.#tag };
    return ask(`/api/v1/sessions/${encodeURIComponent(id)}?${query}`, { headers });
  }

  #pause() {
    return new Promise((resolve) => {
      const delay = this.#delay();
      // What nobody sees is not looked at; showing the page wakes.
      const timer = delay === null ? null : setTimeout(resolve, delay);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  #delay() {
    if (document.hidden && !this.isNeeded()) return null;
    if (this.#failuresN > 0) return grown(LOST_MS, this.#failuresN - 1);
    if (document.hidden) return HIDDEN_MS;
    return grown(this.#session.turn === null ? IDLE_MS : RUNNING_MS, this.#unchangedN);
  }
}

/** Return the n-th of delays that grow from the first to the last, in ms. */
export function grown([first, last], n) {
  return Math.min(last, first * GROWTH ** n);
}
