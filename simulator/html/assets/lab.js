// The pipeline lab: a schedule alone, whose actions can be dragged to another place in their rank's order.
class Lab {
  constructor(choices, ask) {
    Object.assign(this, { choices, ask, orders: null, first: null, asked: 0,
      shape: { schedule: "one_f_one_b", ranks: 4, microbatches: 8, chunks_per_rank: 1, forward: 1, input_grad: 1, weight_grad: 1, transfer: 0 } });
    this.said = el("p", { class: "bad", role: "alert" });
    this.tiles = el("div", { class: "tiles" });
    this.panel = el("div", { class: "panel" });
    this.lineHost = el("div");
    this.line = new Timeline(this.lineHost, { drop: (bar, t) => this.move(bar, t) });
    this.key = el("div");
    this.reset = el("button", { type: "button", onclick: () => { this.orders = null; this.draw(); } }, "the schedule's own order");
    this.copy = el("button", { type: "button", onclick: () => copyText(this.answer.orders.map((cells) => cells.join(",")).join("\n") + "\n", this.copy), title: "dtsim schedule mine.csv and dtsim run --set plan.schedule=mine.csv read it" }, "copy as CSV");
    this.view = el("div", { class: "bench", id: "lab" }, el("aside", { class: "card" }, this.panel),
      el("div", { class: "results" }, this.tiles, el("section", { class: "card" },
        el("div", { class: "head" }, el("h2", {}, "Drag an action to another place in its rank's order"), el("div", { class: "tools" }, this.reset, this.copy)),
        this.said, this.lineHost, this.key)));
    this.fill();
  }

  fill() {
    const put = (name) => (value) => { this.shape[name] = value; this.orders = null; this.draw(); };
    const schedules = this.choices.schedules.filter((s) => s.flush && s.chunks.length);
    const chunks = (schedules.find((s) => s.name === this.shape.schedule) || schedules[0]).chunks;
    const time = (v) => `${v}`;
    const times = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3];
    this.panel.replaceChildren(
      group("schedule", chooser("schedule", schedules.map((s) => ({ value: s.name, text: scheduleWords(s.name) })), this.shape.schedule, (name) => {
        const takes = schedules.find((s) => s.name === name).chunks;
        Object.assign(this.shape, { schedule: name, chunks_per_rank: takes[0] });
        this.orders = null;
        this.fill();
        this.draw();
      }),
      slider("microbatches", WHOLE(1, 48), this.shape.microbatches, put("microbatches")), slider("ranks", WHOLE(1, 16), this.shape.ranks, put("ranks")),
      chunks.length > 1 ? slider("chunks per rank", chunks, this.shape.chunks_per_rank, put("chunks_per_rank")) : null),
      group("times", slider("forward", times, this.shape.forward, put("forward"), time), slider("input gradient", times, this.shape.input_grad, put("input_grad"), time),
        slider("weight gradient", times, this.shape.weight_grad, put("weight_grad"), time), slider("a message takes", [0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2].map((v) => v || 1e-9), this.shape.transfer || 1e-9, (v) => put("transfer")(v < 1e-6 ? 0 : v), (v) => (v < 1e-6 ? "no time" : `${v}`))));
  }

  // the order with a bar's cell put where it was dropped, by the middles of the cells beside it
  move(bar, t) {
    const { cell } = this.line.columns, rank = this.line.laneOf(bar).rank, cells = this.answer.orders[rank];
    const middle = t + (this.line.end[bar] - this.line.start[bar]) / 2, at = new Map();
    for (const lane of this.line.lanes) if (lane.rank === rank) for (let b = lane.first; b < lane.last; b++) at.set(cell[b], (this.line.start[b] + this.line.end[b]) / 2);
    const from = cell[bar], others = cells.map((_, i) => i).filter((i) => i !== from);
    const to = others.filter((i) => at.get(i) < middle).length;
    if (to === from) return;
    const rest = others.map((i) => cells[i]);
    rest.splice(to, 0, cells[from]);
    this.draw(this.answer.orders.map((own, r) => (r === rank ? rest : own)));
  }

  async draw(orders = this.orders) {
    const turn = ++this.asked, { schedule, ranks, microbatches, chunks_per_rank, ...times } = this.shape;
    const [good, answer] = await this.ask("schedule", orders ? { ...times, orders } : { schedule, ranks, microbatches, chunks_per_rank, ...times });
    if (turn !== this.asked) return;
    this.said.textContent = good ? "" : answer.error;
    this.said.className = good ? "" : "bad";
    if (!good) return this.line.data && this.line.draw();
    this.orders = orders;
    this.answer = answer;
    if (!orders) this.first = answer;
    this.reset.disabled = !orders;
    const change = orders && this.first ? ` (${show.signed(answer.makespan / this.first.makespan - 1)} of its own order)` : "";
    this.tiles.replaceChildren(
      tile("bubble", show.percent(answer.bubble), "of all ranks' time is idle"), tile("makespan", three(answer.makespan), `in the unit of the times${change}`),
      tile("most activations", three(Math.max(...answer.peaks)), `microbatches on one rank; by rank: ${answer.peaks.slice(0, 16).map(three).join(", ")}`));
    await this.line.load(answer.timeline);
    this.key.replaceChildren(kindLegend([...this.line.kindsSeen, "bubble"]), el("p", { class: "note" }, `${this.line.columns.way ? "Darker: the second direction. " : ""}Numbers are microbatches. An order that cannot run is refused, with who waits for whom.`));
    document.documentElement.dataset.lab = String(turn);
  }
}
