// The attention page: everything that moves on it. The data stand in the page as JSON; nothing is fetched, and text
// is only ever written as text (textContent, fillText), so markup in it stays what it is: characters.
// A weight p is stored in 8 bits as round(255 sqrt(p)): small weights, which are most of them, keep their digits.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const size = data.tokens.length;
const state = { layer: data.layer, head: data.head, token: 0, reverse: false, pairColours: data.pair };
const byId = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const percent = (share) => (100 * share).toFixed(1) + " %";
const weightOf = (level) => (level / 255) ** 2;
const named = (place) => `“${data.tokens[place]}” (${place + 1})`;

/* ---- the maps, unpacked when they are first asked for ---- */

function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

async function unpack(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const kept = new Map();
function levels(layer, head) {
  const key = `${layer} ${head}`;
  if (!kept.has(key)) {
    // 只留最近的几十张：长文本的一张图就有几百 KB
    if (kept.size > 40) kept.delete(kept.keys().next().value);
    kept.set(key, head === "mean" ? meanOf(layer) : unpack(head === "rollout" ? data.rollout[layer] : data.maps[layer][head]));
  }
  return kept.get(key);
}

async function meanOf(layer) {
  const heads = data.maps[layer].filter((packed) => packed !== null);
  const sums = new Float32Array(size * size);
  for (const packed of heads) (await unpack(packed)).forEach((level, place) => (sums[place] += weightOf(level)));
  return Uint8Array.from(sums, (sum) => Math.round(255 * Math.sqrt(sum / heads.length)));
}

/* ---- colours ---- */

let ramps = [];
function mixRamps() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
  const between = (one, two, share) => one.map((value, place) => Math.round(value + (two[place] - value) * share));
  ramps = [0, 1, 2, 3].map((hue) => {
    const [low, mid, high] = [colour("--low"), colour(`--mid-${hue}`), colour(`--high-${hue}`)];
    return Array.from({ length: 256 }, (_, step) =>
      step < 128 ? between(low, mid, step / 128) : between(mid, high, (step - 128) / 127));
  });
}
const cssColour = (hue, step) => `rgb(${ramps[hue][Math.max(0, Math.min(255, Math.round(step)))].join(" ")})`;
const hueOf = (row, column) => (state.pairColours ? 2 * data.types[row] + data.types[column] : 0);

/* ---- a heat map of any size: the canvas is as large as its window, and draws what is in sight ---- */

class HeatView {
  constructor(host, { rows, columns, label, largest, onCell }) {
    Object.assign(this, { host, rows, columns, onCell, cursor: null, largest, cell: 20 });
    this.canvas = make("canvas");
    this.space = make("div");
    host.append(this.canvas, this.space);
    host.tabIndex = 0;
    host.setAttribute("role", "application");
    host.setAttribute("aria-label", label);
    host.addEventListener("scroll", () => this.soon());
    host.addEventListener("pointermove", (event) => this.point(event));
    host.addEventListener("pointerdown", (event) => this.point(event));
    host.addEventListener("keydown", (event) => this.press(event));
    const context = this.canvas.getContext("2d");
    context.font = this.font(13);
    const longest = (labels) => Math.max(...labels.map((text) => context.measureText(text).width));
    this.left = Math.min(130, longest(rows) + 10);
    this.top = Math.min(110, longest(columns) + 10);
  }

  font(points) {
    return `${points}px system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif`;
  }

  /** Takes the levels (0 to 255, row by row) and the hue of each cell. */
  show(values, hue) {
    Object.assign(this, { values, hue });
    this.highest = 1;
    for (const value of values) if (value > this.highest) this.highest = value;
    this.recolour();
    this.resize();
  }

  /** Paints every cell as one pixel of a picture that `draw` then stretches: scrolling costs one call, not thousands. */
  recolour() {
    const [width, height] = [this.columns.length, this.rows.length];
    this.picture = Object.assign(make("canvas"), { width, height });
    const context = this.picture.getContext("2d");
    const image = context.createImageData(width, height);
    this.values.forEach((value, place) => {
      const step = Math.round((255 * value) / this.highest);
      const colour = ramps[this.hue(Math.floor(place / width), place % width)][step];
      image.data.set([...colour, 255], 4 * place);
    });
    context.putImageData(image, 0, 0);
    this.soon();
  }

