/* The page of `tfvmf explore`. Values come from JSON in the page; all names are text nodes. */
"use strict";
const $ = (id) => document.getElementById(id);
const V = JSON.parse($("values").textContent);
const TITLES = { concentration: "certainty (kappa)", familiarity: "familiarity", confidence: "confidence", class_probability: "class probability" };
const N = V.rows, ROWS = d3.range(N), SCORES = Object.keys(TITLES).filter((name) => name in V.scores);
// Numbers as labels cannot be compared with names of classes.
const numbered = (column) => column.every((number) => number < 0 || /^\d+$/.test(V.classes[number]));
const BOTH = V.label && V.class && numbered(V.label) === numbered(V.class);
const CONFIDENCE = V.scores.confidence;
const known = (row) => V.label[row] >= 0 && V.class[row] >= 0;
const correct = (row) => V.label[row] === V.class[row];
const accepts = (row) => CONFIDENCE[row] > state.alpha;
const className = (number) => (number < 0 ? "none" : V.classes[number]);
const fixed = (x) => (x === null || x === undefined ? "–" : Math.abs(x) >= 1000 || (x && Math.abs(x) < 0.001) ? x.toExponential(2) : String(+x.toPrecision(4)));
const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) + " %" : "–");
const count = d3.format(",");
const clean = () => ({ scores: {}, label: "", class: "", decision: "", correct: "", text: "" });
const state = { alpha: V.alpha, color: "", filter: clean(), sort: "", up: true, tab: "all", limit: 0, current: -1, hover: -1, listed: new Set(), visible: new Uint8Array(N).fill(1), colors: [] };

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/* ---- pictures: in the page, or files beside it ---- */
let thumbnails = null;
function address(row) {
  if (!thumbnails && document.readyState !== "loading") thumbnails = JSON.parse($("thumbnails").textContent);
  const held = thumbnails && thumbnails[row];
  if (!held) return null;
  const number = String(row).padStart(6, "0");
  return held === 1 ? `thumbnails/${number.slice(0, -3)}/${number}.webp` : "data:image/webp;base64," + held;
}
function picture(row) {
  const source = address(row);
  if (!source) return element("span", { className: "blank", title: "no picture" });
  const image = element("img", { className: "thumb", alt: "", loading: "lazy", decoding: "async" });
  image.onload = () => image.classList.toggle("small", image.naturalWidth < 64);
  image.src = source;
  return image;
}
const cached = new Map();
function drawable(row) {
  if (!cached.has(row)) {
    if (cached.size > 1500) cached.clear();
    const source = address(row), image = source && new Image();
    if (image) { image.onload = redraw; image.src = source; }
    cached.set(row, image);
  }
  const image = cached.get(row);
  return image && image.complete && image.naturalWidth ? image : null;
}

