// Bars of the breakdown, the roofline, levers, and how far a prediction is to be trusted.
const part = (name, seconds, whole) => el("i", {
  "data-part": name, style: { width: `${(100 * seconds) / whole}%`, background: `var(--kind-${name.replaceAll(" ", "-")})` },
  onpointermove: (event) => showTip(event.clientX, event.clientY, KIND_WORDS[name] || name, [["takes", show.time(seconds)], ["of the step", show.percent(seconds / whole)]]),
  onpointerleave: hideTip,
});

function breakdownCard(data) {
  const { mean, ranks, whole } = data, names = Object.keys(mean).filter((name) => mean[name] > 0);
  const sorted = [...names].sort((a, b) => mean[b] - mean[a]);
  const table = el("table", { class: "wide" }, sorted.map((name) => el("tr", {},
    el("td", {}, el("i", { class: "swatch", style: { background: `var(--kind-${name})`, marginRight: ".5rem" } }), KIND_WORDS[name] || name),
    el("td", { class: "n" }, show.time(mean[name])), el("td", { class: "n" }, show.percent(mean[name] / whole)))));
  const each = ranks.length > 1 ? [el("h3", {}, "rank by rank"), el("div", { class: "rows" }, ranks.flatMap(([rank, row]) => [
    el("span", {}, rank), el("div", { class: "bar thin" }, names.map((name, i) => (row[i] > 0 ? part(name, row[i], whole) : null)))]))] : [];
  return el("div", {}, el("div", { class: "bar" }, names.map((name) => part(name, mean[name], whole))), el("div", { class: "scroll", style: { marginTop: ".6rem" } }, table), each);
}

function ladder(rows, whole) {
  const longest = Math.max(...rows.map(([, seconds]) => seconds));
  return el("div", { class: "scroll" }, el("table", { class: "wide" }, rows.map(([words, seconds]) => el("tr", {},
    el("td", {}, breakable(words)), el("td", { class: "n" }, show.time(seconds)), el("td", { class: "n" }, show.percent(seconds / whole)),
    el("td", { class: "meter" }, el("div", { style: { width: `${Math.max(0, (100 * seconds) / longest)}%` } }))))));
}

const WORKS = { gemm: "forward", attention: "backward", memory_bound: "recompute" };
const workColour = (work) => `var(--kind-${WORKS[work] || "host"})`;
const WORK_WORDS = { gemm: "matrix products", attention: "attention", memory_bound: "memory-bound" };

// Both axes logarithmic; kernels without FLOP have no intensity and stand in the table only.
function rooflineChart(data) {
  const kernels = data.kernels.filter((k) => k.flops > 0 && k.bytes > 0), W = innerWidth < 700 ? 400 : 640, H = innerWidth < 700 ? 300 : 360, L = 62, B = 34, T = 12, R = 12;
  const spot = (k) => [k.flops / k.bytes, (k.flops * k.runs) / k.seconds];
  const peaks = Object.entries(data.peaks), top = Math.max(...peaks.map(([, p]) => p), 1);
  const xs = kernels.map((k) => spot(k)[0]).concat(peaks.map(([, p]) => p / data.bandwidth)), ys = kernels.map((k) => spot(k)[1]);
  const decade = (values, way) => 10 ** Math[way](Math.log10(values));
  const x0 = decade(Math.min(...xs) / 1.2, "floor"), x1 = decade(Math.max(...xs) * 1.2, "ceil"), y0 = decade(Math.min(...ys, top / 50) / 1.2, "floor"), y1 = top * 2.2;
  const X = (v) => L + (Math.log(v / x0) / Math.log(x1 / x0)) * (W - L - R), Y = (v) => H - B - (Math.log(v / y0) / Math.log(y1 / y0)) * (H - B - T);
  const labels = [], picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "roofline of the kernels" });
  for (let v = x0; v <= x1 * 1.01; v *= 10) picture.append(svg("line", { class: "grid", x1: X(v), x2: X(v), y1: T, y2: H - B }), svg("text", { x: Math.min(X(v), W - 3), y: H - B + 15, "text-anchor": X(v) > W - R - 9 ? "end" : "middle" }, v < 1000 ? three(v) : `${three(v / 1000)} k`));
  for (let v = y0; v <= y1; v *= 10) picture.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: Y(v), y2: Y(v) }), svg("text", { x: L - 7, y: Y(v) + 4, "text-anchor": "end" }, show.rate(v).replace("/s", "")));
  picture.append(svg("text", { x: (L + W) / 2, y: H - 3, "text-anchor": "middle" }, "intensity: FLOP per byte of device memory"), svg("text", { x: L + 4, y: T + 2 }, "FLOP/s"));
  for (const [dtype, peak] of peaks) {
    const ridge = peak / data.bandwidth, low = Math.max(x0, y0 / data.bandwidth);
    picture.append(svg("path", { class: "roof", d: `M${X(low)} ${Y(low * data.bandwidth)}L${X(ridge)} ${Y(peak)}L${X(x1)} ${Y(peak)}` }));
    labels.push(svg("text", { class: "over", x: W - R, y: Y(peak) - 5, "text-anchor": "end" }, `${dtype}: ${show.rate(peak)}`));
  }
  const slope = Math.atan2(Y(1e3) - Y(1), X(1e3) - X(1)) * (180 / Math.PI), from = Math.max(x0, y0 / data.bandwidth) * 1.6;
  picture.append(svg("text", { transform: `translate(${X(from)} ${Y(from * data.bandwidth) - 6}) rotate(${slope})` }, show.wire(data.bandwidth)));
  const most = Math.max(...kernels.map((k) => k.seconds));
  for (const k of kernels) {
    const [x, y] = spot(k), say = (event) => showTip(event.clientX, event.clientY, `${k.name} (${k.phase})`, kernelFacts(k, data));
    picture.append(svg("circle", { cx: X(x), cy: Y(y), r: 3 + 9 * Math.sqrt(k.seconds / most), style: `fill:${workColour(k.work)};fill-opacity:.82`, onpointermove: say, onpointerdown: say, onpointerleave: hideTip }));
  }
  picture.append(...labels);
  return picture;
}