  /** Chooses the cells' size: what fits, within what can be pointed at; a number sets it. */
  resize(cell = this.chosen) {
    this.chosen = cell;
    const room = this.host.parentElement.clientWidth - this.left - 20;
    this.cell = cell || Math.max(9, Math.min(this.largest, Math.floor(room / this.columns.length)));
    const width = this.left + this.cell * this.columns.length;
    const height = this.top + this.cell * this.rows.length;
    this.width = Math.min(width, this.host.parentElement.clientWidth - 2);
    this.height = Math.min(height, Math.round(0.78 * innerHeight) - 2);
    const scale = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: this.width * scale, height: this.height * scale });
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    // 画布只有窗口大小、粘在左上角；占位块撑出整张图的滚动范围
    this.space.style.width = `${width}px`;
    this.space.style.height = `${height - this.height}px`;
    this.soon();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    if (!this.values) return;
    const context = this.canvas.getContext("2d");
    const scale = devicePixelRatio || 1;
    const { cell, left, top } = this;
    const [x0, y0] = [this.host.scrollLeft, this.host.scrollTop];
    const style = getComputedStyle(document.documentElement);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const range = (offset, room, count) => [Math.floor(offset / cell), Math.min(count, Math.ceil((offset + room) / cell))];
    const [firstRow, lastRow] = range(y0, this.height - top, this.rows.length);
    const [firstColumn, lastColumn] = range(x0, this.width - left, this.columns.length);
    const [across, down] = [lastColumn - firstColumn, lastRow - firstRow];
    const [x, y] = [left + firstColumn * cell - x0, top + firstRow * cell - y0];
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, firstColumn, firstRow, across, down, x, y, across * cell, down * cell);
    const gap = cell >= 12 ? 1 : 0;
    if (gap) {
      context.fillStyle = style.getPropertyValue("--paper");
      for (let column = 1; column <= across; column++) context.fillRect(x + column * cell - 1, y, 1, down * cell);
      for (let row = 1; row <= down; row++) context.fillRect(x, y + row * cell - 1, across * cell, 1);
    }
    if (this.cursor) {
      const [row, column] = this.cursor;
      context.strokeStyle = style.getPropertyValue("--accent");
      context.lineWidth = 2;
      context.strokeRect(left + column * cell - x0, top + row * cell - y0, cell - gap, cell - gap);
    }
    context.fillStyle = style.getPropertyValue("--paper");
    context.fillRect(0, 0, this.width, top);
    context.fillRect(0, 0, left, this.height);
    const points = Math.max(9, Math.min(13, cell - 1));
    context.font = this.font(points);
    context.textBaseline = "middle";
    context.textAlign = "right";
    // 格子比字小时隔几个画一个标签，不让字叠在一起；光标所在的那个总是画
    const step = Math.ceil((points + 1) / cell);
    const [ink, accent] = [style.getPropertyValue("--ink"), style.getPropertyValue("--accent")];
    for (let row = firstRow; row < lastRow; row++) {
      const here = this.cursor && this.cursor[0] === row;
      const crowded = step > 1 && this.cursor && Math.abs(this.cursor[0] - row) < step;
      if (!here && (row % step || crowded)) continue;
      const y = top + (row + 0.5) * cell - y0;
      if (y < top) continue;
      context.fillStyle = here ? accent : ink;
      context.fillText(this.fitting(context, this.rows[row], left - 8), left - 5, y);
    }
    context.textAlign = "left";
    for (let column = firstColumn; column < lastColumn; column++) {
      const here = this.cursor && this.cursor[1] === column;
      const crowded = step > 1 && this.cursor && Math.abs(this.cursor[1] - column) < step;
      const x = left + (column + 0.5) * cell - x0;
      if ((!here && (column % step || crowded)) || x < left) continue;
      context.save();
      context.translate(x, top - 5);
      context.rotate(-Math.PI / 2);
      context.fillStyle = here ? accent : ink;
      context.fillText(this.fitting(context, this.columns[column], top - 8), 0, 0);
      context.restore();
    }
  }

  fitting(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    const characters = Array.from(text);
    while (characters.length > 1 && context.measureText(characters.join("") + "…").width > room) characters.pop();
    return characters.join("") + "…";
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.left + this.host.scrollLeft) / this.cell);
    const row = Math.floor((event.clientY - box.top - this.top + this.host.scrollTop) / this.cell);
    const inside = event.clientX - box.left >= this.left && event.clientY - box.top >= this.top;
    if (inside && row < this.rows.length && column < this.columns.length) this.move(row, column);
  }

  press(event) {
    const [row, column] = this.cursor || [0, 0];
    const [lastRow, lastColumn] = [this.rows.length - 1, this.columns.length - 1];
    const target = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1], Home: [row, 0], End: [row, lastColumn],
      PageUp: [row - 10, column], PageDown: [row + 10, column],
    }[event.key];
    if (!target) return;
    event.preventDefault();
    this.move(Math.max(0, Math.min(lastRow, target[0])), Math.max(0, Math.min(lastColumn, target[1])));
    const keep = (start, room, offset) => (start < offset ? start : start + this.cell > offset + room ? start + this.cell - room : offset);
    this.host.scrollLeft = keep(this.cursor[1] * this.cell, this.width - this.left, this.host.scrollLeft);
    this.host.scrollTop = keep(this.cursor[0] * this.cell, this.height - this.top, this.host.scrollTop);
  }

  move(row, column) {
    this.cursor = [row, column];
    this.onCell(row, column, weightOf(this.values[row * this.columns.length + column]));
    this.soon();
  }
}

