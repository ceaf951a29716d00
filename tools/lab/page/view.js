// Draws the state of a Playback.

const byId = (id) => document.getElementById(id);
const grouped = (number) => number.toLocaleString("en-US");

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Matrices and their gradients have one color each.
function colorOf(name) {
  const base = name.replace(/^d/, "").charAt(0).toLowerCase();
  if (name.includes(" ")) return "var(--other)";
  const known = {q: "q", k: "k", v: "v", o: "o", s: "s", p: "s"};
  return `var(--${/^(Q|K|V|O|S|P|dQ|dK|dV|dO|dS|dP)/.test(name) ? known[base] || "other" : "other"})`;
}

const ORDER = ["Q", "K", "V", "S", "P", "O", "m", "l", "LSE", "rescale", "dO", "D", "dP", "dS", "dQ", "dK", "dV"];

const NOTES = {
  "naive forward": "Standard attention. S and P are whole N x N matrices in slow memory. Every operation reads its operands from slow memory and writes its result back.",
  "naive backward": "The backward pass loads P, which the forward pass kept, and writes dP and dS, two more N x N matrices.",
  "memory_efficient forward": "One block of rows and keys after the other, with a running maximum and sum for each row. S is only one block, so memory is linear in N. But the block is stored and loaded by every operation, so the traffic is still quadratic.",
  "memory_efficient backward": "P is not kept. Each block of P is computed again from Q, K and the LSE. The block still goes through slow memory.",
  "flash1 forward": "The outer loop takes a block of K and V, the inner loop all rows. S never leaves the fast memory. O, l and m are loaded and stored again for every block of keys.",
  "flash1 backward": "K, V, dK and dV of a block stay in fast memory while the inner loop goes over all rows. Q, O, dO and dQ are loaded again for every block of keys.",
  "flash2 forward": "The outer loop takes a block of rows, the inner loop all keys. O, l and m stay in fast memory until the rows are finished, and O is stored once. K and V are loaded again for every block of rows.",
  "flash2 backward": "First D = rowsum(dO * O). Then the outer loop is over blocks of K and V again: dK and dV stay in fast memory, and of the results only dQ is stored again for every block of keys.",
};

function place(node, rows, columns, {row, endRow, column, endColumn}) {
  node.style.top = `${100 * row / rows}%`;
  node.style.height = `${100 * (endRow - row) / rows}%`;
  node.style.left = `${100 * column / columns}%`;
  node.style.width = `${100 * (endColumn - column) / columns}%`;
  return node;
}

class View {
  show(playback, row) {
    if (playback !== this.playback) this.prepare(playback);
    const step = playback.current();
    this.showAction(step);
    this.showCounters();
    this.showMatrices(step, row);
    this.showFastMemory(step);
    this.showStatistics(row);
    this.showCode(step);
  }

  prepare(playback) {
    this.playback = playback;
    const {pass} = playback;
    byId("note").textContent = NOTES[`${pass.name} ${pass.pass}`];
    const longest = data.length, scale = Math.min(2.2, 136 / longest);
    const frames = [], figures = [];
    const add = (name, rows, columns, isVirtual) => {
      const figure = element("figure"), frame = element("div", isVirtual ? "matrix virtual" : "matrix"), caption = element("figcaption", "", name);
      frame.style.setProperty("--color", colorOf(isVirtual ? "S" : name));
      frame.style.width = `${Math.max(9, scale * columns)}px`;
      frame.style.height = `${Math.max(9, scale * rows)}px`;
      const counts = element("small");
      caption.append(counts);
      figure.append(frame, caption);
      figures.push(figure);
      frames.push({frame, rows, columns, counts});
    };
    pass.matrices.forEach(([name, rows, columns]) => add(name, rows, columns, false));
    add("query x key", data.length, data.length, true);
    const places = pass.matrices.map(([name], i) => i).sort((a, b) => ORDER.indexOf(pass.matrices[a][0]) - ORDER.indexOf(pass.matrices[b][0]));
    byId("matrices").replaceChildren(...places.map((i) => figures[i]), figures[figures.length - 1]);
    this.frames = frames;
    for (const line of byId("totals").querySelectorAll("tbody tr")) line.classList.toggle("chosen", line.dataset.pass === `${pass.name} ${pass.pass}`);
  }