/* ---- colors ---- */
const COLORINGS = [
  ...SCORES.map((name) => [name, TITLES[name]]),
  ...(V.class ? [["class", "class"]] : []), ...(V.label ? [["label", "label"]] : []),
  ...(CONFIDENCE ? [["decision", "decision"]] : []), ...(BOTH ? [["correct", "class is label"]] : []),
];
const MANY = 24;  // more classes cannot be told apart by color
function palette(size) {
  return size <= 10 ? d3.schemeTableau10 : d3.quantize((t) => d3.interpolateRainbow(t), Math.min(size, MANY) + 1).slice(0, -1);
}
const sizes = d3.rollup(V.class || V.label || [], (rows) => rows.length, (c) => c);
const ranked = d3.sort(d3.range(V.classes.length), (c) => -(sizes.get(c) || 0));
const classColors = (() => {
  const shades = palette(V.classes.length), colors = V.classes.map(() => "#9aa4b1");
  (V.classes.length <= MANY ? d3.range(V.classes.length) : ranked.slice(0, MANY)).forEach((c, place) => (colors[c] = shades[place]));
  return colors;
})();
const extents = Object.fromEntries(SCORES.map((name) => {
  const sorted = d3.sort(V.scores[name].filter((x) => x !== null));
  return [name, [sorted[0] ?? 0, sorted.at(-1) ?? 1, d3.quantileSorted(sorted, 0.01) ?? 0, d3.quantileSorted(sorted, 0.99) ?? 1]];
}));
function recolor() {
  const key = state.color;
  const yes = "#2f6db3", no = "#d9662b", none = "#b4bcc7";
  let color = () => yes;
  if (key in V.scores) {
    const [, , low, high] = extents[key];
    const shades = d3.quantize(d3.interpolateViridis, 64);
    color = (row) => { const x = V.scores[key][row]; return x === null ? none : shades[Math.max(0, Math.min(63, Math.floor(((x - low) / (high - low || 1)) * 64)))]; };
  } else if (key === "class" || key === "label") color = (row) => (V[key][row] < 0 ? none : classColors[V[key][row]]);
  else if (key === "decision") color = (row) => (accepts(row) ? yes : no);
  else if (key === "correct") color = (row) => (!known(row) ? none : correct(row) ? yes : no);
  state.colors = ROWS.map(color);
  const legend = $("legend");
  legend.replaceChildren();
  const chip = (text, shade, press, pressed) => {
    const dot = element("i");
    dot.style.background = shade;
    const made = element("button", { onclick: press }, dot, text);
    made.setAttribute("aria-pressed", pressed);
    legend.append(made);
  };
  const toggle = (field, value) => () => { state.filter[field] = state.filter[field] === value ? "" : value; fields(); refilter(); recolor(); };
  if (key in V.scores) {
    const ramp = element("canvas", { width: 64, height: 1 }), pen = ramp.getContext("2d");
    d3.quantize(d3.interpolateViridis, 64).forEach((shade, x) => { pen.fillStyle = shade; pen.fillRect(x, 0, 1, 1); });
    legend.append(fixed(extents[key][2]), ramp, fixed(extents[key][3]));
  } else if (key === "class" || key === "label") {
    const many = V.classes.length > MANY;
    (many ? ranked.slice(0, MANY) : d3.range(V.classes.length)).forEach((c) => chip(V.classes[c], classColors[c], toggle(key, String(c)), state.filter[key] === String(c)));
    if (many) legend.append(`and ${V.classes.length - MANY} more in gray`);
  } else if (key === "decision") {
    chip("accepted", yes, toggle("decision", "accepted"), state.filter.decision === "accepted");
    chip("rejected", no, toggle("decision", "rejected"), state.filter.decision === "rejected");
  } else if (key === "correct") {
    chip("right", yes, toggle("correct", "right"), state.filter.correct === "right");
    chip("wrong", no, toggle("correct", "wrong"), state.filter.correct === "wrong");
  }
  redraw();
}

/* ---- the map ---- */
const canvas = $("canvas"), pen = canvas.getContext("2d"), tip = $("tip");
let view = d3.zoomIdentity, width = 1, height = 1, lasso = null, lassoMode = false, scheduled = false, drawn = 0;
const base = { k: 1, x: 0, y: 0 };
const px = (row) => view.applyX(base.x + V.x[row] * base.k);
const py = (row) => view.applyY(base.y + V.y[row] * base.k);
const tree = d3.quadtree(ROWS, (row) => V.x[row], (row) => V.y[row]);
const span = [d3.max(V.x) || 1, d3.max(V.y) || 1];
const zoom = d3.zoom().scaleExtent([0.8, 200]).filter((event) => !event.button && (event.type === "wheel" || (!lassoMode && !event.shiftKey)))
  .on("zoom", (event) => { view = event.transform; hideTip(); redraw(); });
