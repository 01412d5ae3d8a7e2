// What people and models say: text in which code between backticks stands out. Every character of
// it is in the document as text; the backticks are there too, unseen, so that a copy is whole.

import { make } from "./dom.js";
import { hasUnseen, marked, spelled } from "./visible.js";

/** How many elements a text may cost; what comes after them is plain. */
const ELEMENTS_N = 1_000;
const OPENING = /^ {0,3}(`{3,})([^`\n]*)\n?$/u;
const CLOSING = /^ {0,3}(`{3,})[ \t]*\n?$/u;

/** Shows a text that may go on; what is finished of it is not made again. */
export class Prose {
  #parent;
  #text = "";
  /** How much of the text is shown for good: its lines, save the last. */
  #settledN = 0;
  #elementsN = 0;
  /** The block of code that is open: its `ticks`, and the elements `block` and `code`. */
  #open = null;
  /** What was made for the last line, and how things stood before it. */
  #tail = [];
  #before = { open: null, elementsN: 0 };

  /** The text is put into `parent`, which is empty. */
  constructor(parent) {
    this.#parent = parent;
  }

  /** Show this text, which may or may not begin with the one before. */
  show(text) {
    if (!text.startsWith(this.#text)) this.#clear();
    const added = text.slice(this.#text.length);
    this.#text = text;
    if (this.#goesOn(added)) return;
    for (const node of this.#tail) node.remove();
    this.#open = this.#before.open;
    this.#elementsN = this.#before.elementsN;
    const wholeN = text.lastIndexOf("\n") + 1;
    this.#take(text.slice(this.#settledN, wholeN));
    this.#settledN = wholeN;
    this.#tail = [];
    this.#before = { open: this.#open, elementsN: this.#elementsN };
    this.#take(text.slice(wholeN));
  }

  #clear() {
    this.#parent.replaceChildren();
    this.#text = "";
    this.#settledN = 0;
    this.#open = null;
    this.#tail = [];
    this.#before = { open: null, elementsN: 0 };
  }

  /** Add to the last line, if it is plain text and stays so: that keeps a reader's selection. */
  #goesOn(added) {
    if (added === "") return this.#tail.length > 0;
    const [node] = this.#tail;
    if (this.#tail.length !== 1 || node.nodeType !== Node.TEXT_NODE) return false;
    if (/[\n`]/u.test(added) || hasUnseen(added)) return false;
    node.appendData(added);
    return true;
  }

  /** Show lines, of which the last may have no end. */
  #take(text) {
    let plain = "";
    const flush = () => {
      if (plain !== "") this.#put(plain);
      plain = "";
    };
    for (const line of text.match(/[^\n]*\n|[^\n]+$/gu) ?? []) {
      const isMarkup = line.includes("`") && this.#elementsN < ELEMENTS_N;
      if (isMarkup && this.#open !== null && this.#closes(line)) {
        flush();
        this.#endBlock(line);
      } else if (isMarkup && this.#open === null) {
        flush();
        if (OPENING.test(line)) this.#beginBlock(line);
        else this.#inline(line);
      } else {
        plain += line;
      }
    }
    flush();
  }

  #closes(line) {
    return (CLOSING.exec(line)?.[1].length ?? 0) >= this.#open.ticks.length;
  }

  #beginBlock(line) {
    const [, ticks, info] = OPENING.exec(line);
    const language = info.trim();
    const { nodes, usedN } = marked(line.slice(line.lastIndexOf("`") + 1), this.#marksN);
    const code = make("code");
    const fence = make(
      "span",
      { class: language === "" ? "fence" : "fence named" },
      ticked(line.slice(0, line.indexOf("`")) + ticks),
      ...nodes,
    );
    const label = language === "" ? "Code" : `Code, ${spelled(language)}`;
    // It scrolls by itself: the keyboard must get at it.
    const pre = make("pre", { tabindex: 0, role: "group", "aria-label": label }, code);
    const block = make("div", { class: "code", dir: "ltr" }, fence, pre);
    this.#parent.append(block);
    this.#tail.push(block);
    this.#elementsN += 5 + usedN;
    this.#open = { ticks, block, code };
  }

  #endBlock(line) {
    const fence = make("span", { class: "fence" }, ticked(line));
    this.#open.block.append(fence);
    this.#tail.push(fence);
    this.#elementsN += 2;
    this.#open = null;
  }

  /** Show a line in which what stands between equal runs of backticks is code. */
  #inline(line) {
    const parts = line.split(/(`+)/u); // every second one is a run of backticks
    const closing = partners(parts);
    let plain = "";
    for (let index = 0; index < parts.length; index += 1) {
      const end = closing.get(index);
      if (end === undefined || this.#elementsN >= ELEMENTS_N) {
        plain += parts[index];
        continue;
      }
      if (plain !== "") this.#put(plain);
      plain = "";
      const { nodes, usedN } = marked(parts.slice(index + 1, end).join(""), this.#marksN);
      const code = make("code", { dir: "auto" }, ticked(parts[index]), ...nodes, ticked(parts[end]));
      this.#parent.append(code);
      this.#tail.push(code);
      this.#elementsN += 3 + usedN;
      index = end;
    }
    if (plain !== "") this.#put(plain);
  }

  #put(text) {
    const { nodes, usedN } = marked(text, this.#marksN);
    (this.#open?.code ?? this.#parent).append(...nodes);
    for (const node of nodes) this.#tail.push(node);
    this.#elementsN += usedN;
  }

  get #marksN() {
    return Math.max(0, ELEMENTS_N - this.#elementsN);
  }
}

/** Return by each run of backticks that begins code the run that ends it, as indexes. */
function partners(parts) {
  const ends = new Map();
  const next = new Map(); // by length, the run that was met last, from the end
  for (let index = parts.length - 2; index > 0; index -= 2) {
    const { length } = parts[index];
    if (next.has(length)) ends.set(index, next.get(length));
    next.set(length, index);
  }
  return ends;
}

function ticked(ticks) {
  return make("span", { class: "ticks", "aria-hidden": "true", text: ticks });
}
