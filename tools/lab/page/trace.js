// The recorded passes, and the state of both memories after any of their steps.

const data = JSON.parse(document.getElementById("trace").textContent);
const LOAD = 0, STORE = 1, COMPUTE = 2, STATISTICS = 3;
const ELEMENT_BYTES = 4;

// Names for the numbers of a step; sizes are in elements.
function named(step) {
  const [kind, line, caller, tile, matrix, row, endRow, column, endColumn] = step;
  return {kind, line, caller, tile, matrix, row, endRow, column, endColumn, size: (endRow - row) * (endColumn - column)};
}

// For each step that sets a tile to zero: the region to which the tile will be stored.
function destinations(pass) {
  const result = new Map(), next = new Map();
  for (let i = pass.steps.length - 1; i >= 0; --i) {
    const step = named(pass.steps[i]);
    if (step.kind === STORE) next.set(step.tile, step);
    if (step.kind === COMPUTE && step.size === 0 && next.has(step.tile)) result.set(i, next.get(step.tile));
    if (step.kind === LOAD || (step.kind === COMPUTE && step.size === 0)) next.delete(step.tile);
  }
  return result;
}

// The state after `position` steps. seek() replays the steps, from the beginning if it has to go back.
class Playback {
  constructor(pass) {
    this.pass = pass;
    this.length = pass.steps.length;
    this.destinations = destinations(pass);
    this.reset();
  }
  reset() {
    this.position = 0;
    this.loads = this.stores = 0;
    this.contents = new Map();  // from a tile's index to the part of a matrix that it holds
    this.loaded = this.pass.matrices.map(() => 0);
    this.stored = this.pass.matrices.map(() => 0);
    this.visited = new Map();  // pairs that were computed, by their text
  }
  seek(position) {
    if (position < this.position) this.reset();
    while (this.position < position) this.apply(named(this.pass.steps[this.position]), this.position++);
  }
  apply(step, index) {
    if (step.kind === LOAD || step.kind === STORE) {
      const counts = step.kind === LOAD ? this.loaded : this.stored;
      counts[step.matrix] += step.size;
      if (step.kind === LOAD) this.loads += step.size; else this.stores += step.size;
      this.contents.set(step.tile, step);
    } else if (step.kind === COMPUTE && step.size === 0) {
      this.contents.set(step.tile, this.destinations.get(index) || {kind: COMPUTE, size: 0});
    } else if (step.kind === COMPUTE) {
      const held = this.contents.get(step.tile);
      if (!held || (held.kind === COMPUTE && held.size > 0)) this.contents.set(step.tile, step);
      this.visited.set([step.row, step.endRow, step.column, step.endColumn].join(), step);
    }
  }
  // The step that was executed last; null before the first.
  current() {
    return this.position === 0 ? null : named(this.pass.steps[this.position - 1]);
  }
  // The tiles that are in fast memory, with their contents.
  tiles() {
    const step = Math.max(0, this.position - 1), list = [];
    this.pass.tiles.forEach(([name, offset, bytes, rows, columns, first, end], index) => {
      if (this.position > 0 && first <= step && step < end) list.push({index, name, offset, bytes, rows, columns, holds: this.contents.get(index)});
    });
    return list;
  }
  // The updates of one row so far: [step, row, maximum, sum].
  updatesOf(row) {
    return this.pass.updates.filter((update) => update[1] === row && update[0] < this.position);
  }
  // The name of a tile's contents: "K[16:32]", "S[0:16, 16:32]"; without rows if the tile is never stored.
  nameOf(region, tileName) {
    if (region.kind === COMPUTE && region.size === 0) return tileName;
    if (region.kind === COMPUTE) return `${tileName}[${region.row}:${region.endRow}, ${region.column}:${region.endColumn}]`;
    const [name, , columns] = this.pass.matrices[region.matrix];
    const isFullWidth = region.column === 0 && region.endColumn === columns;
    return `${name}[${region.row}:${region.endRow}${isFullWidth ? "" : `, ${region.column}:${region.endColumn}`}]`;
  }
}
