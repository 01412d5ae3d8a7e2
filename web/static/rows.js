// A long list of rows of any height, of which only those in sight are in the document.

import { Heights } from "./heights.js";

/** How far beyond its edges the view is filled, so that scrolling shows no gaps. */
const BEYOND_PX = 400;
/** Rows turn out otherwise than estimated, which brings others into sight: at most so often. */
const ROUNDS_N = 8;
const AT_END_PX = 8;
/** What the button to the end covers. */
const EDGE_PX = 48;

/**
 * Keeps the reader's place: a row that is in sight stays where it is while rows are added or
 * change their heights; who has scrolled to the end stays at the end.
 *
 * Rows are named by their index.
 */
export class Rows {
  #scroller;
  #render;
  #estimate;
  #onPlace;
  #heights = new Heights();
  #elements = new Map();
  #anchor = { index: 0, top: 0 };
  #isAtEnd = true;
  #isHeld = false;
  #lastTop = 0;
  #observer = new ResizeObserver(() => this.draw());

  /**
   * `list` holds the rows and stands first in `scroller`; what stands behind it there is in sight
   * at the end. `render(index)` makes a row, `estimate(index)` guesses its height in pixels, and
   * `onPlace()` is called when the reader may have another place.
   */
  constructor(scroller, list, { render, estimate, onPlace = () => {} }) {
    this.#scroller = scroller;
    this.list = list;
    this.#render = render;
    this.#estimate = estimate;
    this.#onPlace = onPlace;
    scroller.addEventListener("scroll", () => this.#scrolled());
    this.#observer.observe(scroller);
    for (const other of scroller.children) if (other !== list) this.#observer.observe(other);
  }

  get length() {
    return this.#heights.length;
  }

  /** Tell whether the reader is at the end, and stays there. */
  get isAtEnd() {
    return this.#isAtEnd;
  }

  /** Tell whether the end is in sight. */
  get seesEnd() {
    const { clientHeight, scrollHeight } = this.#scroller;
    return clientHeight > 0 && this.#top() + clientHeight >= scrollHeight - AT_END_PX;
  }

  /** Return the first row that is in sight. */
  get firstIndex() {
    return this.#heights.find(this.#top());
  }

  /** Return how many rows the view holds, of the height of those in sight. */
  get pageN() {
    const first = this.firstIndex;
    const last = this.#heights.find(this.#top() + this.#scroller.clientHeight);
    return Math.max(1, last - first - 1);
  }

  /** Give the view the keyboard. */
  focus() {
    this.#scroller.focus({ preventScroll: true });
  }

  /** Return the rows that are in the document: the index and the element of each. */
  get drawn() {
    return this.#elements.entries();
  }

  /** Return the element of a row, undefined while it is out of sight. */
  element(index) {
    return this.#elements.get(index);
  }

  /** Have `length` rows, those that were there before unchanged. */
  grow(length) {
    for (let index = this.length; index < length; index += 1) {
      this.#heights.push(this.#estimate(index));
    }
    this.draw();
  }

  /** Have `addedN` rows in the place of `removedN`; the row before them stays where it is. */
  splice(index, removedN, addedN) {
    this.#isAtEnd = false;
    this.#anchor = { index: index - 1, top: this.#heights.offset(index - 1) - this.#top() };
    for (let gone = index; gone < index + removedN; gone += 1) this.refresh(gone);
    const shifted = [...this.#elements].map(([at, element]) => [
      at < index ? at : at + addedN - removedN,
      element,
    ]);
    this.#elements = new Map(shifted);
    for (const [at, element] of shifted) element.setAttribute("aria-posinset", at + 1);
    const added = Array.from({ length: addedN }, (_, n) => this.#estimate(index + n));
    this.#heights.splice(index, removedN, added);
    this.draw();
  }

  /** Have a row made anew when it is drawn next. */
  refresh(index) {
    if (this.#elements.has(index)) this.#remove(index);
  }

  /** Have `length` other rows; at the end, or with the row at `index` on top. */
  replace(length, index = null) {
    for (const key of [...this.#elements.keys()]) this.#remove(key);
    this.#heights = new Heights();
    this.#isAtEnd = index === null;
    this.#anchor = { index: index ?? 0, top: 0 };
    this.grow(length);
  }

  /** Go to the end, and stay there. */
  goToEnd() {
    this.#isAtEnd = true;
    this.draw();
  }

  /** Stay at what is in sight while a row changes its height: a person has asked it to. */
  stay() {
    this.#isHeld = this.#isAtEnd;
    this.#isAtEnd = false;
    this.#hold(this.#top());
  }

  /** Bring a row into sight, if it is not: in the middle, or at the `nearest` edge. */
  show(index, place = "middle") {
    const viewPx = this.#scroller.clientHeight;
    const begin = this.#heights.offset(index) - this.#top();
    const rowPx = this.#heights.at(index);
    if (this.#elements.has(index) && begin >= 0 && begin + rowPx <= viewPx - EDGE_PX) {
      this.#isAtEnd = false; // who goes to a row stays at it
      this.#hold(this.#top());
      return;
    }
    let top = Math.max(0, (viewPx - rowPx) / 2);
    if (place === "nearest") {
      top = begin < 0 ? 0 : Math.max(0, viewPx - rowPx - (index < this.length - 1 ? EDGE_PX : 0));
    }
    this.#isAtEnd = false;
    this.#anchor = { index, top };
    this.draw();
  }

  /** Bring the document up to date with the rows and the reader's place. */
  draw() {
    if (this.#scroller.clientHeight === 0) return; // not shown: it is drawn when it is
    for (let round = 0; round < ROUNDS_N; round += 1) {
      this.#fill();
      if (!this.#measure()) break;
    }
    // Who was at the end and still sees it goes on with it.
    if (this.#isHeld && this.seesEnd) this.#isAtEnd = true;
    this.#isHeld = false;
    this.#lastTop = this.#scroller.scrollTop;
    this.#onPlace();
  }

  #top() {
    return this.#scroller.scrollTop;
  }

  #scrolled() {
    if (this.#scroller.clientHeight === 0) return;
    const top = this.#top();
    const isAtEnd = this.seesEnd;
    // What was added since the last drawing puts the end out of sight: that is no reader's move.
    if (isAtEnd || top < this.#lastTop - 1) this.#isAtEnd = isAtEnd;
    this.#hold(top);
    this.draw();
  }

  /** Take what is at the top of the view for the place to keep. */
  #hold(top) {
    const index = this.#heights.find(top);
    this.#anchor = { index, top: this.#heights.offset(index) - top };
  }

  /** Put the rows in sight into the document, and the view to its place. */
  #fill() {
    const n = this.length;
    const viewPx = this.#scroller.clientHeight;
    const allPx = this.#heights.offset(n);
    const wanted = this.#isAtEnd
      ? allPx - viewPx
      : this.#heights.offset(Math.min(this.#anchor.index, n)) - this.#anchor.top;
    const top = Math.max(0, wanted);
    const first = this.#heights.find(top - BEYOND_PX);
    const last = n === 0 ? -1 : this.#heights.find(top + viewPx + BEYOND_PX);
    for (const index of [...this.#elements.keys()]) {
      if (index < first || index > last) this.#remove(index);
    }
    let next = null;
    for (let index = last; index >= first; index -= 1) {
      const element = this.#elements.get(index) ?? this.#add(index, next);
      element.setAttribute("aria-setsize", n);
      next = element;
    }
    this.list.style.paddingTop = `${this.#heights.offset(first)}px`;
    this.list.style.paddingBottom = `${allPx - this.#heights.offset(last + 1)}px`;
    const end = this.#scroller.scrollHeight - viewPx;
    const place = this.#isAtEnd ? end : Math.min(top, end);
    if (Math.abs(this.#top() - place) > 0.5) this.#scroller.scrollTop = place;
  }

  #add(index, next) {
    const element = this.#render(index);
    element.setAttribute("aria-posinset", index + 1);
    this.#elements.set(index, element);
    this.list.insertBefore(element, next);
    // In the next frame: an observer that is given more to observe while it reports complains.
    requestAnimationFrame(() => {
      if (element.isConnected) this.#observer.observe(element);
    });
    return element;
  }

  #remove(index) {
    const element = this.#elements.get(index);
    // The keyboard goes on from here, not from the top of the page.
    if (element.contains(document.activeElement)) this.#scroller.focus({ preventScroll: true });
    this.#observer.unobserve(element);
    this.#elements.delete(index);
    element.remove();
  }

  /** Learn how high the rows are; tell whether one is not as was thought. */
  #measure() {
    let isOther = false;
    for (const [index, element] of this.#elements) {
      const { height } = element.getBoundingClientRect();
      if (Math.abs(height - this.#heights.at(index)) > 0.25) {
        this.#heights.set(index, height);
        isOther = true;
      }
    }
    return isOther;
  }
}
