// The transcript as people read a conversation, and below it what is being said right now.

import { byId, longText, make } from "./dom.js";
import { endButton, Rows } from "./rows.js";
import { callNames, readable, readableArguments, timeElement } from "./words.js";

const SHOWN_N = 20_000;
const LINE_PX = 24;
const FRAME_PX = 64;
const CHARACTERS_A_LINE = 72;
const FOLDED_PX = 60;

const WHO = { user: "You", assistant: "Assistant", failure: "Failure" };
/** What a person asked for is no failure to them. */
const CANCELLED = "cancelled";

export class Transcript {
  #session;
  #rows;
  #toEnd;
  #live = byId("live");
  #liveText = document.createTextNode("");
  #empty = byId("transcript-empty");
  #openTools = new Set();
  #openEvent;

  /** `openEvent(sequence)` shows the event behind an entry. */
  constructor(session, openEvent) {
    this.#session = session;
    this.#openEvent = openEvent;
    this.#rows = new Rows(byId("transcript"), byId("transcript-rows"), {
      render: (index) => this.#row(index),
      estimate: (index) => estimatedPx(session.entries[index]),
      onPlace: () => this.#toEnd?.update(),
    });
    this.#toEnd = endButton(this.#rows, "the transcript", "entries below");
    byId("transcript-frame").append(this.#toEnd.button);
    byId("transcript").addEventListener("keydown", (event) => this.#key(event));
    byId("live-text").append(this.#liveText);
    session.onChange((change) => this.#take(change));
  }

  /** Bring the entry of an event into sight, and the focus to it. */
  show(sequence) {
    const index = this.#session.entryIndex(sequence);
    if (index === undefined) return;
    this.#rows.show(index);
    this.#rows.element(index)?.focus({ preventScroll: true });
  }

  /** Go to what was said last. */
  goToEnd() {
    this.#rows.goToEnd();
  }

  #take({ isNew }) {
    if (isNew) {
      this.#openTools.clear();
      this.#rows.replace(0);
    }
    this.#showLive();
    this.#empty.hidden = this.#session.entries.length > 0 || this.#session.turn !== null;
    this.#rows.grow(this.#session.entries.length);
  }

  #key(event) {
    // The view's own End and Home would go to where the end was guessed to be.
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey) return;
    if (event.key === "End") this.#rows.goToEnd();
    else if (event.key === "Home" && this.#rows.length > 0) this.#rows.show(0, "nearest");
    else return;
    event.preventDefault();
  }

  // --- what runs ------------------------------------------------------------------------------

  #showLive() {
    const { turn, step } = this.#session;
    this.#live.hidden = turn === null;
    const text = step?.text ?? "";
    // Added to, a text keeps the reader's selection; and its beginning is not laid out again.
    if (text.startsWith(this.#liveText.data)) {
      this.#liveText.appendData(text.slice(this.#liveText.data.length));
    } else {
      this.#liveText.data = text;
    }
    byId("live-text").hidden = text === "";
    const calls = step === null ? [] : [...step.calls.values()];
    const doing = calls.length > 0 ? `Running ${callNames(calls)}` : text ? "Answering" : "Working";
    byId("live-doing").textContent = `${doing} …`;
  }

  // --- rows -----------------------------------------------------------------------------------

  #row(index) {
    const entry = this.#session.entries[index];
    if (entry.kind === "tool") return this.#tool(entry);
    const isStopped = entry.kind === "failure" && entry.code === CANCELLED;
    const who = isStopped ? "Stopped" : WHO[entry.kind];
    const heading = make("h3", { class: "who", id: `entry-${entry.sequence}`, text: who });
    return make(
      "article",
      { class: `entry ${entry.kind}${isStopped ? " stopped" : ""}`, tabindex: -1, "aria-labelledby": heading.id },
      make("header", {}, heading, this.#eventLink(entry)),
      ...this.#said(entry),
    );
  }

  #eventLink({ sequence }) {
    const { recorded_at: recordedAt } = this.#session.events[sequence - 1];
    const link = make("a", {
      href: `#event-${sequence}`,
      text: `#${sequence}`,
      "aria-label": `Event ${sequence}`,
      on: {
        click: (event) => {
          event.preventDefault();
          this.#openEvent(sequence);
        },
      },
    });
    return make("p", { class: "meta" }, timeElement(recordedAt), " ", link);
  }

  #said(entry) {
    switch (entry.kind) {
      case "user":
        return [textBlock(entry.text)];
      case "assistant":
        return assistantBlocks(entry);
      default:
        return this.#failure(entry);
    }
  }

  #tool(entry) {
    const outcome = "error" in entry ? "failed" : "done";
    const summary = make(
      "summary",
      {},
      make("code", { class: "name", text: entry.name }),
      make("span", { class: "glimpse", text: glimpse(entry.arguments) }),
      make("span", { class: `outcome ${outcome}`, text: outcome }),
    );
    const fold = this.#fold(entry.sequence, summary, () => [
      this.#eventLink(entry),
      make("h3", { text: "Arguments" }),
      codeBlock(readableArguments(entry.arguments), "Arguments"),
      make("h3", { text: "error" in entry ? "Error" : "Result" }),
      "error" in entry
        ? codeBlock(`${entry.error.code}: ${entry.error.message}`, "Error")
        : codeBlock(readable(entry.result), "Result"),
    ]);
    const label = `Tool ${entry.name}, ${outcome}`;
    return make("article", { class: "entry tool", tabindex: -1, "aria-label": label }, fold);
  }

  #failure(entry) {
    const blocks = [
      make(
        "p",
        { class: "reason" },
        make("code", { text: entry.code }),
        make("span", { dir: "auto" }, ...longText(entry.message, SHOWN_N)),
      ),
    ];
    const said = this.#session.unfinished.get(entry.sequence);
    if (said !== undefined) {
      const summary = make("summary", { text: "What had been said until then" });
      blocks.push(this.#fold(entry.sequence, summary, () => [textBlock(said)]));
    }
    return blocks;
  }

  /** Return a fold; its content is made when it is opened, and it is as it was left. */
  #fold(sequence, summary, content) {
    const fold = make("details", {}, summary);
    const fill = () => {
      if (fold.childElementCount === 1) fold.append(make("div", { class: "folded" }, ...content()));
    };
    fold.open = this.#openTools.has(sequence);
    if (fold.open) fill();
    fold.addEventListener("toggle", () => {
      if (fold.open) this.#openTools.add(sequence);
      else this.#openTools.delete(sequence);
      if (fold.open) fill();
    });
    return fold;
  }
}