function redraw() { if (!scheduled) { scheduled = true; requestAnimationFrame(draw); } }
function draw() {
  scheduled = false;
  const ratio = window.devicePixelRatio || 1, inside = [];
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  drawn = 0;  // pictures
  for (const row of ROWS) {
    const x = px(row), y = py(row);
    if (x > -30 && y > -30 && x < width + 30 && y < height + 30) inside.push(row);
  }
  const shown = inside.filter((row) => state.visible[row]);
  const radius = Math.min(7, Math.max(1.2, (N > 20000 ? 1.3 : N > 2000 ? 2.2 : 3.2) * Math.sqrt(Math.sqrt(view.k))));
  const dot = (row, r) => { pen.beginPath(); pen.arc(px(row), py(row), r, 0, 2 * Math.PI); pen.fill(); };
  const plot = N > 20000 && inside.length > 5000 ? (row, r) => pen.fillRect(px(row) - r, py(row) - r, 2 * r, 2 * r) : dot;
  if (shown.length < inside.length) { pen.fillStyle = "#e6eaef"; for (const row of inside) if (!state.visible[row]) plot(row, radius); }
  pen.globalAlpha = N > 2000 ? 0.8 : 0.9;
  for (const row of shown) { pen.fillStyle = state.colors[row]; plot(row, radius); }
  pen.globalAlpha = 1;
  if (state.listed.size) {
    pen.strokeStyle = "#111"; pen.lineWidth = 1;
    for (const row of inside) if (state.listed.has(row)) { pen.beginPath(); pen.arc(px(row), py(row), radius + 1.2, 0, 2 * Math.PI); pen.stroke(); }
  }
  if (view.k > 2 && shown.length <= 300) {  // zoomed in: pictures with a frame in their color
    const side = Math.min(64, Math.max(24, 0.42 * Math.sqrt((width * height) / (shown.length + 1))));
    for (const row of shown) {
      const image = drawable(row);
      if (!image) continue;
      const x = px(row) - side / 2, y = py(row) - side / 2;
      pen.fillStyle = state.listed.has(row) ? "#111" : state.colors[row];
      pen.fillRect(x - 2, y - 2, side + 4, side + 4);
      pen.imageSmoothingEnabled = image.naturalWidth >= 64;
      pen.drawImage(image, x, y, side, side);
      drawn += 1;
    }
  }
  if (state.current >= 0) {
    const r = Math.max(8, radius + 4), x = px(state.current), y = py(state.current);
    pen.lineWidth = 5; pen.strokeStyle = "#fff"; pen.beginPath(); pen.arc(x, y, r, 0, 2 * Math.PI); pen.stroke();
    pen.lineWidth = 2.5; pen.strokeStyle = "#111"; pen.stroke();
  }
  if (lasso) { pen.beginPath(); lasso.forEach(([x, y]) => pen.lineTo(x, y)); pen.closePath(); pen.fillStyle = "rgba(47,109,179,.12)"; pen.fill(); pen.strokeStyle = "#2f6db3"; pen.lineWidth = 1.5; pen.stroke(); }
}
function resize() {
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  if (!box.width) return;
  const kept = view.invert([width / 2, height / 2]).map((v, i) => (v - (i ? base.y : base.x)) / base.k);
  const before = width > 1;
  [width, height] = [box.width, box.height];
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  base.k = Math.min((width - 32) / span[0], (height - 32) / span[1]);
  base.x = (width - span[0] * base.k) / 2; base.y = (height - span[1] * base.k) / 2;
  if (before) d3.select(canvas).call(zoom.translateTo, base.x + kept[0] * base.k, base.y + kept[1] * base.k);
  redraw();
}
function at(x, y, reach) {
  const [left, top] = view.invert([x, y]), far = reach / (view.k * base.k);
  const near = (px0, py0) => tree.find(px0, py0, far);
  const place = [(left - base.x) / base.k, (top - base.y) / base.k];
  const row = near(...place);
  if (row === undefined || state.visible[row]) return row ?? -1;
  let best = -1, least = far;  // the nearest is filtered out: look for another
  tree.visit((node, x0, y0, x1, y1) => {
    if (!node.length) do {
      const d = Math.hypot(V.x[node.data] - place[0], V.y[node.data] - place[1]);
      if (state.visible[node.data] && d < least) { least = d; best = node.data; }
    } while ((node = node.next));
    return x0 > place[0] + least || x1 < place[0] - least || y0 > place[1] + least || y1 < place[1] - least;
  });
  return best;
}
const shortName = (row) => V.file[row].split(/[\\/]/).at(-1);
function hideTip() { tip.hidden = true; state.hover = -1; }
function showTip(row, x, y) {
  if (row === state.hover) return;
  state.hover = row;
  tip.hidden = row < 0;
  if (row < 0) return;
  const words = [V.class && `class ${className(V.class[row])}`, V.label && `label ${className(V.label[row])}`, ...SCORES.slice(0, 3).map((name) => `${name} ${fixed(V.scores[name][row])}`)];
  tip.replaceChildren(picture(row), element("b", { textContent: shortName(row) }), ...words.filter(Boolean).map((text) => element("div", { textContent: text })));
  const right = x + 16 + 196 > width;
  tip.style.left = Math.max(4, right ? x - 16 - 196 : x + 16) + "px";
  tip.style.top = Math.max(4, Math.min(y - 60, height - tip.offsetHeight - 4)) + "px";
}
const pointer = (event) => d3.pointer(event, canvas);
let pressed = null;
canvas.addEventListener("pointerdown", (event) => {
  pressed = pointer(event);
  if (event.button || !(lassoMode || event.shiftKey)) return;
  lasso = [pressed];
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  const place = pointer(event);
  if (lasso) { lasso.push(place); hideTip(); redraw(); }
  else if (event.pointerType === "mouse" && !event.buttons) showTip(at(...place, 12), ...place);
});
canvas.addEventListener("pointerup", () => {
  if (!lasso) return;
  const ring = lasso;
  lasso = null;
  if (ring.length > 4) setList(ROWS.filter((row) => state.visible[row] && d3.polygonContains(ring, [px(row), py(row)])));
  redraw();
});
canvas.addEventListener("pointercancel", () => { lasso = null; redraw(); });
canvas.addEventListener("pointerleave", hideTip);
canvas.addEventListener("click", (event) => {
  const place = pointer(event);
  if (pressed && Math.hypot(place[0] - pressed[0], place[1] - pressed[1]) > 5) return;
  const row = at(...place, 18);
  if (row >= 0) open(row);
});
canvas.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const call = d3.select(canvas), key = event.key.toLowerCase();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (step && event.shiftKey) call.call(zoom.translateBy, (-60 * step[0]) / view.k, (-60 * step[1]) / view.k);
  else if (step) walk(step);
  else if (key === "+" || key === "=") call.call(zoom.scaleBy, 1.4, state.current >= 0 ? [px(state.current), py(state.current)] : undefined);
  else if (key === "-") call.call(zoom.scaleBy, 1 / 1.4);
  else if (key === "0") call.call(zoom.transform, d3.zoomIdentity);
  else if (key === "s") mark(state.current);
  else if (key === "v") setList([...state.listed, ...ROWS.filter((row) => state.visible[row] && px(row) >= 0 && py(row) >= 0 && px(row) <= width && py(row) <= height)]);
  else if (key === "l") setLasso(!lassoMode);
  else if (key === "escape") { lasso = null; setLasso(false); setList([]); }
  else return;
  event.preventDefault();
});
function walk([dx, dy]) {
  const start = state.current >= 0 ? [px(state.current), py(state.current)] : [width / 2, height / 2];
  let best = -1, least = Infinity;
  for (const row of ROWS) {
    if (!state.visible[row] || row === state.current) continue;
    const x = px(row) - start[0], y = py(row) - start[1], along = x * dx + y * dy, aside = Math.abs(x * dy + y * dx);
    if (state.current >= 0 && along <= aside) continue;
    const far = along + 2 * aside;
    if ((state.current < 0 ? Math.hypot(x, y) : far) < least) { least = state.current < 0 ? Math.hypot(x, y) : far; best = row; }
  }
  if (best < 0) return;
  open(best);
  if (px(best) < 20 || py(best) < 20 || px(best) > width - 20 || py(best) > height - 20) d3.select(canvas).call(zoom.translateTo, base.x + V.x[best] * base.k, base.y + V.y[best] * base.k);
}
function setLasso(on) {
  lassoMode = on;
  $("lasso").setAttribute("aria-pressed", on);
  canvas.classList.toggle("lasso", on);
}

