// The timeline: zoom, pan, hover, choose.  Where bars are narrower than some pixels, columns show what ran in their time, as
// shares of their height; prefix sums make that a few look-ups a column, however many bars there are.
const ACTIONS = "FBIW";
const UPDATE = 4, NONE = 2 ** 32 - 1;
const AXIS = 22;

class Timeline {
  // host: element; choose(bar): told what was clicked; view(t0, t1): told what is shown; drop(bar, t): told where a bar was dragged
  constructor(host, { choose = () => {}, view = () => {}, drop = null } = {}) {
    Object.assign(this, { choose, tell: view, drop, scale: 1, from: 0, to: 1, path: false, picked: -1, held: new Map() });
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "timeline of the step: drag to pan, Ctrl and wheel or two fingers to zoom, arrow keys and + - 0" });
    host.replaceChildren(this.canvas);
    this.listen();
    redraws.add(this.redraw = () => { if (this.canvas.isConnected && this.data) this.draw(); });
    new ResizeObserver(this.redraw).observe(this.canvas);
  }

  // Shows up to `scale` times the step, so that several stand on one scale of time.
  rescale(scale) {
    const all = this.from <= 0 && this.to >= this.scale - 1e-9;
    this.scale = scale;
    if (all || this.to > scale) [this.from, this.to] = [0, scale];
    this.draw();
  }

  // Reads timeline data; what was shown stays shown, in parts of the step, unless it was all.
  async load(data, scale = 1) {
    const columns = await unpack(data.packed), special = data.labels ? (await unpack(data.labels.packed)).label : null;
    Object.assign(this, { data, columns, special, chain: null, picked: -1, dragged: null });
    this.prepare();
    this.rescale(scale);
  }

  prepare() {
    const { gap, length, kind } = this.columns, count = this.data.bars;
    this.start = new Float64Array(count);
    this.end = new Float64Array(count);
    this.latest = new Float64Array(count); // the latest end so far in the lane
    this.lanes = this.data.lanes.map(([rank, lane, first], i) => {
      const last = i + 1 < this.data.lanes.length ? this.data.lanes[i + 1][2] : count;
      let at = 0, latest = 0;
      for (let b = first; b < last; b++) {
        at = (at + gap[b]) % 2 ** 32;
        this.start[b] = at / TICKS;
        this.end[b] = (at + length[b]) / TICKS;
        latest = Math.max(latest, this.end[b]);
        this.latest[b] = latest;
      }
      const kinds = [...new Set(kind.subarray(first, last))].sort((a, b) => a - b);
      const sums = kinds.map((k) => {
        const sum = new Float64Array(last - first + 1);
        for (let b = first; b < last; b++) sum[b - first + 1] = sum[b - first] + (kind[b] === k ? this.end[b] - this.start[b] : 0);
        return sum;
      });
      return { rank, lane, first, last, kinds, sums };
    });
    this.strips = [...new Set(this.lanes.filter((l) => l.lane >= 3).map((l) => l.lane))].sort((a, b) => a - b);
    this.place = new Map(this.data.ranks.map(({ rank }, i) => [rank, i]));
    this.kindsSeen = [...new Set(this.lanes.flatMap((l) => l.kinds))].sort((a, b) => a - b).map((k) => this.data.kinds[k]);
  }

  layout() {
    const ranks = this.data.ranks.length, narrow = this.canvas.clientWidth < 560;
    this.band = Math.max(5, Math.min(narrow ? 40 : 46, 480 / ranks));
    this.gutter = this.band < 9 && ranks > 1 ? 34 : narrow ? 50 : 58;
    return AXIS + this.band * ranks + 2;
  }

  // top and bottom of a lane inside its band, as parts of it
  lane(lane) {
    const split = this.strips.length ? 0.68 : 0.92;
    if (lane === 0) return [0.06, split];
    if (lane === 1) return [0.06, (0.06 + split) / 2];
    if (lane === 2) return [(0.06 + split) / 2, split];
    const each = (0.95 - split) / this.strips.length, i = this.strips.indexOf(lane);
    return [split + 0.02 + i * each, split + 0.02 + (i + 0.9) * each];
  }

  x(t) { return this.gutter + ((t - this.from) / (this.to - this.from)) * (this.width - this.gutter); }
  t(x) { return this.from + ((x - this.gutter) / (this.width - this.gutter)) * (this.to - this.from); }

  draw() {
    const height = this.layout();
    const [pen, width] = sized(this.canvas, height);
    this.width = width;
    this.colours = this.data.kinds.map(kindColour);
    this.drawAxis(pen, height);
    const idle = kindColour("bubble"), [top, bottom] = this.lane(0), left = Math.max(this.gutter, this.x(0)), right = Math.min(width, this.x(1));
    pen.fillStyle = idle;
    this.data.ranks.forEach((_, i) => { if (right > left) pen.fillRect(left, AXIS + (i + top) * this.band, right - left, (bottom - top) * this.band); });
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, AXIS, width - this.gutter, height - AXIS);
    pen.clip();
    for (const lane of this.lanes) this.drawLane(pen, lane);
    if (this.path) this.drawPath(pen);
    if (this.picked >= 0) this.drawPicked(pen, this.picked, 0);
    if (this.dragged) this.drawPicked(pen, this.dragged.bar, this.dragged.by);
    pen.restore();
    this.canvas.dataset.view = `${this.from} ${this.to}`;
    this.tell(this.from, this.to);
  }

  drawAxis(pen, height) {
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = colour("soft");
    pen.strokeStyle = colour("line");
    pen.lineWidth = 1;
    const whole = this.data.makespan, unit = this.data.unit;
    pen.textAlign = "center";
    const low = this.from * whole, high = this.to * whole;
    for (const tick of axisTicks(low, high, (this.width - this.gutter) / 110)) {
      const x = this.x(tick / whole);
      pen.beginPath();
      pen.moveTo(x, AXIS - 4);
      pen.lineTo(x, height);
      pen.stroke();
      const text = unit ? three(tick) : show.instant(tick), half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(Math.max(x, this.gutter + half), this.width - half), 9);
    }
    pen.textAlign = "right";
    const every = Math.max(1, Math.ceil(12 / this.band));
    this.data.ranks.forEach(({ rank }, i) => {
      const text = this.gutter > 40 && this.band >= 9 ? `rank ${rank}` : String(rank);
      if (i % every === 0) pen.fillText(text, this.gutter - 7, AXIS + (i + 0.42) * this.band);
    });
  }

  drawLane(pen, lane) {
    const [top, bottom] = this.lane(lane.lane);
    const y = AXIS + (this.place.get(lane.rank) + top) * this.band, h = (bottom - top) * this.band;
    const first = above(this.latest, this.from, lane.first, lane.last), last = above(this.start, this.to, first, lane.last);
    const wide = this.x(Math.min(this.to, this.latest[Math.max(lane.first, last - 1)])) - this.x(Math.max(this.from, this.start[Math.min(first, lane.last - 1)]));
    if (last - first > 0.4 * wide && last - first > 8) this.drawDense(pen, lane, y, h);
    else this.drawBars(pen, lane, first, last, y, h);
  }

  drawBars(pen, lane, first, last, y, h) {
    const { kind, microbatch, action, path, way } = this.columns, numbers = lane.lane === 0 && h >= 9;
    pen.font = `${Math.min(12, Math.max(9, h * 0.55))}px system-ui, sans-serif`;
    pen.textAlign = "center";
    for (let b = first; b < last; b++) {
      const x0 = this.x(this.start[b]), w = this.x(this.end[b]) - x0;
      pen.globalAlpha = this.path && !(path[b] & 1) ? 0.28 : 1;
      pen.fillStyle = this.colours[kind[b]];
      pen.fillRect(x0, y, Math.max(w - (w > 3 ? 0.7 : 0), 0.6), h);
      if (way && way[b]) {
        pen.fillStyle = "rgb(20 10 60 / .3)";
        pen.fillRect(x0, y, Math.max(w - (w > 3 ? 0.7 : 0), 0.6), h);
      }
      if (numbers && w > 11 && microbatch[b] !== NONE && action[b] < UPDATE) {
        const text = String(microbatch[b]), low = Math.max(x0, this.gutter), high = Math.min(x0 + w, this.width);
        if (pen.measureText(text).width + 3 < high - low) {
          pen.fillStyle = way && way[b] ? "rgb(255 255 255 / .92)" : "rgb(10 12 16 / .82)";
          pen.fillText(text, (low + high) / 2, y + h / 2 + 0.5);
        }
      }
    }
    pen.globalAlpha = 1;
  }

  drawDense(pen, lane, y, h) {
    const wide = 3, step = (wide * (this.to - this.from)) / (this.width - this.gutter);
    const before = lane.sums.map((_, k) => this.covered(lane, k, this.from));
    for (let x = this.gutter; x < this.width; x += wide) {
      const until = this.from + ((x - this.gutter) / wide + 1) * step;
      let base = y + h;
      lane.kinds.forEach((kind, k) => {
        const now = this.covered(lane, k, until), part = Math.min(1, (now - before[k]) / step) * h;
        before[k] = now;
        if (part > 0.05) {
          pen.fillStyle = this.colours[kind];
          pen.fillRect(x, Math.max(y, base - part), wide + 0.02, Math.min(part, base - y) + 0.3);
          base -= part;
        }
      });
    }
  }

  // time that bars of a lane's k-th kind take before t
  covered(lane, k, t) {
    const b = above(this.start, t, lane.first, lane.last) - 1;
    if (b < lane.first) return 0;
    const over = this.columns.kind[b] === lane.kinds[k] ? Math.max(0, this.end[b] - t) : 0;
    return lane.sums[k][b - lane.first + 1] - over;
  }

  drawPath(pen) {
    if (!this.chain) {
      const own = [];
      for (const lane of this.lanes) if (lane.lane < 3) for (let b = lane.first; b < lane.last; b++) if (this.columns.path[b] & 1) own.push([this.start[b], this.end[b], this.place.get(lane.rank)]);
      this.chain = own.sort((a, b) => a[0] - b[0]);
    }
    const [top, bottom] = this.lane(0), middle = bottom;
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 2;
    pen.beginPath();
    let drawn = false, seen = -1e9;
    for (const [start, end, rank] of this.chain) {
      if (end < this.from || start > this.to) continue;
      const x0 = this.x(start), x1 = this.x(end), y = AXIS + (rank + middle) * this.band;
      if (x1 - seen < 0.7 && drawn) continue;
      if (drawn) pen.lineTo(x0, y); else pen.moveTo(x0, y);
      pen.lineTo(x1, y);
      drawn = true;
      seen = x1;
    }
    pen.stroke();
  }

  // a frame around a bar; one that is dragged is drawn where it is now
  drawPicked(pen, b, by) {
    const lane = this.laneOf(b), [top, bottom] = this.lane(lane.lane);
    const x = this.x(this.start[b]) + by, w = Math.max(2, this.x(this.end[b]) - this.x(this.start[b]));
    if (by) {
      pen.globalAlpha = 0.75;
      pen.fillStyle = this.colours[this.columns.kind[b]];
      pen.fillRect(x, AXIS + (this.place.get(lane.rank) + top) * this.band, w, (bottom - top) * this.band);
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 2;
    pen.strokeRect(x, AXIS + (this.place.get(lane.rank) + top) * this.band, w, (bottom - top) * this.band);
  }

  // the bar under a point; within 3 pixels of it, where bars are thin
  hit(x, y) {
    const row = Math.floor((y - AXIS) / this.band), t = this.t(x);
    if (row < 0 || row >= this.data.ranks.length || x < this.gutter) return -1;
    const rank = this.data.ranks[row].rank, inside = (y - AXIS) / this.band - row, slack = (3 * (this.to - this.from)) / (this.width - this.gutter);
    let best = -1, distance = slack;
    for (const lane of this.lanes) {
      if (lane.rank !== rank) continue;
      const [top, bottom] = this.lane(lane.lane);
      if (inside < top - 0.02 || inside > bottom + 0.02) continue;
      const last = above(this.start, t + slack, lane.first, lane.last);
      for (let b = last - 1; b >= lane.first && this.latest[b] > t - slack; b--) {
        const off = Math.max(this.start[b] - t, t - this.end[b], 0);
        if (off < distance || (off === 0 && distance === 0 && best < 0)) [best, distance] = [b, off];
        if (off === 0) break;
      }
    }
    return best;
  }

  laneOf(b) { return this.lanes.find((l) => b >= l.first && b < l.last); }

  label(b) {
    const { item, action, chunk, microbatch } = this.columns, own = this.data.labels;
    if (own && this.special[b] >= 0) return own.texts[this.special[b]];
    const name = this.data.items.length ? this.data.items[item[b]].name : "";
    return action[b] < UPDATE ? `${chunk[b]}${ACTIONS[action[b]]}${microbatch[b]}` : name;
  }

  facts(b) {
    const { item, kind, action, chunk, microbatch, takes, gives, path } = this.columns, { makespan, unit } = this.data;
    const time = (part) => (unit ? three(part * makespan) : show.time(part * makespan)), instant = (part) => (unit ? three(part * makespan) : show.instant(part * makespan));
    const rank = this.laneOf(b).rank, one = this.data.items[item[b]] || {};
    const parts = path && path[b] & 2, both = this.data.kinds[kind[b]] === "recompute" || (one.split && one.split.recompute > 0) ? " (recompute and backward)" : "";
    const effect = (n) => (n === undefined || n === NONE || !this.data.effects[n] ? null : `${show.bytes(this.data.effects[n][0])} (${this.data.effects[n][1]})`);
    return [
      ["is", this.data.kinds[kind[b]] + (one.name && action[b] < UPDATE ? `: ${parts ? "several segments, first " : ""}${one.name}` : "")],
      ["rank", String(rank)],
      ["microbatch", microbatch[b] === NONE ? null : String(microbatch[b])],
      ["chunk", chunk[b] === NONE ? null : String(chunk[b])],
      ["from", `${instant(this.start[b])} to ${instant(this.end[b])}`],
      ["lasts", time(this.end[b] - this.start[b])],
      ["message", one.message === undefined ? null : `${show.bytes(one.message)} ${one.what} over ${one.group}`],
      ["computes", one.flops && !parts ? show.flops(one.flops) + both : null],
      ["reads, writes", one.moved && !parts ? show.bytes(one.moved) + both : null],
      ["allocates", effect(takes && takes[b])],
      ["frees", effect(gives && gives[b])],
      ["longest chain", path && path[b] & 1 ? "is on it" : null],
    ];
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    const least = 1e-7, span = Math.min(this.scale, Math.max(least, (this.to - this.from) * factor));
    const part = (at - this.from) / (this.to - this.from);
    this.show(at - part * span, at + (1 - part) * span);
  }

  show(from, to) {
    const span = Math.min(to - from, this.scale);
    this.from = Math.max(0, Math.min(from, this.scale - span));
    this.to = this.from + span;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  listen() {
    const canvas = this.canvas, at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("wheel", (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!(event.ctrlKey || event.metaKey || event.shiftKey || sideways || document.activeElement === canvas)) return;
      event.preventDefault();
      if (sideways || event.shiftKey) {
        const move = ((sideways ? event.deltaX : event.deltaY) / this.width) * (this.to - this.from);
        this.show(this.from + move, this.to + move);
      } else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 120), this.t(at(event)[0]));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.held.set(event.pointerId, at(event));
      this.moved = 0;
      const bar = this.drop && this.held.size === 1 ? this.hit(...at(event)) : -1;
      this.dragged = bar >= 0 ? { bar, by: 0 } : null;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = at(event), before = this.held.get(event.pointerId), span = this.to - this.from, wide = this.width - this.gutter;
      if (!before) return this.hover(event, now);
      if (this.held.size === 2) {
        const other = [...this.held].find(([id]) => id !== event.pointerId)[1];
        const was = Math.max(8, Math.abs(before[0] - other[0])), is = Math.max(8, Math.abs(now[0] - other[0]));
        this.zoom(was / is, this.t((now[0] + other[0]) / 2));
        this.moved += 9;
      } else if (this.dragged) {
        hideTip();
        this.moved += Math.abs(now[0] - before[0]);
        this.dragged.by += now[0] - before[0];
        this.draw();
      } else {
        this.moved += Math.abs(now[0] - before[0]);
        if (this.moved > 4) { hideTip(); this.show(this.from - ((now[0] - before[0]) / wide) * span, this.to - ((now[0] - before[0]) / wide) * span); }
      }
      this.held.set(event.pointerId, now);
    });
    const release = (event) => {
      const dragged = this.dragged;
      this.dragged = null;
      if (dragged && this.moved > 4 && event.type === "pointerup") {
        this.held.delete(event.pointerId);
        this.drop(dragged.bar, this.start[dragged.bar] + (dragged.by / (this.width - this.gutter)) * (this.to - this.from));
        return this.draw();
      }
      if (this.held.delete(event.pointerId) && this.moved <= 4 && event.type === "pointerup") {
        const now = at(event);
        this.picked = this.hit(...now);
        this.choose(this.picked);
        if (event.pointerType !== "mouse") this.hover(event, now);
        this.draw();
      }
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("dblclick", (event) => this.zoom(0.3, this.t(at(event)[0])));
    canvas.addEventListener("keydown", (event) => {
      const step = (this.to - this.from) / 8;
      const keys = { ArrowLeft: () => this.show(this.from - step, this.to - step), ArrowRight: () => this.show(this.from + step, this.to + step), "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), 0: () => this.show(0, this.scale) };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
  }

  hover(event, [x, y]) {
    const b = this.hit(x, y);
    if (b < 0) return hideTip();
    showTip(event.clientX, event.clientY, this.label(b), this.facts(b), this.colours[this.columns.kind[b]]);
  }

  tools() {
    const button = (text, title, act) => el("button", { type: "button", title, "aria-label": title, onclick: act }, text);
    const path = button("longest chain", "show the chain of work and messages that sets the step time", () => {
      this.path = !this.path;
      path.setAttribute("aria-pressed", this.path);
      this.draw();
    });
    path.setAttribute("aria-pressed", false);
    return el("div", { class: "tools" }, this.columns.path ? path : null,
      button("−", "zoom out", () => this.zoom(1 / 0.5)), button("+", "zoom in", () => this.zoom(0.5)), button("all", "show the whole step", () => this.show(0, this.scale)));
  }
}