function roofOf(k, data) {
  const peak = data.peaks[k.dtype] || Math.max(...Object.values(data.peaks)), rate = (k.flops * k.runs) / k.seconds, wire = (k.bytes * k.runs) / k.seconds;
  return Math.max(rate / peak, wire / data.bandwidth);
}

const kernelFacts = (k, data) => [
  ["shape", k.shape.length ? k.shape.join(" × ") : null], ["number format", k.dtype], ["runs in a step", show.count(k.runs)], ["each", show.time(k.seconds / k.runs)],
  ["together", show.time(k.seconds)], ["reaches", k.flops ? show.rate((k.flops * k.runs) / k.seconds) : null],
  ["moves", show.wire((k.bytes * k.runs) / k.seconds)], ["of its roof", show.percent(roofOf(k, data), 0)],
];

function kernelTable(data, most) {
  const whole = data.kernels.reduce((sum, k) => sum + k.seconds, data.left_out ? data.left_out[1] : 0);
  const row = (k) => el("tr", {}, el("td", {}, el("i", { class: "swatch", style: { background: workColour(k.work), marginRight: ".5rem" } }), k.name, el("span", { class: "soft" }, ` ${k.phase}`)),
    el("td", { class: "n" }, show.time(k.seconds)), el("td", { class: "n" }, show.percent(k.seconds / whole)), el("td", { class: "n" }, show.percent(roofOf(k, data), 0)));
  return el("div", { class: "scroll" }, el("table", { class: "wide" }, el("tr", {}, el("th", {}, "kernel"), el("th", { class: "n" }, "in a step"), el("th", { class: "n" }, "of kernels"), el("th", { class: "n" }, "of its roof")), data.kernels.slice(0, most).map(row)));
}

// Changes of one thing: how much quicker, does it fit, the setting to copy.
function leverTable(levers, now) {
  const most = Math.max(...levers.map((l) => Math.abs(now / l.seconds - 1)), 1e-9);
  return el("div", { class: "scroll" }, el("table", { class: "wide levers" },
    el("tr", {}, el("th", {}, "change"), el("th", { class: "n" }, "step"), el("th", { class: "n" }, "speed"), el("th", { class: "meter" }), el("th", { class: "n" }, "fullest rank"), el("th")),
    levers.map((l) => {
      const gain = now / l.seconds - 1, text = l.settings.map((s) => `--set ${/^[\w.=-]+$/.test(s) ? s : `'${s}'`}`).join(" ");
      const copy = el("button", { type: "button", title: text, onclick: () => copyText(text, copy) }, "copy");
      return el("tr", {}, el("td", {}, breakable(l.name)), el("td", { class: "n" }, show.time(l.seconds)), el("td", { class: `n ${gain > 0 ? "good" : ""}` }, show.signed(gain)),
        el("td", { class: "meter" }, el("div", { class: gain > 0 ? "" : "slower", style: { width: `${(100 * Math.abs(gain)) / most}%` } })),
        el("td", { class: "n" }, show.bytes(l.bytes), " ", el("span", { class: `chip ${l.fits ? "good" : "bad"}` }, l.fits ? "fits" : "does not fit"),
          l.beyond ? el("div", {}, el("span", { class: "chip bad", title: `the framework does not run it: ${l.beyond}` }, "not run")) : null), el("td", {}, l.settings.length ? copy : null));
    })));
}

// The band as a line: low, value, high, on an axis from zero.
function bandGauge(value, low, high) {
  const top = high * 1.08;
  return el("div", { class: "gauge" }, el("i", { style: { left: `${(100 * low) / top}%`, width: `${(100 * (high - low)) / top}%`, opacity: 0.45 } }), el("b", { style: { left: `${(100 * value) / top}%` } }));
}

const tile = (label, value, under, extra, broad) => el("div", { class: `tile${broad ? " broad" : ""}` }, el("div", { class: "label" }, label), el("div", { class: "value" }, value), extra, el("div", { class: "under" }, under));

function tilesOf(answer) {
  const a = answer, room = a.peak / a.capacity;
  const full = el("div", { class: `gauge${a.fits ? "" : " full"}` }, el("i", { style: { left: 0, width: `${Math.min(100, 100 * room)}%` } }));
  const memory = a.fits ? `${show.percent(room, 0)} of ${show.bytes(a.capacity)}` : a.peak > a.capacity ? `${show.bytes(a.peak - a.capacity)} more than ${show.bytes(a.capacity)}` : "the host's memory, or its drives, are too small";
  return [
    tile("one step", show.time(a.step), `80 % band: ${show.time(a.low)} to ${show.time(a.high)}`, bandGauge(a.step, a.low, a.high), true),
    tile("fullest rank", el("span", { class: a.fits ? "" : "bad" }, show.bytes(a.peak)), el("span", { class: a.fits ? "good" : "bad" }, a.fits ? "fits: " : "does not fit: ", memory), full, true),
    tile("model FLOP utilisation", show.percent(a.mfu), `${show.rate(a.flops)} per GPU; HFU ${show.percent(a.hfu)}`),
    tile("tokens per second", show.count(a.tokens), `${show.count(a.tokens / a.gpus)} per GPU on ${show.count(a.gpus)}`),
    tile("bubble", show.percent(a.bubble), "of the step: idle, or waiting for messages between ranks"),
  ];
}
