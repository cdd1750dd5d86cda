// Memory over time: all ranks as lines, or one rank as a stack of categories; the limit dashed, the peak marked.
class MemoryChart {
  constructor(host) {
    Object.assign(this, { from: 0, to: 1, rank: -1 });
    this.canvas = el("canvas", { role: "img", "aria-label": "memory over time" });
    this.choice = el("select", { "aria-label": "which rank" });
    this.choice.addEventListener("change", () => { this.rank = Number(this.choice.value); this.draw(); });
    this.key = el("div");
    host.replaceChildren(this.canvas, this.key);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerdown", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    redraws.add(this.redraw = () => { if (this.canvas.isConnected && this.data) this.draw(); });
    new ResizeObserver(this.redraw).observe(this.canvas);
  }

  // Reads memory data of the step whose timeline this is.
  async load(data, { makespan, ranks }) {
    const columns = await unpack(data.packed);
    Object.assign(this, { data, columns, makespan, ranks });
    this.times = Float64Array.from(columns.at, (tick) => tick / TICKS);
    this.total = new Float64Array(this.times.length);
    for (const name of data.categories) columns[name].forEach((bytes, i) => { this.total[i] += bytes; });
    this.top = 1.08 * Math.max(...data.peaks.map((p) => Math.max(p.total, p.capacity)));
    if (this.rank >= ranks.length) this.rank = -1;
    this.choice.replaceChildren(el("option", { value: -1 }, ranks.length > 1 ? "all ranks" : "total"), ...ranks.map(({ name }, i) => el("option", { value: i }, `${name}, by category`)));
    this.choice.value = this.rank;
    this.draw();
  }

