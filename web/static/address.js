// Which event the address names. Choosing one is a step in the browser's history: Back undoes it.

const PREFIX = "#event-";

export class Address {
  #session;
  #on;
  #isLoaded = false;
  #isLeaving = false;
  /** The event that the address names and that has not come yet, or null. */
  #awaited = null;

  /**
   * Told are `on.open(sequence, { isLink, isAwaited })`, `on.close()`, and `on.missing(words)`,
   * null when nothing is missing; `on.view` is which of the two views is seen.
   */
  constructor(session, on) {
    this.#session = session;
    this.#on = on;
    addEventListener("hashchange", () => this.#follow());
    session.onChange(({ isNew, isFirst }) => {
      if (isNew) this.#forget();
      else if (isFirst) this.#begin();
      else if (this.#isCome) this.#open(this.#awaited, { isAwaited: true });
    });
  }

  /**
   * Go to an event. That is a new entry of the history, unless it `isStep`: going on from the
   * event next to it. `isLink` for an event that was not chosen in the timeline.
   */
  choose(sequence, { isStep = false, isLink = false } = {}) {
    if (this.#isLeaving) {
      // The browser is on its way back from the event before.
      const again = () => this.choose(sequence, { isStep, isLink });
      addEventListener("hashchange", again, { once: true });
      return;
    }
    const hash = `${PREFIX}${sequence}`;
    if (location.hash !== hash) {
      if (isStep) {
        history.replaceState(history.state, "", hash);
      } else {
        // Whoever comes back finds the view as it was.
        history.replaceState({ ...history.state, view: this.#on.view }, "");
        history.pushState({ isFromNone: location.hash === "" }, "", hash);
      }
    }
    this.#open(sequence, { isLink });
  }

  /** Name no event any more. */
  leave() {
    this.#on.close();
    if (history.state?.isFromNone) {
      this.#isLeaving = true;
      history.back();
    } else {
      history.replaceState(null, "", location.pathname);
    }
  }

  /** Another history begins: what is named of the one that was shown is nothing there. */
  #forget() {
    if (this.#isLoaded) {
      this.#on.close();
      history.replaceState(null, "", location.pathname);
    }
    this.#isLoaded = false;
    this.#lack(null, null);
  }

  #begin() {
    this.#isLoaded = true;
    if (location.hash.startsWith(PREFIX)) this.#follow();
  }

  get #isCome() {
    return this.#awaited !== null && this.#awaited <= this.#session.lastSequence;
  }

  #open(sequence, how) {
    this.#lack(null, null);
    this.#on.open(sequence, how);
  }

  #lack(sequence, words) {
    this.#awaited = sequence;
    this.#on.missing(words);
  }

  /** Show what the address names, however it came to. */
  #follow() {
    if (!this.#isLoaded) return;
    if (!this.#isLeaving && history.state?.view) this.#on.view = history.state.view;
    this.#isLeaving = false;
    const name = location.hash.startsWith(PREFIX) ? location.hash.slice(PREFIX.length) : null;
    const sequence = name !== null && /^[1-9][0-9]{0,14}$/u.test(name) ? Number(name) : null;
    const lastN = this.#session.lastSequence;
    if (sequence !== null && sequence <= lastN) {
      this.#open(sequence, { isLink: true });
      return;
    }
    this.#on.close();
    if (name === null) this.#lack(null, null);
    else this.#lack(sequence, sequence === null ? "There is no such event." : notYet(sequence, lastN));
  }
}

function notYet(sequence, lastN) {
  const last = lastN === 0 ? "there is none yet" : `the last one is ${lastN.toLocaleString()}`;
  return `There is no event ${sequence.toLocaleString()}: ${last}. It is shown when it comes.`;
}