/* ---- one tab stop for many buttons: the arrow keys go from one to the next ---- */

function rove(host, buttons, columns) {
  const first = buttons.find((button) => !button.disabled);
  buttons.forEach((button) => (button.tabIndex = button === first ? 0 : -1));
  host.addEventListener("keydown", (event) => {
    const here = buttons.indexOf(document.activeElement);
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (here < 0 || !step) return;
    event.preventDefault();
    let place = here + step;
    while (buttons[place]?.disabled) place += step;
    const next = buttons[place];
    if (!next) return;
    buttons.forEach((button) => (button.tabIndex = button === next ? 0 : -1));
    next.focus();
  });
}

/* ---- the sections ---- */

let current = null;
const tokenButtons = data.tokens.map((token, place) =>
  make("button", { textContent: token, type: "button", className: data.types[place] ? "second" : "" }));
const mapView = new HeatView(byId("map"), {
  rows: data.tokens, columns: data.tokens, largest: 30,
  label: "Attention map; arrow keys move from cell to cell",
  onCell: (row, column, weight) => {
    byId("readout").textContent = `${named(row)} reads ${named(column)}: ${percent(weight)}`;
  },
});

function nameOfMap() {
  if (state.head === "rollout") return `Rollout up to layer ${state.layer + 1}`;
  return `Layer ${state.layer + 1}, ${state.head === "mean" ? "mean of the heads" : `head ${state.head + 1}`}`;
}

async function show(layer, head) {
  Object.assign(state, { layer, head });
  byId("layer").value = layer;
  byId("head").value = head;
  const wanted = nameOfMap();
  const values = await levels(layer, head);
  // 解压是异步的：等到时用户可能已经换了一张图
  if (wanted !== nameOfMap()) return;
  current = values;
  byId("name").textContent = wanted;
  mapView.show(values, hueOf);
  byId("readout").textContent = "Point at a cell, or walk with the arrow keys.";
  shadeTokens();
  for (const [button, place] of headButtons) button.setAttribute("aria-pressed", String(place[0] === layer && place[1] === head));
}

function shadeTokens() {
  let highest = 1;
  const row = Array.from({ length: size }, (_, place) =>
    current[state.reverse ? place * size + state.token : state.token * size + place]);
  for (const level of row) highest = Math.max(highest, level);
  tokenButtons.forEach((button, place) => {
    const [from, to] = state.reverse ? [place, state.token] : [state.token, place];
    const step = (255 * row[place]) / highest;
    const [red, green, blue] = ramps[hueOf(from, to)][Math.round(step)];
    button.style.background = cssColour(hueOf(from, to), step);
    // 字色随底色的亮度取黑或白，深浅两种主题都看得清
    button.style.color = 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#10161d" : "#ffffff";
    button.setAttribute("aria-pressed", String(place === state.token));
    button.title = `${percent(weightOf(row[place]))}`;
  });
  const verb = state.reverse ? "is read by" : "reads";
  const best = row.map((level, place) => [level, place]).sort((one, two) => two[0] - one[0]).slice(0, 5);
  byId("tokenreadout").textContent =
    `${named(state.token)} ${verb} ` + best.map(([level, place]) => `${named(place)} ${percent(weightOf(level))}`).join(", ");
}