/* ---- one image, and the list ---- */
function open(row) {
  state.current = row;
  $("image").hidden = false;
  $("picture").replaceChildren(picture(row));
  $("file").textContent = shortName(row);
  const facts = [
    ["file", V.file[row]],
    ...(V.label ? [["label", className(V.label[row])]] : []), ...(V.class ? [["class", className(V.class[row])]] : []),
    ...SCORES.map((name) => [TITLES[name], fixed(V.scores[name][row])]),
    ...(CONFIDENCE ? [["decision", accepts(row) ? "accepted" : "rejected"]] : []),
  ];
  $("entries").replaceChildren(...facts.map((pair) => element("tr", {}, ...pair.map((text) => element("td", { textContent: text })))));
  $("near").replaceChildren(...V.neighbors[row].map((other, place) => shot(other, V.cosines[row][place].toFixed(3))));
  for (const each of document.querySelectorAll(".shot")) each.classList.toggle("current", +each.dataset.row === row);
  marks();
  redraw();
}
function shot(row, value) {
  const made = element("button", { className: "shot", title: V.file[row], onclick: () => open(row) }, picture(row));
  if (value) made.append(element("span", { className: "value", textContent: value }));
  if (V.class) {
    const wrong = BOTH && known(row) && !correct(row);
    made.append(element("span", { className: wrong ? "wrong" : "", textContent: className(V.class[row]) + (wrong ? `, not ${className(V.label[row])}` : "") }));
  } else if (V.label) made.append(element("span", { textContent: className(V.label[row]) }));
  made.append(element("span", { textContent: shortName(row) }));
  made.dataset.row = row;
  made.classList.toggle("listed", state.listed.has(row));
  made.classList.toggle("current", row === state.current);
  return made;
}
function mark(row) {
  if (row < 0) return;
  const list = new Set(state.listed);
  if (!list.delete(row)) list.add(row);
  setList(list);
}
function setList(rows) {
  state.listed = new Set(rows);
  marks();
  if (state.tab === "list") fill();
  redraw();
}
function marks() {
  const size = state.listed.size;
  $("listed").textContent = size ? `${count(size)} on the list` : "";
  $("save").disabled = $("clear").disabled = !size;
  $("mark").textContent = state.listed.has(state.current) ? "Take off the list" : "Put on the list";
  for (const each of document.querySelectorAll(".shot")) each.classList.toggle("listed", state.listed.has(+each.dataset.row));
  const tab = document.querySelector("[data-tab=list]");
  if (tab) tab.textContent = `List (${count(size)})`;
}
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  // As `tfvmf.files.csv_text`: a spreadsheet takes text that starts so for a formula.
  if (/^[\s']*[=+\-@＝＋－＠]/.test(value) && !(value.trim() && isFinite(value))) value = "'" + value;
  return /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
}
function csv() {
  const names = ["file", ...(V.label ? ["label"] : []), ...(V.class ? ["class"] : []), ...SCORES, ...(CONFIDENCE ? ["accept"] : [])];
  const value = (row, name) => name === "file" ? V.file[row] : name === "accept" ? accepts(row) : name in V.scores ? V.scores[name][row] : V[name][row] < 0 ? "" : V.classes[V[name][row]];
  const rows = d3.sort(state.listed, (row) => row);
  return [names, ...rows.map((row) => names.map((name) => value(row, name)))].map((line) => line.map(cell).join(",") + "\r\n").join("");
}
function save() {
  const link = element("a", { download: `${V.name}-list.csv`, href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/* ---- filters and counts ---- */
const plots = {};
function passes(row) {
  const f = state.filter;
  for (const name in f.scores) { const x = V.scores[name][row], [low, high] = f.scores[name]; if (x === null || x < low || x > high) return false; }
  if (f.label !== "" && V.label[row] !== +f.label) return false;
  if (f.class !== "" && V.class[row] !== +f.class) return false;
  if (f.decision && accepts(row) !== (f.decision === "accepted")) return false;
  if (f.correct && !(known(row) && correct(row) === (f.correct === "right"))) return false;
  return !f.text || V.file[row].toLowerCase().includes(f.text);
}
function refilter() {
  let shown = 0;
  for (const row of ROWS) shown += state.visible[row] = passes(row) ? 1 : 0;
  $("shown").textContent = `${count(shown)} of ${count(N)} shown`;
  $("unfilter").disabled = shown === N && !Object.keys(state.filter.scores).length;
  $("take").disabled = !shown;
  for (const name of SCORES) plots[name].update();
  recount();
  state.limit = 0;
  fill();
  redraw();
}
function recount() {
  if (!CONFIDENCE) return;
  let accepted = 0, all = 0, right = 0, judged = 0, rightAll = 0, judgedAll = 0;
  for (const row of ROWS) {
    if (!state.visible[row]) continue;
    const yes = accepts(row), told = BOTH && known(row);
    all += 1; accepted += yes;
    if (told) { judgedAll += 1; rightAll += correct(row); if (yes) { judged += 1; right += correct(row); } }
  }
  $("accepted").textContent = count(accepted);
  $("rejected").textContent = count(all - accepted);
  $("accepted_share").textContent = `accepted, ${percent(accepted, all)}`;
  $("rejected_share").textContent = `rejected, ${percent(all - accepted, all)}`;
  $("accuracy_tile").hidden = $("accuracy_all_tile").hidden = !BOTH;
  $("accuracy").textContent = percent(right, judged);
  $("accuracy_all").textContent = percent(rightAll, judgedAll);
}
function setAlpha(value) {
  if (!(value >= 0 && value <= 1)) return;
  state.alpha = value;
  if (+$("alpha").value !== value) $("alpha").value = value;
  if (+$("alpha_number").value !== value) $("alpha_number").value = value;
  if (state.filter.decision) refilter(); else { recount(); plots.confidence.update(); }
  if (state.color === "decision") recolor();
  if (state.current >= 0) open(state.current);
}
function fields() {
  const rows = [];
  const choice = (field, title, options) => {
    const box = element("select", { id: `filter_${field}` }, element("option", { value: "", textContent: "all" }), ...options.map(([value, text]) => element("option", { value, textContent: text })));
    box.value = state.filter[field];
    box.onchange = () => { state.filter[field] = box.value; refilter(); recolor(); };
    rows.push(element("label", { htmlFor: box.id, textContent: title }), box);
  };
  const classes = V.classes.map((name, number) => [String(number), name]);
  const find = element("input", { type: "search", id: "filter_text", placeholder: "part of the name", value: state.filter.text });
  find.oninput = () => { state.filter.text = find.value.toLowerCase(); refilter(); };
  rows.push(element("label", { htmlFor: "filter_text", textContent: "file" }), find);
  if (V.class) choice("class", "class", classes);
  if (V.label) choice("label", "label", classes);
  if (CONFIDENCE) choice("decision", "decision", [["accepted", "accepted"], ["rejected", "rejected"]]);
  if (BOTH) choice("correct", "class is label", [["right", "right"], ["wrong", "wrong"]]);
  $("fields").replaceChildren(...rows);
}
function histogram(name) {
  const values = V.scores[name], [low, high] = extents[name], wide = 320, tall = 46;
  const scale = d3.scaleLinear([low, high === low ? low + 1 : high], [1, wide - 1]);
  const place = (x) => Math.min(39, Math.max(0, Math.floor((scale(x) / wide) * 40)));
  const bins = (rows) => { const found = new Array(40).fill(0); for (const row of rows) if (values[row] !== null) found[place(values[row])] += 1; return found; };
  const whole = bins(ROWS), top = Math.sqrt(d3.max(whole) || 1);  // roots: rare values stay visible
  const limits = ["lowest", "highest"].map((word, side) => {
    const input = element("input", { type: "number", step: "any", placeholder: fixed(side ? high : low), id: `${word}_${name}` });
    input.setAttribute("aria-label", `${word} ${TITLES[name]}`);
    input.onchange = () => { set([0, 1].map((s) => (limits[s].value === "" ? [-Infinity, Infinity][s] : +limits[s].value))); };
    return input;
  });
  const svg = d3.create("svg").attr("viewBox", `0 0 ${wide} ${tall}`).attr("preserveAspectRatio", "none").attr("aria-hidden", "true");
  const bars = (kind) => svg.append("g").attr("class", kind).selectAll("rect").data(whole).join("rect").attr("x", (_, i) => i * 8 + 0.5).attr("width", 7);
  const size = (selection, counts) => selection.data(counts).attr("y", (n) => tall - (n && Math.max(1, (tall * Math.sqrt(n)) / top))).attr("height", (n) => n && Math.max(1, (tall * Math.sqrt(n)) / top));
  size(bars("all"), whole);
  const some = bars("some"), line = svg.append("line").attr("class", "alpha").attr("y2", tall);
  const brush = d3.brushX().extent([[0, 0], [wide, tall]]).on("brush end", (event) => {
    if (!event.sourceEvent) return;
    set(event.selection ? event.selection.map((x) => +scale.invert(x).toPrecision(5)) : [-Infinity, Infinity], true);
  });
  const area = svg.append("g").call(brush);
  function set(range, brushed) {
    const open = !isFinite(range[0]) && !isFinite(range[1]);
    if (open) delete state.filter.scores[name]; else state.filter.scores[name] = range;
    range.forEach((x, side) => (limits[side].value = isFinite(x) ? x : ""));
    if (!brushed) area.call(brush.move, open ? null : range.map((x, side) => (isFinite(x) ? Math.max(0, Math.min(wide, scale(x))) : side * wide)));
    refilter();
  }
  plots[name] = {
    clear: () => { area.call(brush.move, null); limits.forEach((input) => (input.value = "")); },
    update: () => {
      size(some, bins(ROWS.filter((row) => state.visible[row])));
      if (name === "confidence") line.attr("x1", scale(state.alpha)).attr("x2", scale(state.alpha));
      else line.remove();
    },
  };
  return element("div", { className: "score" }, element("header", {}, element("b", { textContent: TITLES[name] }), ...limits), svg.node());
}

/* ---- galleries ---- */
const TABS = [
  ["all", "All"],
  ...(V.scores.concentration ? [["uncertain", "Least certain"]] : []),
  ...(V.scores.familiarity ? [["foreign", "Most foreign"]] : []),
  ["duplicates", `Duplicates (${count(V.groups.length)})`], ["list", "List (0)"],
];
const PRESET = { uncertain: "concentration", foreign: "familiarity" };
function ordered() {
  const rows = ROWS.filter((row) => state.visible[row] && (state.tab !== "list" || state.listed.has(row)));
  const values = V.scores[state.sort];
  if (!values) return state.sort === "file" ? rows.sort((a, b) => (state.up ? 1 : -1) * (V.file[a] < V.file[b] ? -1 : V.file[a] > V.file[b] ? 1 : 0)) : state.up ? rows : rows.reverse();
  return rows.sort((a, b) => (values[a] === null) - (values[b] === null) || (state.up ? 1 : -1) * (values[a] - values[b]) || a - b);
}
function fill() {
  const gallery = $("gallery"), groups = state.tab === "duplicates", page = groups ? 12 : 60;
  state.limit = state.limit || page;
  $("order").hidden = groups;
  let total = 0, about = "";
  if (groups) {
    const found = V.groups.map((rows) => rows.filter((row) => state.visible[row])).filter((rows) => rows.length > 1);
    total = found.length;
    about = total ? `Images with a cosine of at least ${V.threshold} to the first of their group, the largest groups first.` : `No two images have a cosine of ${V.threshold} or more.`;
    gallery.replaceChildren(...found.slice(0, state.limit).map((rows) => element("div", { className: "group" }, element("h3", { textContent: `${count(rows.length)} images` }), element("div", { className: "grid" }, ...rows.slice(0, 36).map((row) => shot(row, V.scores.concentration && fixed(V.scores.concentration[row])))))));
  } else {
    const rows = ordered(), values = V.scores[state.sort];
    total = rows.length;
    about = total ? "" : state.tab === "list" ? "The list is empty: draw a lasso on the map, or put single images on it." : "No image passes the filter.";
    gallery.replaceChildren(element("div", { className: "grid" }, ...rows.slice(0, state.limit).map((row) => shot(row, values && fixed(values[row])))));
  }
  $("about").textContent = about;
  $("about").hidden = !about;
  $("more").hidden = total <= state.limit;
  $("more").textContent = `Show more (${count(Math.max(0, total - state.limit))} left)`;
  $("more").onclick = () => { state.limit += 4 * page; fill(); };
}
function setTab(name) {
  state.tab = name;
  state.limit = 0;
  if (PRESET[name]) setSort(PRESET[name], true);
  for (const each of $("tabs").children) each.setAttribute("aria-selected", each.dataset.tab === name);
  fill();
}
function setSort(name, up) {
  state.sort = name; state.up = up;
  $("sort").value = name;
  $("direction").textContent = name in V.scores ? (up ? "lowest first" : "highest first") : up ? "first to last" : "last to first";
}

/* ---- start ---- */
const options = (box, pairs) => box.append(...pairs.map(([value, textContent]) => element("option", { value, textContent })));
options($("color"), COLORINGS);
options($("sort"), [...SCORES.map((name) => [name, TITLES[name]]), ["", "row of the table"], ["file", "file"]]);
$("color").parentElement.hidden = !COLORINGS.length;
state.color = (COLORINGS.find(([name]) => name === "class") || COLORINGS.find(([name]) => name === "label") || COLORINGS[0] || [""])[0];
$("color").value = state.color;
$("color").onchange = () => { state.color = $("color").value; recolor(); };
$("lasso").onclick = () => setLasso(!lassoMode);
$("reset").onclick = () => d3.select(canvas).transition().duration(300).call(zoom.transform, d3.zoomIdentity);
$("save").onclick = save;
$("clear").onclick = () => setList([]);
$("mark").onclick = () => mark(state.current);
$("take").onclick = () => setList([...state.listed, ...ROWS.filter((row) => state.visible[row])]);
$("unfilter").onclick = () => { state.filter = clean(); SCORES.forEach((name) => plots[name].clear()); fields(); refilter(); recolor(); };
$("sort").onchange = () => { setSort($("sort").value, state.up); fill(); };
$("direction").onclick = () => { setSort(state.sort, !state.up); fill(); };
for (const id of ["alpha", "alpha_number"]) $(id).oninput = () => $(id).value !== "" && setAlpha(+$(id).value);
for (const [name, title] of TABS) {
  const tab = element("button", { textContent: title, onclick: () => setTab(name) });
  tab.dataset.tab = name;
  tab.setAttribute("role", "tab");
  $("tabs").append(tab);
}
d3.select(canvas).call(zoom).on("dblclick.zoom", null);
$("scores").append(...SCORES.map(histogram));
fields();
$("decision").hidden = !CONFIDENCE;
$("undecided").hidden = !!CONFIDENCE;
if (CONFIDENCE) $("alpha").value = $("alpha_number").value = state.alpha;
setSort(V.scores.concentration ? "concentration" : SCORES[0] || "", true);
recolor();
resize();
new ResizeObserver(resize).observe(canvas);
recount();
addEventListener("DOMContentLoaded", () => { refilter(); setTab("all"); marks(); document.body.dataset.ready = "1"; });