function assistantBlocks(entry) {
  const blocks = entry.text === "" ? [] : [textBlock(entry.text)];
  if (entry.tool_calls.length > 0) {
    blocks.push(make("p", { class: "calls", text: `Calls ${callNames(entry.tool_calls)}` }));
  } else if (entry.finish_reason !== "stop") {
    blocks.push(make("p", { class: "calls", text: `Ended: ${entry.finish_reason}` }));
  }
  return blocks;
}

function textBlock(text) {
  return make("div", { class: "text", dir: "auto" }, ...longText(text, SHOWN_N));
}

function codeBlock(text, label) {
  // It scrolls by itself: the keyboard must get at it.
  const properties = { tabindex: 0, role: "region", "aria-label": label };
  return make("pre", properties, ...longText(text, SHOWN_N));
}

function glimpse(text) {
  return text.slice(0, 200).replace(/\s+/gu, " ");
}

function estimatedPx(entry) {
  if (entry.kind === "tool") return FOLDED_PX;
  const text = entry.text ?? entry.message;
  const shown = text.slice(0, SHOWN_N);
  const lines = shown.split("\n");
  const linesN = lines.reduce((n, line) => n + Math.ceil(line.length / CHARACTERS_A_LINE), 0);
  return FRAME_PX + LINE_PX * Math.max(1, linesN);
}