function buildTokens() {
  const host = byId("tokens");
  host.append(...tokenButtons);
  rove(host, tokenButtons, 1);
  tokenButtons.forEach((button, place) => {
    const choose = () => { if (current && state.token !== place) { state.token = place; shadeTokens(); } };
    // 不用 pointerenter：页面在静止的指针下滚动也会触发它，盖掉键盘刚选的词
    for (const event of ["pointermove", "focus", "click"]) button.addEventListener(event, choose);
  });
  byId("reverse").addEventListener("change", (event) => { state.reverse = event.target.checked; shadeTokens(); });
}

const headButtons = new Map();
async function buildGrid() {
  const host = byId("grid");
  const side = data.thumbnail;
  const pixels = await unpack(data.thumbnails);
  host.style.gridTemplateColumns = `2ch repeat(${data.heads}, minmax(0, 4.6rem))`;
  const buttons = [];
  for (let layer = data.layers - 1; layer >= 0; layer--) {
    host.append(make("span", { className: "label", textContent: layer + 1 }));
    for (let head = 0; head < data.heads; head++) {
      const canvas = make("canvas", { width: side, height: side });
      const button = make("button", { type: "button", title: `layer ${layer + 1}, head ${head + 1}` }, canvas);
      button.setAttribute("aria-label", button.title);
      host.append(button);
      if (data.maps[layer][head] === null) {
        Object.assign(button, { disabled: true, title: `${button.title}: pruned` });
        buttons.push(button);
        continue;
      }
      const start = (layer * data.heads + head) * side * side;
      canvas.draw = () => paint(canvas, pixels.subarray(start, start + side * side), side);
      button.addEventListener("click", () => { show(layer, head); byId("name").scrollIntoView(); });
      headButtons.set(button, [layer, head]);
      buttons.push(button);
    }
  }
  host.append(make("span"));
  for (let head = 0; head < data.heads; head++) host.append(make("span", { className: "label", textContent: head + 1 }));
  rove(host, buttons, data.heads);
}

/** Paints levels as pixels, from the lowest colour to that of the largest of them. */
function paint(canvas, values, width) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, values.length / width);
  const highest = values.reduce((one, two) => Math.max(one, two), 1);
  values.forEach((value, place) => {
    const [red, green, blue] = ramps[0][Math.round((255 * Math.max(0, value)) / highest)];
    image.data.set([red, green, blue, 255], 4 * place);
  });
  context.putImageData(image, 0, 0);
}

function buildCls() {
  const layers = Array.from({ length: data.layers }, (_, layer) => String(data.layers - layer));
  const views = [["cls", data.cls], ["clsrollout", data.clsRollout]].map(([id, packed]) => {
    const values = bytesOf(packed);
    // 层从下往上数：最后一层画在最上面一行
    const flipped = new Uint8Array(values.length);
    layers.forEach((_, row) => flipped.set(values.subarray((data.layers - 1 - row) * size, (data.layers - row) * size), row * size));
    const view = new HeatView(byId(id), {
      rows: layers, columns: data.tokens, largest: 30, label: "What [CLS] reads, layer by layer",
      onCell: (row, column, weight) => {
        byId(id + "readout").textContent = `layer ${data.layers - row}: ${named(column)} ${percent(weight)}`;
      },
    });
    view.show(flipped, () => 0);
    return view;
  });
  return views;
}

function written(measure, value) {
  return value === null ? "pruned" : measure.share ? percent(value) : value.toFixed(2);
}

