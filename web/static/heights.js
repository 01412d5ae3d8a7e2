// Where each of many rows begins, when rows change their heights: a Fenwick tree of sums.

export class Heights {
  #heights = [];
  #sums = [0];

  get length() {
    return this.#heights.length;
  }

  /** Return the height of a row. */
  at(index) {
    return this.#heights[index];
  }

  /** Add a row at the end. */
  push(height) {
    const node = this.#heights.push(height);
    // What a node sums up are the rows since the one that it has without its lowest bit.
    let sum = height;
    for (let child = node - 1; child > (node & (node - 1)); child &= child - 1) {
      sum += this.#sums[child];
    }
    this.#sums.push(sum);
  }

  /** Change the height of a row. */
  set(index, height) {
    const difference = height - this.#heights[index];
    this.#heights[index] = height;
    for (let node = index + 1; node < this.#sums.length; node += node & -node) {
      this.#sums[node] += difference;
    }
  }

  /** Put rows of these heights in the place of `removedN` rows. */
  splice(index, removedN, added) {
    const [before, after] = [this.#heights.slice(0, index), this.#heights.slice(index + removedN)];
    this.#heights = [];
    this.#sums = [0];
    for (const height of [...before, ...added, ...after]) this.push(height);
  }

  /** Return where a row begins; that of the row after the last one is the height of all. */
  offset(index) {
    let sum = 0;
    for (let node = index; node > 0; node &= node - 1) sum += this.#sums[node];
    return sum;
  }

  /** Return the row in which this offset lies, the first or last one if it lies outside. */
  find(offset) {
    let node = 0;
    let rest = offset;
    for (let bit = 1 << 30; bit > 0; bit >>= 1) {
      const next = node + bit;
      if (next < this.#sums.length && this.#sums[next] <= rest) {
        node = next;
        rest -= this.#sums[next];
      }
    }
    return Math.max(0, Math.min(node, this.#heights.length - 1));
  }
}
