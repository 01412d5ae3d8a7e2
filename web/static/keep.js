// What outlives a page: kept in the browser, by one tab at a time.
//
// Each tab has a slot of its own in the storage that all tabs share, and a lock on it for as long
// as it is there. A slot without a lock is one whose tab is gone: whoever gets that lock takes
// over what the slot holds, and keeps the lock, so that nobody does so again.

const PREFIX = "sessiond.kept.";
/** Where a tab finds its own slot when it is loaded again. */
const OWN = "sessiond.slot";
/** For how long a tab that is being loaded again may be without its lock. */
const RELOAD_MS = 1_000;

export class Keep {
  #slot = null;
  #watched = new Set();
  #takeOver;

  /**
   * Return what this tab has kept when it was loaded before, null for nothing. From then on
   * `write` keeps, and `watch` may be called.
   */
  async open() {
    const own = inStorage("sessionStorage", (storage) => storage.getItem(OWN));
    // A tab that was duplicated has the name of another's slot: that one has the lock.
    const isOwn = own !== null && (await held(own, { signal: AbortSignal.timeout(RELOAD_MS) }));
    this.#slot = isOwn ? own : crypto.randomUUID();
    if (!isOwn) await held(this.#slot);
    inStorage("sessionStorage", (storage) => storage.setItem(OWN, this.#slot));
    return read(this.#slot);
  }

  /** Keep a value, null for nothing. */
  write(value) {
    write(this.#slot, value);
  }

  /** Leave a value to whichever page has a use for it. */
  leave(value) {
    write(crypto.randomUUID(), value);
  }

  /**
   * Call `takeOver(value, isEarlier)` for each value whose tab is gone, once among all tabs;
   * it returns what it leaves to others, null for nothing. `isEarlier`: it was gone before this
   * page came.
   */
  watch(takeOver) {
    this.#takeOver = takeOver;
    for (const slot of slots()) this.#await(slot, true);
    addEventListener("storage", ({ key, newValue }) => {
      if (key?.startsWith(PREFIX) && newValue !== null) this.#await(key.slice(PREFIX.length), false);
    });
  }

  async #await(slot, wasThere) {
    if (slot === this.#slot || this.#watched.has(slot)) return;
    this.#watched.add(slot);
    let isEarlier = wasThere && (await withLock(slot, { ifAvailable: true }, (lock) => lock !== null));
    for (;;) {
      await withLock(slot, {}, () => {}); // its page is gone
      await new Promise((resolve) => setTimeout(resolve, RELOAD_MS));
      const isTaken = (lock) => lock !== null && this.#take(slot, isEarlier);
      if (await withLock(slot, { ifAvailable: true }, isTaken)) return;
      isEarlier = false; // it was only loaded again
    }
  }

  /** Take over what a slot holds; for good, unless something of it is left to others. */
  #take(slot, isEarlier) {
    const value = read(slot);
    const rest = value === null ? null : this.#takeOver(value, isEarlier);
    write(slot, rest);
    return rest === null ? new Promise(() => {}) : true;
  }
}

// --- locks --------------------------------------------------------------------------------------

/** Get the lock of a slot for as long as this page is there; return whether that was possible. */
function held(slot, options = {}) {
  return new Promise((resolve, reject) => {
    const hold = (lock) => {
      resolve(lock !== null);
      return lock === null ? null : new Promise(() => {});
    };
    withLock(slot, options, hold).catch((error) => {
      if (options.signal?.aborted) resolve(false);
      else reject(error);
    });
  });
}

function withLock(slot, options, use) {
  return navigator.locks.request(PREFIX + slot, options, use);
}

// --- storage ------------------------------------------------------------------------------------

function slots() {
  const keys = inStorage("localStorage", (storage) => Object.keys(storage)) ?? [];
  return keys.filter((key) => key.startsWith(PREFIX)).map((key) => key.slice(PREFIX.length));
}

function read(slot) {
  return JSON.parse(inStorage("localStorage", (storage) => storage.getItem(PREFIX + slot)) ?? "null");
}

function write(slot, value) {
  inStorage("localStorage", (storage) => {
    if (value === null) storage.removeItem(PREFIX + slot);
    else storage.setItem(PREFIX + slot, JSON.stringify(value));
  });
}

/** Return what `use` does, null where the browser is set to store nothing, or has no room. */
function inStorage(name, use) {
  try {
    return use(globalThis[name]);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return null;
  }
}
