// What all pages share: elements, numbers in words, colours, packed columns, the tooltip.
const byId = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") Object.assign(node.style, value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key.startsWith("aria-")) node.setAttribute(key, String(value));
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity));
  return node;
}

const three = (x) => {
  const text = Number(x).toPrecision(3);
  return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
};
const scaled = (x, steps) => {
  for (const [limit, unit] of steps) if (Math.abs(x) >= limit * 0.9995) return `${three(x / limit)} ${unit}`;
  const [limit, unit] = steps[steps.length - 1];
  return `${three(x / limit)} ${unit}`;
};
const show = {
  time: (s) => (s === 0 ? "0 s" : Math.abs(s) >= 999.5 ? `${Math.round(s).toLocaleString("en")} s`
    : scaled(s, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]])),
  instant: (s) => (s >= 1 ? `${Number(s.toPrecision(6))} s` : s >= 1e-3 ? `${Number((s * 1e3).toPrecision(6))} ms` : show.time(s)),
  bytes: (b) => (b === 0 ? "0 B" : scaled(b, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]])),
  flops: (x) => (x === 0 ? "0 FLOP" : scaled(x, [[1e15, "PFLOP"], [1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1, "FLOP"]])),
  rate: (x) => scaled(x, [[1e15, "PFLOP/s"], [1e12, "TFLOP/s"], [1e9, "GFLOP/s"], [1, "FLOP/s"]]),
  wire: (x) => scaled(x, [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1, "B/s"]]),
  percent: (x, digits = 1) => `${(100 * x).toFixed(digits)} %`,
  signed: (x, digits = 1) => `${x >= 0 ? "+" : "−"}${Math.abs(100 * x).toFixed(digits)} %`,
  count: (x) => Math.round(x).toLocaleString("en"),
  days: (s) => (s >= 86400 ? `${three(s / 86400)} days` : s >= 3600 ? `${three(s / 3600)} h` : `${three(s / 60)} min`),
  money: (x) => (x >= 1e6 ? `${three(x / 1e6)} M$` : x >= 100 ? `${Math.round(x).toLocaleString("en")} $` : `${three(x)} $`),
};

const styles = getComputedStyle(document.documentElement);
const colour = (name) => styles.getPropertyValue(`--${name}`).trim();
const kindColour = (name) => colour(`kind-${name.replaceAll(" ", "-")}`);
const memoryColour = (name) => colour(`memory-${name.replaceAll("_", "-")}`);
const redraws = new Set();
const redrawAll = () => redraws.forEach((draw) => draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function themeButton() {
  const button = el("button", { class: "quiet", type: "button", id: "theme", title: "light or dark", "aria-label": "light or dark" }, "◐");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    redrawAll();
  });
  return button;
}

const TICKS = 2 ** 32 - 2;
const ARRAYS = { u8: [Uint8Array, 1], u16: [Uint16Array, 2], u32: [Uint32Array, 4], f32: [Float32Array, 4], i32: [Int32Array, 4] };

async function unpack(packed) {
  const deflated = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const out = {};
  let at = 0;
  for (const [name, kind, length] of packed.columns) {
    const [Kind, width] = ARRAYS[kind];
    const own = new Uint8Array(length * width);
    for (let k = 0; k < width; k++) for (let i = 0; i < length; i++) own[i * width + k] = bytes[at + k * length + i];
    at += length * width;
    out[name] = new Kind(own.buffer);
  }
  return out;
}

// First index in [low, high) whose value is above the limit.
function above(values, limit, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

const tip = el("div", { id: "tip", role: "status" });
document.body.append(tip);
const factList = (facts) => el("dl", {}, facts.filter(([, value]) => value !== null && value !== undefined && value !== "")
  .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
function showTip(x, y, title, facts, swatch) {
  tip.replaceChildren(el("b", {}, swatch ? el("i", { class: "swatch", style: { background: swatch } }) : null, title), factList(facts));
  tip.classList.add("on");
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth - 8 ? x - width - 14 : x + 14;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 16 + height > innerHeight - 8 ? Math.max(8, y - height - 12) : y + 16}px`;
}
const hideTip = () => tip.classList.remove("on");
addEventListener("scroll", hideTip, { passive: true });

// A canvas that knows the pixels of its screen; returns the drawing context in CSS pixels.
function sized(canvas, height) {
  const width = Math.max(60, canvas.clientWidth), dense = Math.min(devicePixelRatio || 1, 3);
  if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width];
}

// Round steps of an axis from low to high, about `wanted` of them.
function axisTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].find((k) => k * power >= rough) * power, out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

// Names of code may break behind ":" and "_".
const breakable = (text) => text.split(/(?<=[:_])(?=\w)/).flatMap((word, i) => (i ? [el("wbr"), word] : [word]));

// Text over lines: the ground shows around its letters.
function ringed(pen, text, x, y) {
  pen.save();
  pen.setLineDash([]);
  pen.lineJoin = "round";
  pen.lineWidth = 4;
  pen.strokeStyle = colour("card");
  pen.strokeText(text, x, y);
  pen.restore();
  pen.fillText(text, x, y);
}

function legend(entries) {
  return el("div", { class: "legend" }, entries.map(([name, variable]) =>
    el("span", {}, el("i", { style: { background: `var(--${variable})` } }), name)));
}
const kindLegend = (kinds) => legend(kinds.map((kind) => [KIND_WORDS[kind] || kind, `kind-${kind.replaceAll(" ", "-")}`]));
const scheduleWords = (name) => name.replace("one_f_one_b", "1f1b").replaceAll("_", " ");
const KIND_WORDS = {
  tp: "tensor parallel", cp: "context parallel", ep: "expert parallel", dp: "data parallel", pp: "pipeline messages", bubble: "bubble (idle)",
};

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { style: { position: "fixed", opacity: 0 } }, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}
