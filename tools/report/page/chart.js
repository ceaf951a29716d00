// The curves: scales, paths and the cursor. All strings are inserted as text, never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const CURVES = {
  loss: {label: "loss (nats per token)", text: "loss, training and validation"},
  train: {label: "training loss (nats per token)", text: "training loss"},
  val_loss: {label: "validation loss (nats per token)", text: "validation loss"},
  lr: {label: "learning rate", text: "learning rate"},
  grad_norm: {label: "gradient norm before clipping", text: "gradient norm"},
  tokens_per_s: {label: "tokens per second", text: "tokens per second"},
};
const AXES = {step: "step", tokens: "tokens", seconds: "training time"};
// The name of the SVG namespace, taken from a parsed element: the page names no address.
const SVG = new DOMParser().parseFromString("<svg/>", "text/html").querySelector("svg").namespaceURI;
const DASHES = ["", "second", "third"];

function element(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const color = (index) => `--color: var(--c${index % 8})`;
const dash = (index) => DASHES[Math.floor(index / 8) % DASHES.length];

function readable(value) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(3);
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(5)));
}

function duration(seconds) {
  const wholeSeconds = Math.round(seconds);
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const pad = (part) => String(part).padStart(2, "0");
  const hours = Math.floor(wholeSeconds / 3600), minutes = Math.floor(wholeSeconds / 60) % 60;
  return hours > 0 ? `${hours}:${pad(minutes)}:${pad(wholeSeconds % 60)}` : `${minutes}:${pad(wholeSeconds % 60)}`;
}

const readableX = (axis, value) => (axis === "seconds" ? duration(value) : readable(value));

// The points [x, y] of a column. A value that is unknown or not finite has no point.
function pointsOf(columns, axis, member) {
  const points = [];
  columns[axis].forEach((x, i) => {
    const y = columns[member][i];
    if (x !== null && y !== null) points.push([x, y]);
  });
  return points;
}

// The mean over a centred window of a fiftieth of the curve, shorter at its ends, where the curve is steep.
function smoothed(points) {
  const sums = [0];
  for (const [, y] of points) sums.push(sums[sums.length - 1] + y);
  return points.map(([x], i) => {
    const reach = Math.min(Math.floor(points.length / 100), i, points.length - 1 - i);
    return [x, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)];
  });
}

// The series of one run: {points, kind} with kind "train" or "evaluation".
function seriesOf(run, curve, axis) {
  const series = [];
  if (curve !== "val_loss") series.push({kind: "train", points: pointsOf(run.steps, axis, curve === "train" ? "loss" : curve)});
  if (curve === "val_loss" || curve === "loss") series.push({kind: "evaluation", points: pointsOf(run.evaluations, axis, "val_loss")});
  return series.filter((one) => one.points.length > 0);
}

function tickDistance(range, count) {
  const raw = range / count, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((factor) => factor * power).find((distance) => raw <= distance * (1 + 1e-9));
}

// A scale maps values to positions and has ticks.
function linearScale(low, high, from, to, count) {
  if (!(high > low)) [low, high] = [low - Math.max(Math.abs(low), 1) / 2, high + Math.max(Math.abs(high), 1) / 2];
  const distance = tickDistance(high - low, count), ticks = [];
  // "+ 0" turns -0 into 0, because -0 would be shown with its sign. The loop counts from 0, because adding 1
  // to a number beyond 2^53 does not change it.
  const first = Math.ceil(low / distance - 1e-9) + 0, last = high / distance + 1e-9;
  for (let i = 0; Number.isFinite(distance) && i <= 2 * count && first + i <= last; ++i) ticks.push((first + i) * distance);
  return {low, high, ticks, at: (value) => from + (value - low) / (high - low) * (to - from)};
}

function logScale(low, high, from, to) {
  if (!(high > low)) [low, high] = [low / 2, high * 2];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power)
    for (const factor of high / low > 1000 ? [1] : high / low > 20 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8]) {
      const tick = factor * 10 ** power;
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  return {low, high, ticks, at: (value) => from + Math.log(value / low) / Math.log(high / low) * (to - from)};
}

class Chart {
  constructor(place) {
    this.place = place;
    this.drawn = [];
  }

