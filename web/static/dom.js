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

/** Set an element's text only when it is another: what is read aloud is not repeated. */
export function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}
