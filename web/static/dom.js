// Making elements. Whatever is said is put in as text, never read as markup.

/**
 * Return a new element. `properties` are attributes, except `class`, `text` and `on` (listeners
 * by event); an attribute that is false, null or undefined is left out, true is an empty one.
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "on") {
      for (const [event, listener] of Object.entries(value)) {
        element.addEventListener(event, listener);
      }
    } else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Return the element of the page with this id, which is there. */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * Return nodes that show a text; of a long one the beginning, and a button that brings the rest.
 * A browser takes seconds to lay out a few million characters: only who asks for them waits.
 */
export function longText(text, shownN) {
  if (text.length <= shownN) return [document.createTextNode(text)];
  // Not between the halves of a character.
  const last = text.charCodeAt(shownN - 1);
  const end = last >= 0xd800 && last <= 0xdbff ? shownN - 1 : shownN;
  const shown = document.createTextNode(text.slice(0, end));
  const more = make("button", {
    type: "button",
    class: "more",
    text: `Show all ${text.length.toLocaleString()} characters`,
    on: {
      click: () => {
        shown.nodeValue = text;
        more.remove();
      },
    },
  });
  return [shown, more];
}
