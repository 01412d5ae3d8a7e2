// Long texts, of which the beginning is shown until somebody asks for all.

import { make } from "./dom.js";

/** Return the beginning of a text, not cut between the halves of a character. */
export function beginning(text, charactersN) {
  if (text.length <= charactersN) return text;
  const last = text.charCodeAt(charactersN - 1);
  return text.slice(0, last >= 0xd800 && last <= 0xdbff ? charactersN - 1 : charactersN);
}

/**
 * Have `show(text)` show a text, or of a long one its beginning; return a button that brings the
 * rest and folds it again, null where there is no need of one. A browser takes seconds to lay
 * out a few million characters: only who asks for them waits.
 *
 * `isOpen` tells whether all is shown at first, `toggled(isOpen)` is told before each change.
 */
export function longText(text, shownN, show, { isOpen = false, toggled = () => {} } = {}) {
  if (text.length <= shownN) {
    show(text);
    return null;
  }
  const button = make("button", { type: "button", class: "more" });
  const update = (isWhole) => {
    show(isWhole ? text : beginning(text, shownN));
    button.textContent = isWhole ? "Show less" : `Show all ${text.length.toLocaleString()} characters`;
    button.ariaExpanded = String(isWhole);
  };
  update(isOpen);
  button.addEventListener("click", () => {
    const isWhole = button.ariaExpanded === "false";
    toggled(isWhole);
    update(isWhole);
    // What was read has gone from above the button, which stays with the reader.
    if (!isWhole) button.scrollIntoView({ block: "nearest" });
  });
  return button;
}