  show(from, to) {
    Object.assign(this, { from, to });
    if (!this.data) return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  x(t) { return this.gutter + ((t - this.from) / (this.to - this.from)) * (this.width - this.gutter); }
  y(bytes) { return this.high - (bytes / this.top) * (this.high - 8); }

  draw() {
    const height = 220, [pen, width] = sized(this.canvas, height);
    Object.assign(this, { width, high: height - 20, gutter: width < 560 ? 50 : 58 });
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.lineWidth = 1;
    for (const gib of axisTicks(0, this.top / 2 ** 30, 5)) {
      const y = this.y(gib * 2 ** 30);
      pen.strokeStyle = colour("line");
      pen.beginPath();
      pen.moveTo(this.gutter, y);
      pen.lineTo(width, y);
      pen.stroke();
      pen.fillStyle = colour("soft");
      pen.textAlign = "right";
      pen.fillText(`${three(gib)} GiB`, this.gutter - 6, y, this.gutter - 8);
    }
    pen.textAlign = "center";
    for (const tick of axisTicks(this.from * this.makespan, this.to * this.makespan, (width - this.gutter) / 110)) {
      const text = show.instant(tick), half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(Math.max(this.x(tick / this.makespan), this.gutter + half), width - half), height - 8);
    }
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, 0, width - this.gutter, this.high + 1);
    pen.clip();
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, this.x(1), height);
    pen.clip();
    if (this.rank < 0) this.drawLines(pen); else this.drawStack(pen, this.rank);
    pen.restore();
    pen.setLineDash([6, 4]);
    pen.strokeStyle = pen.fillStyle = colour("bad");
    pen.lineWidth = 1.4;
    for (const capacity of new Set(this.data.peaks.map((p) => p.capacity))) {
      pen.beginPath();
      pen.moveTo(this.gutter, this.y(capacity));
      pen.lineTo(width, this.y(capacity));
      pen.stroke();
      pen.textAlign = "left";
      ringed(pen, `limit ${show.bytes(capacity)}`, this.gutter + 6, this.y(capacity) + (this.y(capacity) < 22 ? 10 : -9));
    }
    pen.restore();
    pen.setLineDash([]);
  }

  // highest value of each pixel from `first` on, as a path
  trace(pen, values, i, width = this.width) {
    const [first, last] = [this.data.offsets[i], this.data.offsets[i + 1]], step = (this.to - this.from) / (width - this.gutter);
    let at = Math.max(first, above(this.times, this.from, first, last) - 1), now = values[at];
    for (let x = this.gutter; x <= width; x++) {
      const until = this.from + (x + 1 - this.gutter) * step;
      let most = now;
      while (at + 1 < last && this.times[at + 1] <= until) { at++; now = values[at]; most = Math.max(most, now); }
      if (x === this.gutter) pen.moveTo(x, this.y(most)); else pen.lineTo(x, this.y(most));
      if (most !== now) pen.lineTo(x + 0.5, this.y(now));
    }
  }

  lineColour(i) {
    const part = this.ranks.length > 1 ? i / (this.ranks.length - 1) : 0;
    return `hsl(${215 + 120 * part} ${62 - 10 * part}% ${isDark() ? 66 : 45}%)`;
  }

  drawLines(pen) {
    pen.lineWidth = this.ranks.length > 16 ? 0.8 : 1.5;
    this.ranks.forEach((_, i) => {
      pen.strokeStyle = this.lineColour(i);
      pen.beginPath();
      this.trace(pen, this.total, i);
      pen.stroke();
    });
    const ends = this.ranks.length > 12 ? [0, this.ranks.length - 1] : this.ranks.keys();
    this.key.replaceChildren(el("div", { class: "legend" }, [...ends].map((i) => el("span", {}, el("i", { style: { background: this.lineColour(i) } }), this.ranks[i].name, this.ranks.length > 12 && i === 0 ? " to" : ""))));
  }

  drawStack(pen, i) {
    const [first, last] = [this.data.offsets[i], this.data.offsets[i + 1]], sum = new Float64Array(this.times.length), layers = [];
    for (const name of this.data.categories) {
      for (let k = first; k < last; k++) sum[k] += this.columns[name][k];
      layers.push([name, sum.slice()]);
    }
    for (const [name, values] of layers.reverse()) {
      pen.fillStyle = memoryColour(name);
      pen.beginPath();
      this.trace(pen, values, i);
      pen.lineTo(this.width, this.y(0));
      pen.lineTo(this.gutter, this.y(0));
      pen.fill();
    }
    this.key.replaceChildren(legend(this.data.categories.map((name) => [name.replaceAll("_", " "), `memory-${name.replaceAll("_", "-")}`])));
    const peak = this.data.peaks[i], x = this.x(peak.at / (this.makespan || 1));
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1.2;
    pen.beginPath();
    pen.arc(x, this.y(peak.total), 4, 0, 7);
    pen.stroke();
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left;
    if (x < this.gutter) return hideTip();
    const t = this.from + ((x - this.gutter) / (this.width - this.gutter)) * (this.to - this.from);
    const at = (i) => Math.max(this.data.offsets[i], above(this.times, t, this.data.offsets[i], this.data.offsets[i + 1]) - 1);
    const facts = this.rank < 0
      ? this.ranks.map(({ name }, i) => [name, this.total[at(i)]]).sort((a, b) => b[1] - a[1]).slice(0, 8)
      : this.data.categories.map((name) => [name.replaceAll("_", " "), this.columns[name][at(this.rank)]]).filter(([, bytes]) => bytes > 0).reverse();
    const title = `${show.instant(t * this.makespan)}${this.rank < 0 ? "" : `, ${show.bytes(this.total[at(this.rank)])}`}`;
    showTip(event.clientX, event.clientY, title, facts.map(([name, bytes]) => [name, show.bytes(bytes)]));
  }
}

// What stands on a rank at its peak.
function peakTable(peak) {
  const most = Math.max(...peak.tensors.map((t) => t[3]));
  const rows = peak.tensors.map(([name, category, count, bytes]) => el("tr", {},
    el("td", {}, el("i", { class: "swatch", title: category, style: { background: `var(--memory-${category.replaceAll("_", "-")})`, marginRight: ".5rem" } }), name, count > 1 ? el("span", { class: "soft" }, ` × ${count}`) : null),
    el("td", { class: "n" }, show.bytes(bytes)), el("td", { class: "meter" }, el("div", { style: { width: `${(100 * bytes) / most}%`, background: `var(--memory-${category.replaceAll("_", "-")})` } }))));
  if (peak.others) rows.push(el("tr", {}, el("td", { class: "soft" }, `${peak.others[0]} others`), el("td", { class: "n" }, show.bytes(peak.others[1])), el("td")));
  return el("div", {},
    el("p", { class: "note" }, `${show.bytes(peak.total)} of ${show.bytes(peak.capacity)}, ${show.time(peak.at)} into the step; 80 % band ${show.bytes(peak.low)} to ${show.bytes(peak.high)}`),
    el("div", { class: "scroll" }, el("table", { class: "wide" }, rows)));
}
