// What the page knows of the session: its events, its transcript, and the Turn that runs.

import { chunkText, KINDS } from "./words.js";

export class Session {
  #listeners = [];
  #entryIndexes;
  #isLoaded;

  constructor() {
    /** Whether the Host answers: of what runs while it does not, nothing is known. */
    this.isReachable = false;
    this.#forget(null);
  }

  #forget(id) {
    this.id = id;
    /** Event N stands at N - 1: the sequence has no gaps. */
    this.events = [];
    this.entries = [];
    this.digest = null;
    /** How many events there are of each kind. */
    this.counts = new Map([...KINDS.keys()].map((kind) => [kind, 0]));
    /** The Turn that runs, or null: its `id`, its `invocationId`. */
    this.turn = null;
    /** The Step that runs, or null: its `id`, the `text` so far, the `calls` that run. */
    this.step = null;
    this.invocations = new Set();
    /** What a Step had said when it failed, by the sequence of its failure. */
    this.unfinished = new Map();
    this.#entryIndexes = new Map();
    this.#isLoaded = false;
  }

  get lastSequence() {
    return this.events.length;
  }

  /** What tells this history from any other: when it began. Null while there is no event. */
  get origin() {
    return this.events[0]?.recorded_at ?? null;
  }

  /** Return the place of the transcript's entry of this event, undefined if it has none. */
  entryIndex(sequence) {
    return this.#entryIndexes.get(sequence);
  }

  /**
   * Call `listener` after each change with what it was: `isNew` when all that was known is
   * forgotten, `isFirst` when what there was before is loaded, and how many events and entries
   * were known until then.
   */
  onChange(listener) {
    this.#listeners.push(listener);
  }

  #tell(change) {
    for (const listener of this.#listeners) listener(change);
  }

  /** Take note of whether the Host answers. */
  setReachable(isReachable) {
    if (this.isReachable === isReachable) return;
    this.isReachable = isReachable;
    const known = { eventsN: this.events.length, entriesN: this.entries.length };
    this.#tell({ isNew: false, isFirst: false, ...known });
  }

  /** Forget everything; `id` is the session to know from now on, null while it is not known. */
  startOver(id) {
    this.#forget(id);
    this.#tell({ isNew: true, isFirst: false, eventsN: 0, entriesN: 0 });
  }

  /** Take in what a response to `?after=` this session's last sequence adds to it. */
  grow({ digest, events, transcript }) {
    const [eventsN, entriesN] = [this.events.length, this.entries.length];
    const isFirst = !this.#isLoaded;
    this.#isLoaded = true;
    for (const event of events) this.#add(event);
    for (const entry of transcript) {
      this.#entryIndexes.set(entry.sequence, this.entries.length);
      this.entries.push(entry);
    }
    this.digest = digest;
    if (isFirst || events.length > 0) this.#tell({ isNew: false, isFirst, eventsN, entriesN });
  }

  #add(event) {
    const { type, sequence, payload } = event;
    this.events.push(event);
    this.counts.set(type, (this.counts.get(type) ?? 0) + 1);
    switch (type) {
      case "user_input_accepted":
        this.invocations.add(payload.invocation_id);
        this.turn = { id: payload.turn_id, invocationId: payload.invocation_id };
        this.step = null;
        break;
      case "model_request_recorded":
        this.step = { id: payload.step_id, text: "", calls: new Map() };
        break;
      case "model_chunk_recorded":
        if (this.step?.id === payload.step_id) this.step.text += chunkText(payload.chunk);
        break;
      case "assistant_message_committed":
        if (this.step !== null) this.step.text = "";
        if (payload.message.tool_calls.length === 0) this.#endTurn();
        break;
      case "tool_execution_started":
        this.step?.calls.set(payload.call.id, payload.call);
        break;
      case "tool_execution_completed":
        this.step?.calls.delete(payload.call_id);
        break;
      case "step_failed":
        if (this.step?.text) this.unfinished.set(sequence, this.step.text);
        this.#endTurn();
        break;
    }
  }

  #endTurn() {
    this.turn = null;
    this.step = null;
  }
}