  showAction(step) {
    const {playback} = this, action = byId("action");
    if (!step) {
      action.textContent = "Before the first step. All inputs are in slow memory.";
      return;
    }
    const tile = step.tile < 0 ? "" : playback.pass.tiles[step.tile][0];
    const rows = step.endRow - step.row === 1 ? `row ${step.row}` : `rows ${step.row} to ${step.endRow - 1}`;
    if (step.kind === LOAD || step.kind === STORE) {
      const verb = element("span", step.kind === LOAD ? "load" : "store", step.kind === LOAD ? "Load" : "Store");
      action.replaceChildren(verb, ` ${playback.nameOf(step)}: ${grouped(step.size)} element${step.size === 1 ? "" : "s"} ${step.kind === LOAD ? "to" : "from"} fast memory`);
    } else if (step.kind === STATISTICS) {
      action.textContent = `Update the running maximum and sum of ${rows}`;
    } else if (step.size === 0) {
      action.textContent = `Set ${tile} in fast memory to its initial value`;
    } else {
      action.textContent = `Compute ${tile} for ${rows} and keys ${step.column} to ${step.endColumn - 1}`;
    }
  }

  showCounters() {
    const {playback} = this, used = playback.tiles().reduce((sum, tile) => Math.max(sum, tile.offset + tile.bytes), 0);
    for (const [id, value] of [["loads", playback.loads], ["stores", playback.stores], ["bytes", ELEMENT_BYTES * (playback.loads + playback.stores)], ["fast", used]]) {
      byId(id).textContent = grouped(value);
      byId(id).dataset.value = value;
    }
    byId("position").textContent = `step ${grouped(playback.position)} of ${grouped(playback.length)}`;
    byId("step").max = playback.length;
    byId("step").value = playback.position;
  }

  showMatrices(step, row) {
    const {playback} = this, parts = this.frames.map(() => []);
    for (const {holds} of playback.tiles())
      if (holds && holds.kind !== COMPUTE) parts[holds.matrix].push(["resident", holds]);
    const pairs = this.frames.length - 1;
    for (const region of playback.visited.values()) parts[pairs].push(["visited", region]);
    if (step && step.kind === COMPUTE && step.size > 0) parts[pairs].push(["resident", step]);
    parts[pairs].push(["row", {row, endRow: row + 1, column: 0, endColumn: data.length}]);
    if (step && (step.kind === LOAD || step.kind === STORE)) parts[step.matrix].push([step.kind === LOAD ? "load" : "store", step]);
    this.frames.forEach(({frame, rows, columns, counts}, i) => {
      frame.replaceChildren(...parts[i].map(([name, region]) => place(element("i", name), rows, columns, region)));
      if (i === pairs) {
        counts.textContent = `${rows} x ${columns}, line: row ${row}`;
        return;
      }
      const times = (elements) => +(elements / (rows * columns)).toFixed(1);
      counts.textContent = `${rows} x ${columns}`;
      counts.append(element("br"), `loaded ${times(playback.loaded[i])}x`, element("br"), `stored ${times(playback.stored[i])}x`);
    });
  }

  showFastMemory(step) {
    const bar = [], chips = [];
    for (const tile of this.playback.tiles()) {
      const held = tile.holds, region = held ? this.playback.nameOf(held, tile.name) : tile.name;
      // If a tile and its matrix have different names, both are shown: "x = Q[0:16]" was loaded, "l →
      // LSE[0:16]" will be or was stored.
      const isAlike = region.startsWith(`${tile.name}[`) || region === tile.name;
      const name = isAlike ? region : `${tile.name} ${held.kind === LOAD ? "=" : "→"} ${region}`;
      const color = colorOf(held && held.kind !== COMPUTE ? this.playback.pass.matrices[held.matrix][0] : tile.name);
      const active = step && step.tile === tile.index, classes = `${held ? "" : "empty"} ${active ? "active" : ""}`;
      const part = 100 * tile.bytes / data.fast_memory;
      const block = element("i", classes, part > 7 ? tile.name : "");
      block.style.left = `${100 * tile.offset / data.fast_memory}%`;
      block.style.width = `${part}%`;
      block.style.setProperty("--color", color);
      bar.push(block);
      const chip = element("li", active ? "active" : "", `${name} · ${grouped(tile.bytes)} B`);
      chip.style.setProperty("--color", color);
      chips.push(chip);
    }
    byId("bar").replaceChildren(...bar);
    byId("tiles").replaceChildren(...chips);
  }

