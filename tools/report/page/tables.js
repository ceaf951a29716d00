// The tables of results and settings, and the buttons of the runs.

function cell(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function swatch(index) {
  const made = document.createElement("span");
  made.className = `swatch ${dash(index)}`;
  made.setAttribute("style", color(index));
  return made;
}

function fillTable(table, head, rows) {
  const row = (name, texts) => {
    const made = document.createElement("tr");
    texts.forEach((text, i) => {
      const made_cell = cell(i === 0 ? "th" : name, text);
      made_cell.scope = name === "th" ? "col" : "row";
      made.append(made_cell);
    });
    return made;
  };
  const thead = document.createElement("thead"), tbody = document.createElement("tbody");
  thead.append(row("th", head));
  tbody.append(...rows.map((texts) => row("td", texts)));
  table.replaceChildren(thead, tbody);
}

function fillTables() {
  const best = ({best_val_loss: loss, best_step: step}) => (loss === undefined ? "–" : `${readable(loss)} @ ${readable(step)}`);
  fillTable(byId("results"), ["run", "steps", "training loss", "best validation loss", "tokens", "time", "tokens/s", "refused updates"],
    data.runs.map(({name, results}) => [
      name, readable(results.step), readable(results.loss), best(results), readable(results.tokens), duration(results.seconds ?? 0),
      readable(results.tokens_per_s === null ? null : Math.round(results.tokens_per_s)), readable(results.refused_updates)]));
  if (data.settings.length === 0) {
    byId("settings").replaceChildren(cell("caption", data.runs.length > 1 ? "none" : "there is one run"));
  } else {
    fillTable(byId("settings"), ["setting", ...data.runs.map((run) => run.name)],
      data.settings.map(({name, values}) => [name, ...values.map((value) => value ?? "–")]));
  }
  fillSamples();
  byId("warnings").replaceChildren(...data.runs.flatMap((run) => run.warnings).map((text) => cell("li", text)));
}

// A row for each step at which a run has a text, a column for each run that has texts.
function fillSamples() {
  const runs = data.runs.filter(({samples}) => samples.length > 0);
  byId("samples-section").hidden = runs.length === 0;
  const steps = [...new Set(runs.flatMap(({samples}) => samples.map(({step}) => step)))].sort((a, b) => a - b);
  fillTable(byId("samples"), ["step", ...runs.map(({name}) => name)],
    steps.map((step) => [readable(step), ...runs.map(({samples}) => samples.find((one) => one.step === step)?.text ?? "–")]));
}

function fillRuns(toggle) {
  byId("runs").replaceChildren(...data.runs.map((run, index) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.title = run.path;
    button.append(swatch(index), cell("span", run.name));
    button.addEventListener("click", () => toggle(index));
    item.append(button);
    return item;
  }));
}

function showValues(axis, x, found) {
  const lines = data.runs.map((run, index) => ({run, index, points: found.filter((one) => one.index === index)}))
    .filter(({points}) => points.length > 0)
    .map(({run, index, points}) => {
      const line = document.createElement("p");
      const texts = points.map((one) => `${one.kind === "evaluation" ? "validation " : ""}${readable(one.y)}` +
        (one.x === x ? "" : ` (at ${readableX(axis, one.x)})`));
      const mean = run.group > 1 && points.some((one) => one.kind === "train") ? `, mean of ${run.group} steps` : "";
      line.append(swatch(index), cell("span", `${run.name}: ${texts.join(" · ")}${mean}`));
      return line;
    });
  byId("values").replaceChildren(cell("p", `${AXES[axis]} ${readableX(axis, x)}`), ...lines);
}
