"use strict";
(() => {
  const data = JSON.parse(document.getElementById("records").textContent);
  const {texts, kinds, axes, planAxes, shared} = data;
  const [ID, STATE, REASON, ATTEMPTS, AXES, RECORD, FIGURES] = [0, 1, 2, 3, 4, 5, 6];
  const cells = data.cells;
  const panel = document.getElementById("panel");
  const ROWS = 200;

  /** An element with its class, its children (texts are never read as markup), and its attributes. */
  function make(tag, name, children = [], attributes = {}) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    element.append(...[children].flat().filter((child) => child !== null && child !== undefined).map((child) =>
      child instanceof Node ? child : document.createTextNode(String(child))));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  const axisOf = (cell, key) => {
    const place = axes.indexOf(key);
    return place < 0 ? shared[key] : texts[cell[AXES][place]];
  };
  const shown = (value) => (value === null || value === undefined ? "–" : String(value));
  const state = (word) => make("span", `state s-${word}`, make("span", "", word));

  function figureOf(cell, metric) {
    const found = cell[FIGURES].find((figure) => texts[kinds[figure[0]][0]] === metric);
    if (!found) return null;
    const [name, unit, scope, method, status, reason] = kinds[found[0]].map((word) => texts[word]);
    const [, value, n, minimum, maximum, deviation] = found;
    return {name, unit, scope, method, status, reason, value, n, minimum, maximum, deviation};
  }

  function rounded(value) {
    if (typeof value !== "number") return shown(value);
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    return size >= 1e-3 && size < 1e7 ? String(Number(value.toPrecision(5))) : value.toExponential(4);
  }

  const measure = (figure) => `${rounded(figure.value)}${figure.unit ? ` ${figure.unit}` : ""}`;

  function listed(pairs) {
    const list = make("dl", "");
    for (const [title, value] of pairs) {
      if (value === null || value === undefined || value === "") continue;
      list.append(make("dt", "", title), make("dd", "", value));
    }
    return list;
  }

  function factsOf(figure) {
    const spread = figure.minimum === undefined ? null : `${figure.minimum} to ${figure.maximum}`;
    return [
      ["metric", make("code", "", figure.name)],
      ["value", figure.status === "measured" ? `${shown(figure.value)}${figure.unit ? ` ${figure.unit}` : ""}` : figure.status],
      ["repeats (n)", figure.n],
      ["their range", spread],
      ["their sd", figure.deviation],
      ["scope", figure.scope],
      ["method", figure.method],
      ["reason", figure.reason],
    ];
  }

  function recordFacts(cell) {
    const record = cell[RECORD];
    const own = planAxes.map((key) => [key, axisOf(cell, key)]).filter(([, value]) => value !== null && value !== undefined);
    const facts = [
      ["cell", make("code", "", cell[ID])],
      ["axes", own.map(([key, value]) => `${key} ${value}`).join(" · ")],
      ["state", state(texts[cell[STATE]])],
      ["reason", texts[cell[REASON]]],
    ];
    if (!record) return [...facts, ["attempts", cell[ATTEMPTS]]];
    const [attempt, started, ended, start, overhead, host, cpu, gpus, revision, dirty, notes, failure, bundle] = record;
    const file = `${cell[ID]}/attempt-${String(attempt).padStart(3, "0")}/record.json`;
    return [
      ...facts,
      ["attempt", `${attempt} of ${cell[ATTEMPTS]}`],
      ["host", [texts[host], texts[cpu], texts[gpus]].filter(Boolean).join(", ")],
      ["revision", texts[revision] ? make("span", "", [make("code", "", texts[revision]), dirty ? " with uncommitted changes" : ""]) : null],
      ["ran", `${texts[started]} to ${texts[ended]}`],
      ["start", texts[start] && `${texts[start]}${overhead === null ? "" : `, overhead ${rounded(overhead)} s`}`],
      ["bundle", texts[bundle]],
      ["notes", texts[notes]],
      ["failure", texts[failure]],
      ["file", make("code", "", file)],
    ];
  }

  function allFigures(cell) {
    const details = make("details", "all", make("summary", "", `All ${cell[FIGURES].length} figures on this page`));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const body = make("tbody", "");
      for (const [kind] of cell[FIGURES]) {
        const figure = figureOf(cell, texts[kinds[kind][0]]);
        const value = figure.status === "measured" ? measure(figure) : figure.status;
        body.append(make("tr", "", [make("td", "mono", figure.name), make("td", "num", value)],
          {title: [figure.scope, figure.method, figure.reason].filter(Boolean).join("; ")}));
      }
      details.append(make("table", "", body));
    });
    return details;
  }

  function recordCard(cell, metric, differing, open) {
    const figure = metric ? figureOf(cell, metric) : null;
    const who = differing.map((key) => `${key} ${shown(axisOf(cell, key))}`).join(" · ") || cell[ID];
    const what = figure && figure.status === "measured" ? measure(figure) : metric ? shown(figure ? figure.status : texts[cell[STATE]]) : texts[cell[STATE]];
    const card = make("details", "record", make("summary", "", [make("span", "who", who), make("span", "what", what)]));
    card.dataset.cell = cell[ID];
    const fill = () => {
      if (!card.open || card.children.length > 1) return;
      if (figure) card.append(listed(factsOf(figure)));
      card.append(listed(recordFacts(cell)));
      if (cell[FIGURES].length) card.append(allFigures(cell));
    };
    card.addEventListener("toggle", fill);
    card.open = open;
    fill();
    return card;
  }

  let opener = null;
  function closePanel() {
    panel.hidden = true;
    if (opener) { opener.classList.remove("open"); opener.focus(); opener = null; }
  }

  /** Open the panel with the records of some cells. */
  function openPanel(from, title, headline, found, metric) {
    if (opener) opener.classList.remove("open");
    opener = from;
    opener.classList.add("open");
    const differing = planAxes.filter((key) => new Set(found.map((cell) => axisOf(cell, key))).size > 1);
    const close = make("button", "close", "×", {"aria-label": "Close", title: "Close (Esc)"});
    close.addEventListener("click", closePanel);
    const cards = make("div", "");
    panel.replaceChildren(make("header", "", [make("h2", "", title), close]), make("p", "headline", headline), cards);
    let next = 0;
    const more = make("button", "more", "");
    const add = () => {
      for (const cell of found.slice(next, next + ROWS)) cards.append(recordCard(cell, metric, differing, found.length === 1));
      next += ROWS;
      more.textContent = `${Math.max(found.length - next, 0)} more records`;
      more.hidden = next >= found.length;
    };
    more.addEventListener("click", add);
    add();
    panel.append(more);
    panel.hidden = false;
    panel.scrollTop = 0;
    panel.focus();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.ref");
    if (button) {
      const found = data.sources[Number(button.dataset.s)].map((place) => cells[place]);
      const place = button.closest("td");
      const header = place ? button.closest("table").tHead.rows[0].cells[place.cellIndex] : null;
      const metric = header ? header.dataset.m : null;
      const records = `${found.length} record${found.length === 1 ? "" : "s"}`;
      const headline = place ? [make("b", "", button.textContent), ` from ${records}`] : records;
      openPanel(button, header ? header.textContent : button.dataset.title, headline, found, metric);
      return;
    }
    const choice = event.target.closest("[data-state]");
    if (choice && !choice.closest(".chips")) {
      choose(choice.dataset.state);
      document.getElementById("plan").scrollIntoView();
    }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !panel.hidden) closePanel(); });

  // The labels of a wide table's rows stay while its figures scroll, where they leave room for them.
  function measured(table) {
    const labels = [...table.tHead.rows[0].cells].slice(0, Number(table.dataset.labels));
    const widths = labels.map((cell) => cell.offsetWidth);
    const width = widths.reduce((sum, one) => sum + one, 0);
    const room = table.parentElement.clientWidth;
    return {table, widths, held: table.offsetWidth > room && widths.length <= 6 && width < room / 2};
  }

  function hold({table, widths, held}) {
    widths.reduce((left, width, place) => {
      table.style.setProperty(`--left-${place + 1}`, `${left}px`);
      return left + width;
    }, 0);
    if (held === table.classList.contains("holds")) return;
    table.classList.toggle("holds", held);
    for (const row of table.rows) {
      for (let place = 0; place < widths.length; place += 1) row.cells[place].classList.toggle("held", held);
    }
  }

  // All are measured before one is changed: a change makes the browser lay everything out again.
  const holdAll = () => [...document.querySelectorAll("table.data")].map(measured).forEach(hold);
  addEventListener("resize", holdAll);
  holdAll();

  // Tables are sorted by a click on a header: up, down, and back as they were.
  for (const table of document.querySelectorAll("table.data")) {
    const rows = [...table.tBodies[0].rows];
    table.tHead.addEventListener("click", (event) => {
      const header = event.target.closest("th");
      if (!header) return;
      const before = header.getAttribute("aria-sort");
      const after = before === "ascending" ? "descending" : before === "descending" ? null : "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      if (after) header.setAttribute("aria-sort", after);
      table.tBodies[0].append(...(after ? sorted(rows, header.cellIndex, after === "descending") : rows));
    });
  }

  /** Rows by one column: numbers by size, then texts; places without a number stay last either way. */
  function sorted(rows, column, down) {
    const key = (row) => {
      const place = row.cells[column];
      return "v" in place.dataset ? [0, Number(place.dataset.v), ""] : [1, 0, place.textContent];
    };
    const keyed = rows.map((row, order) => [key(row), order, row]);
    keyed.sort(([a, i], [b, j]) => a[0] - b[0] || (a[1] - b[1] || a[2].localeCompare(b[2], "en", {numeric: true})) * (down ? -1 : 1) || i - j);
    return keyed.map(([, , row]) => row);
  }

  // The plan: filtered by state and by words.
  const plan = document.getElementById("plan");
  const search = document.getElementById("plan-search");
  const count = document.getElementById("plan-count");
  const chips = document.getElementById("plan-states");
  const table = plan.querySelector("table");
  const more = plan.querySelector(".more");
  const gated = cells.some((cell) => figureOf(cell, "gate"));
  let chosen = "";
  let matching = cells;
  let drawn = 0;
  table.tHead.append(make("tr", "", ["state", "cell", ...(gated ? ["gate"] : []), ...planAxes, "attempts"].map((title) =>
    make("th", title === "attempts" ? "num" : "", title, {scope: "col"}))));
  const words = cells.map((cell) =>
    [cell[ID], texts[cell[STATE]], texts[cell[REASON]], ...planAxes.map((key) => axisOf(cell, key))].join("\n").toLowerCase());

  function choose(word) {
    chosen = word;
    for (const chip of chips.children) chip.setAttribute("aria-pressed", String(chip.dataset.state === word));
    filter();
  }

  function filter() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    matching = cells.filter((cell, place) =>
      (!chosen || texts[cell[STATE]] === chosen) && wanted.every((word) => words[place].includes(word)));
    count.textContent = matching.length === cells.length ? `${cells.length} cells` : `${matching.length} of ${cells.length} cells`;
    table.tBodies[0].replaceChildren();
    drawn = 0;
    draw(ROWS);
  }

  function draw(number) {
    for (const cell of matching.slice(drawn, drawn + number)) {
      const name = make("button", "ref mono", cell[ID]);
      name.dataset.title = cell[ID];
      name.addEventListener("click", (event) => {
        event.stopPropagation();
        openPanel(name, "Cell", make("code", "", cell[ID]), [cell], null);
      });
      const gate = gated ? figureOf(cell, "gate") : null;
      table.tBodies[0].append(make("tr", "", [
        make("td", "", state(texts[cell[STATE]])),
        make("td", "", [name, texts[cell[REASON]] ? make("div", "why", texts[cell[REASON]]) : null]),
        ...(gated ? [make("td", gate ? String(gate.value) : "", gate ? shown(gate.value) : "")] : []),
        ...planAxes.map((key) => make("td", "", shown(axisOf(cell, key)))),
        make("td", "num", cell[ATTEMPTS]),
      ]));
    }
    drawn = Math.min(drawn + number, matching.length);
    more.hidden = drawn >= matching.length;
    more.textContent = `Show ${Math.min(ROWS * 5, matching.length - drawn)} more of ${matching.length - drawn}`;
  }

  for (const chip of chips.children) chip.addEventListener("click", () => choose(chip.dataset.state));
  search.addEventListener("input", filter);
  more.addEventListener("click", () => draw(ROWS * 5));
  filter();
})();
