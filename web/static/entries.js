// The entries of the transcript, each as an element.

import { make } from "./dom.js";
import { longText } from "./longtext.js";
import { Prose } from "./prose.js";
import { isSameDay, timeElement } from "./times.js";
import { jsonNodes, marked, named, spelled } from "./visible.js";
import { distinctNames, isStop, outcome, readableArguments } from "./words.js";

const SHOWN_N = 20_000;
const LINE_PX = 26;
const FRAME_PX = 52;
const DAY_PX = 48;
const CHARACTERS_A_LINE = 72;
const FOLDED_PX = 44;

const WHO = { user: "You", assistant: "Assistant", failure: "Failure" };

export class Entries {
  #session;
  #openEvent;
  #stay;
  /** What a person has unfolded: it is as they left it when it comes into sight again. */
  #unfolded = new Set();

  /**
   * `openEvent(sequence)` shows the event behind an entry; `stay()` is told before an entry is
   * unfolded or folded.
   */
  constructor(session, { openEvent, stay }) {
    this.#session = session;
    this.#openEvent = openEvent;
    this.#stay = stay;
  }

  /** Forget what was unfolded. */
  forget() {
    this.#unfolded.clear();
  }

  /** Guess how high an entry is, in pixels. */
  estimatedPx(index) {
    const entry = this.#session.entries[index];
    const dayPx = this.#beginsDay(index) ? DAY_PX : 0;
    if (entry.kind === "tool") return FOLDED_PX + dayPx;
    const lines = (entry.text ?? entry.message).slice(0, SHOWN_N).split("\n");
    const linesN = lines.reduce((n, line) => n + Math.ceil(line.length / CHARACTERS_A_LINE), 0);
    return FRAME_PX + dayPx + LINE_PX * Math.max(1, linesN);
  }

  /** Return a new element of an entry. */
  element(index) {
    const entry = this.#session.entries[index];
    const date = this.#beginsDay(index)
      ? make("p", { class: "day" }, timeElement(this.#recordedAt(entry), "day"))
      : null;
    if (entry.kind === "tool") return this.#tool(entry, date);
    const isStopped = entry.kind === "failure" && isStop(entry);
    const who = isStopped ? "Stopped" : WHO[entry.kind];
    const heading = make("h3", { class: "who", id: `entry-${entry.sequence}`, text: who });
    const kind = isStopped ? "stopped" : entry.kind;
    return make(
      "article",
      { class: `entry ${kind}`, tabindex: -1, "aria-labelledby": heading.id },
      date,
      make("header", {}, heading, this.#eventLink(entry)),
      ...this.#said(entry, isStopped),
    );
  }

  #recordedAt({ sequence }) {
    return this.#session.events[sequence - 1].recorded_at;
  }

  #beginsDay(index) {
    if (index === 0) return true;
    const [one, other] = [index - 1, index].map((at) => this.#session.entries[at]);
    return !isSameDay(this.#recordedAt(one), this.#recordedAt(other));
  }

  #eventLink(entry) {
    const { sequence } = entry;
    const link = make("a", {
      href: `#event-${sequence}`,
      text: `#${sequence}`,
      "aria-label": `Event ${sequence}`,
      on: {
        click: (event) => {
          // With a key held it is the browser's: another tab, another window.
          if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
          event.preventDefault();
          this.#openEvent(sequence);
        },
      },
    });
    return make("p", { class: "meta" }, timeElement(this.#recordedAt(entry), "short"), " ", link);
  }

  // --- what was said ----------------------------------------------------------------------------

  #said(entry, isStopped) {
    if (entry.kind === "user") return this.#text(entry.sequence, "text", entry.text);
    if (entry.kind === "assistant") return this.#answer(entry);
    const reason = isStopped
      ? make("p", { class: "reason", text: "This turn was stopped." })
      : this.#reason(entry);
    const said = this.#session.unfinished.get(entry.sequence);
    if (said === undefined) return [reason];
    const summary = make("summary", { text: "What had been said until then" });
    const content = () => this.#text(entry.sequence, "unfinished", said);
    return [reason, this.#fold(entry.sequence, summary, content)];
  }

  #answer(entry) {
    const blocks = entry.text === "" ? [] : this.#text(entry.sequence, "text", entry.text);
    if (entry.tool_calls.length > 0) {
      blocks.push(make("p", { class: "calls" }, "Calls ", ...callNodes(entry.tool_calls)));
    } else if (entry.finish_reason !== "stop") {
      blocks.push(make("p", { class: "calls" }, "Ended: ", named("bdi", entry.finish_reason)));
    }
    return blocks;
  }

  #reason(entry) {
    const message = make("span", { dir: "auto" });
    const button = this.#long(entry.sequence, "reason", entry.message, (text) => {
      message.replaceChildren(...marked(text).nodes);
    });
    return make("p", { class: "reason" }, named("code", entry.code), message, button);
  }

