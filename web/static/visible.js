// Text of others, made harmless: what would be invisible or turn the line around is shown as marks.

import { make } from "./dom.js";

/**
 * Kept as they are: a line's end, and a flag whose letters are spelled with tags. Marked: controls
 * but tab and newline, what sets the direction of text, line and paragraph separators, and
 * what has no shape at all. Joiners stay, many scripts and emoji need them.
 */
const UNSEEN =
  /\r\n|\u{1f3f4}[\u{e0030}-\u{e0039}\u{e0061}-\u{e007a}]{3,6}\u{e007f}|([\0-\x08\v-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}])/gu;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const JSON_STRING = /"(?:[^"\\]|\\.)*"/gu;

/** Return the name of a character, as `sessiond show` writes it: `\x1b`, `\u202e`. */
function nameOf(character) {
  if (character === "\r") return "\\r";
  const code = character.codePointAt(0);
  const [letter, digitsN] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${letter}${code.toString(16).padStart(digitsN, "0")}`;
}

/** Tell whether there is anything in a text that is not seen. */
export function hasUnseen(text) {
  return text.search(UNSEEN) !== -1;
}

/** Return a text whose unseen characters are spelled out; for names, titles, and what is spoken. */
export function spelled(text) {
  return text.replace(UNSEEN, (found, unseen) => (unseen === undefined ? found : nameOf(unseen)));
}

/** As `spelled`, in one line. */
export function spelledLine(text) {
  return spelled(text.replace(/\s+/gu, " "));
}

/**
 * Return nodes of a text with a mark for each unseen character, and how many marks there are.
 * Marks hold their characters, so that a copy is the original; after `marksN` marks the
 * characters are spelled out instead.
 */
export function marked(text, marksN = 200) {
  const nodes = [];
  let from = 0;
  let usedN = 0;
  for (const { 0: found, 1: unseen, index } of text.matchAll(UNSEEN)) {
    if (unseen === undefined) continue;
    if (usedN === marksN) break;
    if (index > from) nodes.push(document.createTextNode(text.slice(from, index)));
    nodes.push(mark(unseen));
    usedN += 1;
    from = index + found.length;
  }
  const rest = text.slice(from);
  if (rest !== "") nodes.push(document.createTextNode(usedN === marksN ? spelled(rest) : rest));
  return { nodes, usedN };
}

/** Return a mark. It is a box of its own: what its character does to the direction ends there. */
function mark(character) {
  return make("span", { class: "mark", "data-name": nameOf(character), text: character });
}

/** Return a name of others as an element of its own, which no direction leaves. */
export function named(tag, text, properties = {}) {
  return make(tag, { dir: "auto", ...properties }, ...marked(text).nodes);
}

/**
 * Return nodes of a JSON text. JSON has escapes for what is unseen, so they are used: what is
 * shown and copied means the same. Strings from right to left keep to themselves.
 */
export function jsonNodes(text) {
  const safe = escaped(text);
  if (!RIGHT_TO_LEFT.test(safe)) return [document.createTextNode(safe)];
  const nodes = [];
  let from = 0;
  for (const { 0: string, index } of safe.matchAll(JSON_STRING)) {
    if (!RIGHT_TO_LEFT.test(string)) continue;
    nodes.push(safe.slice(from, index), make("bdi", { text: string }));
    from = index + string.length;
  }
  nodes.push(safe.slice(from));
  return nodes;
}

/** Return a JSON text with unseen characters in JSON's own escapes: it means the same. */
export function escaped(text) {
  return text.replace(UNSEEN, (found, unseen) => {
    if (unseen === undefined) return found;
    const units = Array.from({ length: unseen.length }, (_, index) => unseen.charCodeAt(index));
    return units.map((unit) => `\\u${unit.toString(16).padStart(4, "0")}`).join("");
  });
}