  // Draws the runs in `shown`. Sets drawn to the series with their scales, for the cursor.
  draw(shown, view) {
    const width = Math.max(300, this.place.clientWidth), narrow = width < 560;
    const height = Math.round(Math.max(260, Math.min(460, width * 0.5)));
    const margin = {left: 58, right: 14, top: 14, bottom: 46};
    this.axis = view.x;
    this.drawn = shown.flatMap((index) =>
      seriesOf(data.runs[index], view.y, view.x).map((one) => ({
        ...one, index, points: view.log ? one.points.filter(([, y]) => y > 0) : one.points,
      })).filter((one) => one.points.length > 0));
    const svg = element("svg", {viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true"});
    this.place.replaceChildren(svg);
    this.svg = svg;
    this.cursor = null;
    this.size = {width, height, margin};
    if (this.drawn.length === 0) {
      svg.append(element("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, "nothing to draw"));
      return;
    }
    let lowX = Infinity, highX = -Infinity, lowY = Infinity, highY = -Infinity;
    for (const {points} of this.drawn)
      for (const [x, y] of points) {
        lowX = Math.min(lowX, x);
        highX = Math.max(highX, x);
        lowY = Math.min(lowY, y);
        highY = Math.max(highY, y);
      }
    this.x = linearScale(Math.min(lowX, highX / 2 > lowX ? 0 : lowX), highX, margin.left, width - margin.right, narrow ? 4 : 8);
    this.y = (view.log ? logScale : linearScale)(lowY, highY, height - margin.bottom, margin.top, 6);
    this.drawGrid(view);
    for (const one of this.drawn) this.drawSeries(one);
  }

  drawGrid(view) {
    const {width, height, margin} = this.size, bottom = height - margin.bottom;
    for (const tick of this.y.ticks) {
      const y = this.y.at(tick);
      this.svg.append(element("line", {class: "grid", x1: margin.left, x2: width - margin.right, y1: y, y2: y}),
        element("text", {x: margin.left - 6, y: y + 4, "text-anchor": "end"}, readable(tick)));
    }
    for (const tick of this.x.ticks) {
      const x = this.x.at(tick), last = x > width - 40;
      this.svg.append(element("line", {class: "grid", x1: x, x2: x, y1: margin.top, y2: bottom}),
        element("text", {x: last ? width - 4 : x, y: bottom + 18, "text-anchor": last ? "end" : "middle"}, readableX(view.x, tick)));
    }
    this.svg.append(element("text", {x: (margin.left + width - margin.right) / 2, y: height - 8, "text-anchor": "middle"},
      `${CURVES[view.y].label} by ${AXES[view.x]}`));
  }

  path(points) {
    return points.map(([x, y], i) => `${i === 0 ? "M" : "L"}${this.x.at(x).toFixed(1)} ${this.y.at(y).toFixed(1)}`).join("");
  }

  drawSeries({points, kind, index}) {
    const add = (more, drawn) => this.svg.append(element("path", {class: `curve ${more} ${dash(index)}`, style: color(index), d: this.path(drawn), "data-run": index, "data-kind": kind}));
    if (kind === "evaluation") {
      add("evaluation", points);
      if (points.length <= 200)
        for (const [x, y] of points) this.svg.append(element("circle", {class: "dot", style: color(index), cx: this.x.at(x), cy: this.y.at(y), r: 3.5}));
      return;
    }
    if (points.length >= 100) add("thin", points);
    add("", points.length >= 100 ? smoothed(points) : points);
  }

  // All x of the drawn points, in order.
  positions() {
    return [...new Set(this.drawn.flatMap(({points}) => points.map(([x]) => x)))].sort((a, b) => a - b);
  }

  valueAt(clientX) {
    const box = this.svg.getBoundingClientRect(), {width, margin} = this.size;
    const part = ((clientX - box.left) / box.width * width - margin.left) / (width - margin.left - margin.right);
    return this.x.low + part * (this.x.high - this.x.low);
  }

  // Moves the cursor. Returns the point of each series that is nearest to x.
  pointAt(x) {
    const {height, margin} = this.size;
    if (this.cursor) this.cursor.remove();
    this.cursor = element("g");
    const position = this.x.at(x);
    this.cursor.append(element("line", {class: "cursor", x1: position, x2: position, y1: margin.top, y2: height - margin.bottom}));
    const found = this.drawn.map(({points, kind, index}) => {
      let low = 0, high = points.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (points[middle][0] < x) low = middle + 1;
        else high = middle;
      }
      if (low > 0 && x - points[low - 1][0] < points[low][0] - x) low -= 1;
      return {index, kind, x: points[low][0], y: points[low][1]};
    });
    for (const one of found) this.cursor.append(element("circle", {class: "dot", style: color(one.index), cx: this.x.at(one.x), cy: this.y.at(one.y), r: 5}));
    this.svg.append(this.cursor);
    return found;
  }
}
