// Buttons, keys and the address. The address's fragment holds the view: #algorithm=flash2&pass=forward&step=12&speed=10&row=5

const SPEEDS = [1, 2, 5, 10, 25, 50, 100, 500];
const ALGORITHMS = [...new Set(data.passes.map((pass) => pass.name))];
const PASSES = [...new Set(data.passes.map((pass) => pass.pass))];
const playbacks = new Map(data.passes.map((pass) => [`${pass.name} ${pass.pass}`, new Playback(pass)]));
const view = new View();
const chosen = {algorithm: "flash2", pass: "forward", step: 0, speed: 10, row: 0};
let playing = false;

const playback = () => playbacks.get(`${chosen.algorithm} ${chosen.pass}`);
const clamped = (value, low, high) => Math.min(high, Math.max(low, value));

function render() {
  playback().seek(chosen.step);
  view.show(playback(), chosen.row);
  for (const button of document.querySelectorAll("[role=radio]")) {
    const isChosen = button.dataset.value === chosen[button.dataset.member];
    button.setAttribute("aria-checked", isChosen);
    button.tabIndex = isChosen ? 0 : -1;
  }
  byId("play").textContent = playing ? "⏸ Pause" : "▶ Play";
  byId("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  byId("action").setAttribute("aria-live", playing ? "off" : "polite");
  byId("speed").value = chosen.speed;
  if (document.activeElement !== byId("row")) byId("row").value = chosen.row;
}

// Browsers limit how often a page may change its address, so playing changes it only at its end.
function writeAddress() {
  const {algorithm, pass, step, speed, row} = chosen;
  history.replaceState(null, "", `#${new URLSearchParams({algorithm, pass, step, speed, row})}`);
}

function update(changes) {
  Object.assign(chosen, changes);
  chosen.step = clamped(chosen.step, 0, playback().length);
  render();
  if (!playing) writeAddress();
}

function choose(algorithm, pass) {
  setPlaying(false);
  update({algorithm, pass, step: 0});
}

function setPlaying(value) {
  if (value === playing) return;
  if (value && chosen.step === playback().length) chosen.step = 0;
  playing = value;
  update({});
  if (!playing) return;
  let last = performance.now(), due = 0;
  const tick = (now) => {
    if (!playing) return;
    due += (now - last) * chosen.speed / 1000;
    last = now;
    const steps = Math.floor(due);
    due -= steps;
    if (steps > 0) update({step: chosen.step + steps});
    if (chosen.step === playback().length) setPlaying(false);
    else requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}

function move(steps) {
  setPlaying(false);
  update({step: chosen.step + steps});
}

function changeSpeed(direction) {
  const index = SPEEDS.findIndex((speed) => speed >= chosen.speed);
  update({speed: SPEEDS[clamped(index + direction, 0, SPEEDS.length - 1)]});
}

// Returns the number that `text` of the address states, or `present` if `text` is not a number.
function numberOf(text, present) {
  return /^[0-9]{1,9}$/.test(text || "") ? Number(text) : present;
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  playing = false;
  update({
    algorithm: ALGORITHMS.includes(given.get("algorithm")) ? given.get("algorithm") : chosen.algorithm,
    pass: PASSES.includes(given.get("pass")) ? given.get("pass") : chosen.pass,
    step: numberOf(given.get("step"), chosen.step),
    speed: SPEEDS.includes(Number(given.get("speed"))) ? Number(given.get("speed")) : chosen.speed,
    row: clamped(numberOf(given.get("row"), chosen.row), 0, data.length - 1),
  });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}
const toggleTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

// A group of radio buttons; arrow keys move inside the group.
function addChoices(group, member, values, onChoice) {
  values.forEach((value) => {
    const button = element("button", "", value);
    button.type = "button";
    button.setAttribute("role", "radio");
    button.dataset.member = member;
    button.dataset.value = value;
    button.addEventListener("click", () => onChoice(value));
    group.append(button);
  });
  group.addEventListener("keydown", (event) => {
    const direction = {ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1}[event.key];
    if (!direction) return;
    event.preventDefault();
    event.stopPropagation();
    const next = values[(values.indexOf(chosen[member]) + direction + values.length) % values.length];
    onChoice(next);
    group.querySelector(`[data-value="${next}"]`).focus();
  });
}

function onKey(event) {
  const tag = event.target.tagName;
  if (event.ctrlKey || event.altKey || event.metaKey || tag === "SELECT" || tag === "INPUT") return;
  if (event.key === " " && (tag === "BUTTON" || tag === "SUMMARY")) return;  // the browser presses the button
  const jump = event.shiftKey ? 25 : 1;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const actions = {
    " ": () => setPlaying(!playing), ArrowLeft: () => move(-jump), ArrowRight: () => move(jump),
    Home: () => move(-playback().length), End: () => move(playback().length),
    f: () => choose(chosen.algorithm, "forward"), b: () => choose(chosen.algorithm, "backward"),
    "-": () => changeSpeed(-1), "+": () => changeSpeed(1), t: toggleTheme,
  };
  ALGORITHMS.forEach((name, i) => { actions[String(i + 1)] = () => choose(name, chosen.pass); });
  if (!Object.hasOwn(actions, key)) return;
  event.preventDefault();
  actions[key]();
}

byId("setup").textContent = `One head, N = ${data.length} queries and keys, head dim d = ${data.head_dim}, float32, a fast memory of ${grouped(data.fast_memory)} bytes. ` +
  "Every step below was recorded by gradtile lab while the algorithms ran on a memory that counts its loads and stores.";
byId("capacity").textContent = `of ${grouped(data.fast_memory)} bytes of fast memory in use`;
byId("row").max = data.length - 1;
for (const speed of SPEEDS) byId("speed").append(new Option(speed, speed));
addChoices(byId("algorithms"), "algorithm", ALGORITHMS, (value) => choose(value, chosen.pass));
addChoices(byId("passes"), "pass", PASSES, (value) => choose(chosen.algorithm, value));
showTotals(choose);
byId("first").addEventListener("click", () => move(-playback().length));
byId("back").addEventListener("click", () => move(-1));
byId("play").addEventListener("click", () => setPlaying(!playing));
byId("forward").addEventListener("click", () => move(1));
byId("last").addEventListener("click", () => move(playback().length));
byId("step").addEventListener("input", (event) => { setPlaying(false); update({step: Number(event.target.value)}); });
byId("speed").addEventListener("change", (event) => update({speed: Number(event.target.value)}));
byId("row").addEventListener("input", (event) => update({row: clamped(Math.floor(Number(event.target.value)) || 0, 0, data.length - 1)}));
byId("theme").addEventListener("click", toggleTheme);
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", readAddress);
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
readAddress();
