// Choices, keys and the address. The address's fragment holds the view: #y=loss&x=tokens&log=1&hidden=2,3

const chart = new Chart(byId("chart"));
const view = {y: "loss", x: "step", log: false};
const hidden = new Set();
let cursor = null;  // the x of the cursor

const hasOwn = (object, key) => Object.prototype.hasOwnProperty.call(object, key);
const shown = () => data.runs.map((_, index) => index).filter((index) => !hidden.has(index));

function render() {
  byId("y").value = view.y;
  byId("x").value = view.x;
  byId("log").checked = view.log;
  document.querySelectorAll("#runs button").forEach((button, index) => button.setAttribute("aria-pressed", !hidden.has(index)));
  chart.draw(shown(), view);
  const missing = shown().filter((index) => !chart.drawn.some((one) => one.index === index)).map((index) => data.runs[index].name);
  byId("note").textContent = missing.length > 0 ? `no such curve: ${missing.join(", ")}` : "";
  byId("values").replaceChildren();
  if (cursor !== null) moveCursor(cursor);
}

function update(changes) {
  if (hasOwn(changes, "x") && changes.x !== view.x) cursor = null;
  Object.assign(view, changes);
  render();
  const fragment = new URLSearchParams({y: view.y, x: view.x});
  if (view.log) fragment.set("log", "1");
  if (hidden.size > 0) fragment.set("hidden", [...hidden].map((index) => index + 1).join(","));
  history.replaceState(null, "", `#${fragment}`);
}

function toggleRun(index) {
  if (index >= data.runs.length) return;
  if (!hidden.delete(index)) hidden.add(index);
  update({});
}

function moveCursor(x) {
  if (chart.drawn.length === 0 || Number.isNaN(x)) return;
  const positions = chart.positions();
  cursor = positions.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best));
  showValues(view.x, cursor, chart.pointAt(cursor));
}

function stepCursor(by) {
  if (chart.drawn.length === 0) return;
  const positions = chart.positions();
  const index = cursor === null ? (by > 0 ? -1 : positions.length) : positions.indexOf(cursor);
  moveCursor(positions[Math.min(positions.length - 1, Math.max(0, index + by))]);
}

function next(object, key) {
  const keys = Object.keys(object);
  return keys[(keys.indexOf(key) + 1) % keys.length];
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}
const toggleTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
  const scrolls = event.target.classList && event.target.classList.contains("scroll");
  const jump = event.shiftKey ? 10 : 1;
  const actions = {
    y: () => update({y: next(CURVES, view.y)}), x: () => update({x: next(AXES, view.x)}), l: () => update({log: !view.log}), t: toggleTheme,
    arrowleft: () => stepCursor(-jump), arrowright: () => stepCursor(jump), home: () => stepCursor(-Infinity), end: () => stepCursor(Infinity),
  };
  const key = event.key.toLowerCase();
  if (/^[1-9]$/.test(key)) {
    toggleRun(Number(key) - 1);
  } else if (hasOwn(actions, key) && !(scrolls && key.length > 1)) {
    actions[key]();
  } else {
    return;
  }
  event.preventDefault();
}

function readAddress() {
  let fragment;
  try {
    fragment = new URLSearchParams(location.hash.slice(1));
  } catch {
    return;
  }
  if (hasOwn(CURVES, fragment.get("y"))) view.y = fragment.get("y");
  if (hasOwn(AXES, fragment.get("x"))) view.x = fragment.get("x");
  view.log = fragment.get("log") === "1";
  for (const part of (fragment.get("hidden") ?? "").split(",")) {
    const index = Number(part) - 1;
    if (part !== "" && Number.isInteger(index) && index >= 0 && index < data.runs.length) hidden.add(index);
  }
}

for (const [id, names] of [["y", Object.entries(CURVES).map(([key, {text}]) => [key, text])], ["x", Object.entries(AXES)]])
  byId(id).append(...names.map(([key, text]) => new Option(text, key)));
byId("y").addEventListener("change", () => update({y: byId("y").value}));
byId("x").addEventListener("change", () => update({x: byId("x").value}));
byId("log").addEventListener("change", () => update({log: byId("log").checked}));
byId("theme").addEventListener("click", toggleTheme);
byId("chart").addEventListener("pointermove", (event) => chart.drawn.length > 0 && moveCursor(chart.valueAt(event.clientX)));
byId("chart").addEventListener("pointerdown", (event) => chart.drawn.length > 0 && moveCursor(chart.valueAt(event.clientX)));
document.addEventListener("keydown", onKey);
addEventListener("resize", render);
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
readAddress();
fillRuns(toggleRun);
fillTables();
render();