  /** Return what shows a text as people and models write it. */
  #text(sequence, part, text) {
    const block = make("div", { class: "text", dir: "auto" });
    const prose = new Prose(block);
    const button = this.#long(sequence, part, text, (shown) => prose.show(shown));
    return button === null ? [block] : [block, button];
  }

  /** As `longText`, and it is as it was left. */
  #long(sequence, part, text, show) {
    const key = `${sequence} ${part}`;
    return longText(text, SHOWN_N, show, {
      isOpen: this.#unfolded.has(key),
      toggled: (isOpen) => {
        this.#stay();
        this.#remember(key, isOpen);
      },
    });
  }

  #remember(key, isOpen) {
    if (isOpen) this.#unfolded.add(key);
    else this.#unfolded.delete(key);
  }

  // --- tools ------------------------------------------------------------------------------------

  #tool(entry, date) {
    const { name: ended, tone } = outcome(entry);
    const summary = make(
      "summary",
      {},
      named("code", entry.name, { class: "name" }),
      make("span", { class: "glimpse" }, ...marked(glimpse(entry.arguments)).nodes),
      make("span", { class: `outcome ${tone}`, text: ended }),
    );
    const fold = this.#fold(entry.sequence, summary, () => [
      this.#eventLink(entry),
      ...this.#given(entry),
      ...this.#outcome(entry),
    ]);
    const label = `Tool ${spelled(entry.name)}, ${ended}`;
    return make("article", { class: "entry tool", tabindex: -1, "aria-label": label }, date, fold);
  }

  #given({ sequence, arguments: text }) {
    const json = readableArguments(text);
    const nodes = json === null ? plainNodes : jsonNodes;
    return this.#block(sequence, "Arguments", json ?? text, nodes);
  }

  #outcome(entry) {
    const { sequence, error, result } = entry;
    if (error !== undefined) {
      return this.#block(sequence, "Error", `${error.code}: ${error.message}`, plainNodes);
    }
    return typeof result === "string"
      ? this.#block(sequence, "Result", result, plainNodes)
      : this.#block(sequence, "Result", JSON.stringify(result, null, 2), jsonNodes);
  }

  #block(sequence, label, text, nodesOf) {
    // It scrolls by itself: the keyboard must get at it.
    const direction = nodesOf === plainNodes ? "auto" : "ltr";
    const pre = make("pre", { tabindex: 0, role: "group", "aria-label": label, dir: direction });
    const show = (shown) => pre.replaceChildren(...nodesOf(shown));
    const button = this.#long(sequence, label, text, show);
    return [make("h4", { text: label }), pre, ...(button === null ? [] : [button])];
  }

  /** Return a fold; its content is made when it is opened. */
  #fold(sequence, summary, content) {
    const key = `${sequence} fold`;
    const fold = make("details", {}, summary);
    const fill = () => {
      if (fold.childElementCount === 1) fold.append(make("div", { class: "folded" }, ...content()));
    };
    fold.open = this.#unfolded.has(key);
    if (fold.open) fill();
    summary.addEventListener("click", () => this.#stay());
    fold.addEventListener("toggle", () => {
      this.#remember(key, fold.open);
      if (fold.open) fill();
    });
    return fold;
  }
}

/** Return nodes of the names of tool calls, each once, as a sentence lists them. */
export function callNodes(calls) {
  const names = distinctNames(calls);
  return names.flatMap((name, index) => {
    const before = index === 0 ? [] : [index === names.length - 1 ? " and " : ", "];
    return [...before, named("code", name)];
  });
}

function plainNodes(text) {
  return marked(text).nodes;
}

function glimpse(text) {
  return text.slice(0, 200).replace(/\s+/gu, " ");
}