function buildMeasures() {
  for (const measure of data.measures) {
    const canvas = make("canvas", { width: data.heads, height: data.layers, className: "measure" });
    const values = [];
    for (let layer = data.layers - 1; layer >= 0; layer--) values.push(...measure.values[layer]);
    const highest = Math.max(...values, 1e-9);
    canvas.style.aspectRatio = `${data.heads} / ${data.layers}`;
    canvas.draw = () => paint(canvas, Float32Array.from(values, (value) => (value || 0) / highest * 255), data.heads);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${measure.name} of every head; the table below has the numbers`);
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      const at = (offset, length, count) => Math.max(0, Math.min(count - 1, Math.floor((offset / length) * count)));
      const layer = data.layers - 1 - at(event.clientY - box.top, box.height, data.layers);
      return [layer, at(event.clientX - box.left, box.width, data.heads)];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [layer, head] = place(event);
      byId("measurereadout").textContent =
        `layer ${layer + 1}, head ${head + 1}: ${measure.name} ${written(measure, measure.values[layer][head])}`;
    });
    canvas.addEventListener("click", (event) => {
      const [layer, head] = place(event);
      if (data.maps[layer][head] !== null) { show(layer, head); byId("name").scrollIntoView(); }
    });
    const caption = make("figcaption", {}, make("b", { textContent: measure.name }),
      make("span", { className: "quiet", textContent: ` up to ${written(measure, highest)}` }));
    byId("measures").append(make("figure", { title: measure.meaning }, caption, canvas));
  }
}

function buildTable() {
  const rows = [];
  data.maps.forEach((heads, layer) => heads.forEach((packed, head) => {
    if (packed !== null) rows.push([layer, head, ...data.measures.map((measure) => measure.values[layer][head])]);
  }));
  const body = byId("rows");
  const headings = ["layer", "head", ...data.measures.map((measure) => measure.name)];
  const cells = headings.map((name, column) => {
    const button = make("button", { type: "button", textContent: name });
    const cell = make("th", { scope: "col", title: column > 1 ? data.measures[column - 2].meaning : "" }, button);
    button.addEventListener("click", () => {
      const rising = cell.getAttribute("aria-sort") === "descending" || (column < 2 && !cell.hasAttribute("aria-sort"));
      cells.forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", rising ? "ascending" : "descending");
      rows.sort((one, two) => (rising ? 1 : -1) * (one[column] - two[column]) || one[0] - two[0] || one[1] - two[1]);
      fill();
    });
    return cell;
  });
  byId("headings").append(...cells);
  function fill() {
    body.replaceChildren(...rows.map((row) => {
      const [layer, head] = row;
      const open = make("button", { type: "button", textContent: String(head + 1), title: "show this head" });
      open.addEventListener("click", () => { show(layer, head); byId("name").scrollIntoView(); });
      return make("tr", {}, make("td", { textContent: layer + 1 }), make("td", {}, open),
        ...row.slice(2).map((value, place) => make("td", { textContent: written(data.measures[place], value) })));
    }));
  }
  fill();
}

function buildControls() {
  const option = (value, text) => make("option", { value, textContent: text });
  byId("layer").append(...data.maps.map((_, layer) => option(layer, layer + 1)));
  byId("head").append(...data.maps[0].map((_, head) => option(head, head + 1)), option("mean", "mean of the heads"),
    option("rollout", "rollout up to this layer"));
  const chosen = () => {
    const [layer, head] = [Number(byId("layer").value), byId("head").value];
    const known = head === "mean" || head === "rollout" ? head : Number(head);
    if (data.maps[layer][known] === null) {
      byId("readout").textContent = `Head ${known + 1} of layer ${layer + 1} was pruned; choose another.`;
      byId("layer").value = state.layer;
      byId("head").value = state.head;
    } else show(layer, known);
  };
  byId("layer").addEventListener("change", chosen);
  byId("head").addEventListener("change", chosen);
  byId("cell").addEventListener("input", (event) => mapView.resize(Number(event.target.value)));
  byId("fit").addEventListener("click", () => mapView.resize(0));
  byId("pairs").addEventListener("change", (event) => {
    state.pairColours = event.target.checked;
    byId("legend").hidden = !state.pairColours;
    mapView.recolour();
    shadeTokens();
  });
}

async function start() {
  if (!("DecompressionStream" in window)) throw new Error("this browser is too old to unpack the maps");
  mixRamps();
  buildControls();
  buildTokens();
  await buildGrid();
  buildMeasures();
  buildTable();
  const views = [mapView, ...buildCls()];
  const paintAll = () => {
    document.querySelectorAll(".grid canvas, .measure").forEach((canvas) => canvas.draw && canvas.draw());
    data.pair && [0, 1, 2, 3].forEach((hue) => (byId(`hue-${hue}`).style.background = cssColour(hue, 150)));
  };
  paintAll();
  await show(state.layer, state.head);
  addEventListener("resize", () => views.forEach((view) => view.resize()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    mixRamps();
    paintAll();
    views.forEach((view) => view.recolour());
    shadeTokens();
  });
  document.body.dataset.ready = "yes";
}

start().catch((error) => {
  byId("problem").hidden = false;
  byId("problem").textContent = `The page cannot be shown: ${error.message}.`;
  throw error;
});