  showStatistics(row) {
    const updates = this.playback.updatesOf(row), panel = byId("statistics");
    if (this.playback.pass.pass === "backward") {
      panel.replaceChildren(element("p", "", "The backward pass has no running statistics. It reads what the forward pass kept: P (naive), l and m (flash1) or the LSE."));
      return;
    }
    const table = element("table"), head = element("thead"), body = element("tbody"), titles = element("tr");
    for (const title of ["update", "maximum m", "sum l", "m + ln l"]) titles.append(element("th", "", title));
    head.append(titles);
    updates.slice(-4).forEach((update, i, shown) => {
      const line = element("tr", i === shown.length - 1 ? "now" : ""), first = element("td", "", updates.length - shown.length + i + 1);
      const [step, , maximum, sum] = update;
      first.append(element("span", "step", ` (step ${grouped(step + 1)})`));
      line.append(first);
      for (const text of [maximum.toFixed(4), sum.toFixed(4), (maximum + Math.log(sum)).toFixed(4)]) line.append(element("td", "", text));
      body.append(line);
    });
    table.append(head, body);
    panel.replaceChildren(updates.length > 0 ? table : element("p", "", "No score of this row was computed yet: m = -∞, l = 0."));
  }

  showCode(step) {
    const {pass} = this.playback, code = byId("code");
    const codeLine = step ? pass.lines[step.line] : null, file = codeLine ? data.files[codeLine[0]] : null;
    const from = step && step.caller >= 0 ? pass.lines[step.caller] : null;
    byId("file").textContent = codeLine ? `${file}, line ${codeLine[1]}` : "";
    byId("caller").textContent = from ? `called by ${data.files[from[0]]}, line ${from[1]}: ${data.sources[data.files[from[0]]].split("\n")[from[1] - 1].trim()}` : "";
    if (file !== this.file) {
      this.file = file;
      const lines = file ? data.sources[file].split("\n") : [];
      code.replaceChildren(...lines.map((text, i) => {
        const line = element("div", /^\s*\/\//.test(text) ? "comment" : "", text || " ");
        line.dataset.line = i + 1;
        return line;
      }));
      this.line = null;
    }
    if (this.line) this.line.classList.remove("current");
    this.line = codeLine ? code.children[codeLine[1] - 1] : null;
    if (!this.line) return;
    this.line.classList.add("current");
    const top = this.line.offsetTop - code.offsetTop;
    if (top < code.scrollTop + 20 || top > code.scrollTop + code.clientHeight - 60) code.scrollTop = top - code.clientHeight / 2;
  }
}

function showTotals(choose) {
  const table = byId("totals"), head = element("thead"), body = element("tbody"), titles = element("tr");
  for (const title of ["algorithm", "pass", "block", "loads", "stores", "bytes", "slow peak, bytes", "fast peak, bytes", "steps"]) titles.append(element("th", "", title));
  head.append(titles);
  for (const pass of data.passes) {
    const line = element("tr");
    line.dataset.pass = `${pass.name} ${pass.pass}`;
    for (const value of [pass.name, pass.pass, `${pass.block_rows} x ${pass.block_keys}`, pass.loads, pass.stores, pass.slow_bytes, pass.peak_bytes, pass.peak_fast_bytes, pass.steps.length])
      line.append(element("td", "", typeof value === "number" ? grouped(value) : value));
    line.addEventListener("click", () => choose(pass.name, pass.pass));
    body.append(line);
  }
  table.replaceChildren(head, body);
}
