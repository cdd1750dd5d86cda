// The what-if page: one or two settings, each with its answer; the lab on a tab of its own.
async function ask(question, body) {
  try {
    const reply = await fetch(`/api/${question}`, body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const answer = await reply.json();
    return [!answer.error, answer];
  } catch {
    return [false, { error: "dtsim serve does not answer: is it still running?" }];
  }
}

// One setting: its state, its place on the page, and the newest question only.
class Setting {
  constructor(letter, state, changed) {
    Object.assign(this, { letter, state, changed, busy: false, again: false, answer: null });
    this.said = el("p", { class: "bad", role: "alert" });
    this.tiles = el("div", { class: "tiles" });
    const lineHost = el("div"), memoryHost = el("div");
    this.memory = new MemoryChart(memoryHost);
    this.line = new Timeline(lineHost, { view: (from, to) => this.memory.show(from, to) });
    this.key = el("div");
    this.where = el("div");
    this.trust = el("p", { class: "note" });
    this.lineHead = el("div", { class: "head" }, el("h2", {}, "Timeline"));
    this.view = el("div", { class: "setting", "data-setting": letter }, el("h2", { class: "letter" }, letter), this.said, this.tiles,
      el("section", { class: "card" }, this.lineHead, lineHost, this.key),
      el("section", { class: "card" }, el("div", { class: "head" }, el("h2", {}, "Memory over time"), this.memory.choice), memoryHost),
      el("section", { class: "card" }, el("h2", {}, "Where the time goes"), this.where, this.trust));
  }

  put(fields) {
    Object.assign(this.state, fields);
    this.ask();
  }

  async ask() {
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    do {
      this.again = false;
      const [good, answer] = await ask("step", this.state);
      if (this.again) continue;
      if (good) this.answer = answer;
      this.view.classList.toggle("stale", !good);
      this.said.textContent = good ? "" : answer.error;
    } while (this.again);
    this.busy = false;
    await this.changed(this);
  }

  async draw(longest, other) {
    const { answer: a, timeline, memory, breakdown, money, facts } = this.answer;
    this.tiles.replaceChildren(...tilesOf(a).slice(0, 2), this.moneyTile(money, facts), ...tilesOf(a).slice(2));
    if (other) {
      const more = a.tokens / other.answer.answer.tokens - 1;
      this.tiles.firstChild.querySelector(".under").append(el("div", { class: more > 0 ? "good" : "bad" }, `${show.signed(more)} tokens/s against ${other.letter}`));
    }
    if (this.drawn === this.answer) return this.line.rescale(longest / timeline.makespan);
    this.drawn = this.answer;
    await Promise.all([this.memory.load(memory, timeline), this.line.load(timeline, longest / timeline.makespan)]);
    if (!this.lineHead.querySelector(".tools")) this.lineHead.append(this.line.tools());
    this.key.replaceChildren(kindLegend([...this.line.kindsSeen, "bubble"]), this.line.columns.way ? el("p", { class: "note" }, "Darker: the second direction of the pipeline.") : "");
    this.where.replaceChildren(breakdownCard(breakdown));
    this.trust.textContent = `${facts.runs.n ? `Measured runs of this kind (${facts.kind}): median error ${show.percent(facts.runs.median_error)} over ${facts.runs.n} runs.` : `No measured runs of this kind (${facts.kind}).`} ${this.answer.assumptions.length ? `Assumed: ${this.answer.assumptions.join("; ")}.` : ""}`;
  }

  moneyTile(money, facts) {
    const run = money.run;
    if (run) return tile("to train", run.price_usd === null ? show.days(run.time_s.value) : show.money(run.price_usd), run.price_usd === null ? `${show.count(run.gpu_hours)} GPU-hours; no price known` : `${show.days(run.time_s.value)}, ${show.count(run.gpu_hours)} GPU-hours at ${three(money.price)} $`);
    const per = money.gpu_hours_per_token * 1e9;
    return money.price === null ? tile("a billion tokens", `${per < 1000 ? three(per) : show.count(per)} GPU-h`, "set $ per GPU-hour to see money") : tile("a billion tokens", show.money(per * money.price), `${per < 1000 ? three(per) : show.count(per)} GPU-hours at ${three(money.price)} $ on ${facts.gpu}`);
  }
}

function readLink() {
  try {
    const bytes = Uint8Array.from(atob(location.hash.slice(1).replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const found = JSON.parse(new TextDecoder().decode(bytes));
    return Array.isArray(found) && found.length >= 1 && found.length <= 2 && found.every((s) => s && typeof s === "object") ? found : null;
  } catch {
    return null;
  }
}

function linkOf(states) {
  const letters = Array.from(new TextEncoder().encode(JSON.stringify(states)), (b) => String.fromCharCode(b)).join("");
  return `${location.origin}/#${btoa(letters).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

async function main() {
  const [, choices] = await ask("choices");
  const settings = [], results = el("div", { class: "results" }), panel = el("div", { class: "panel", id: "controls" }), said = el("p", { class: "bad", role: "alert" });
  let current = 0;

  const changed = async (one) => {
    const both = settings.filter((s) => s.answer), longest = Math.max(...both.map((s) => s.answer.timeline.makespan));
    for (const s of both) await s.draw(longest, both.find((o) => o !== s));
    if (one === settings[current]) fillNote();
    history.replaceState(null, "", linkOf(settings.map((s) => s.state)));
    document.documentElement.dataset.ready = String(1 + Number(document.documentElement.dataset.ready || 0));
  };
  const fillNote = () => {
    const facts = settings[current].answer && settings[current].answer.facts, line = panel.querySelector("fieldset .note");
    if (line && facts) line.textContent = `data parallel ${show.count(facts.replicas)}; global batch ${show.count(facts.batch)} sequences`;
    if (Boolean(facts && facts.experts) !== panel.experts) fill();
  };
  const rebuilds = ["schedule", "pipeline_parallel", "model", "table"];
  const fill = () => {
    const one = settings[current], facts = one.answer && one.answer.facts, was = document.activeElement && document.activeElement.getAttribute("aria-label");
    panel.experts = Boolean(facts && facts.experts);
    panel.replaceChildren(...controlPanel(one.state, choices, facts, (fields) => {
      one.put(fields);
      if (Object.keys(fields).some((name) => rebuilds.includes(name))) fill();
    }));
    if (was) panel.querySelector(`[aria-label="${was}"]`)?.focus();
    tabs.replaceChildren(...settings.map((s, i) => el("button", { type: "button", "aria-pressed": i === current, onclick: () => { current = i; fill(); } }, `setting ${s.letter}`)),
      el("button", { type: "button", class: "quiet", id: "compare", onclick: settings.length > 1 ? drop : add }, settings.length > 1 ? "only A" : "+ compare two"));
  };
  const show_ = () => { results.className = `results${settings.length > 1 ? " pair" : ""}`; results.replaceChildren(...settings.map((s) => s.view)); };
  const put = (state) => { const s = new Setting("AB"[settings.length], { ...choices.start, ...state }, changed); settings.push(s); show_(); return s; };
  const add = () => { put(structuredClone(settings[0].state)).ask(); current = 1; fill(); };
  const drop = () => { settings.pop(); current = 0; show_(); fill(); changed(settings[0]); };
  const tabs = el("div", { class: "tools", id: "settings" });
  const copies = [["command line", () => settings[current].answer.command], ["TOML", () => settings[current].answer.toml], ["link", () => linkOf(settings.map((s) => s.state))]].map(([name, text]) => {
    const button = el("button", { type: "button", onclick: () => settings[current].answer && copyText(text(), button) }, name);
    return button;
  });
  const read = async (name, text) => {
    const [good, answer] = text === null ? [false, { error: `${name} is larger than 1 MiB` }] : await ask("read", { name, text, controls: settings[current].state });
    said.textContent = good ? "" : answer.error;
    if (!good) return;
    settings[current].state = { ...choices.start, ...answer.controls };
    fill();
    settings[current].ask();
  };

  const found = el("p", { class: "note", id: "found" });
  const best = el("button", { type: "button", id: "best", onclick: async () => {
    best.disabled = true;
    best.textContent = "searching ...";
    const [good, answer] = await ask("best", settings[current].state);
    best.disabled = false;
    best.textContent = "best plan";
    said.textContent = good ? "" : answer.error;
    found.textContent = good ? answer.found : "";
    if (!good) return;
    if (settings.length > 1) Object.assign(settings[1], { state: { ...choices.start, ...answer.controls } }).ask();
    else put(answer.controls).ask();
    current = 1;
    fill();
  } }, "best plan");

  const lab = new Lab(choices, ask), step = el("div", { class: "bench", id: "step" },
    el("aside", { class: "card" }, el("details", { open: innerWidth > 900, id: "fold" }, el("summary", {}, "settings"), tabs, dropZone(read), el("div", { class: "tools" }, best), said, found, panel, el("h3", {}, "copy as"), el("div", { class: "tools" }, copies))), results);
  const stage = el("div");
  const pages = [["step", "one step", step], ["lab", "pipeline lab", lab.view]].map(([name, text, view]) => {
    const button = el("button", { type: "button", id: `tab-${name}`, onclick: () => {
      pages.forEach((other) => other.setAttribute("aria-pressed", other === button));
      stage.replaceChildren(view);
      redrawAll();
      if (name === "lab" && !lab.answer) lab.draw();
    } }, text);
    return button;
  });
  byId("page").replaceWith(el("main", { class: "broad" }, el("header", { class: "top" }, el("div", {}, el("h1", {}, "What if?"), el("p", { class: "soft" }, "Change a thing; time, memory and money follow.")),
    el("div", { class: "tools" }, pages, themeButton())), stage));
  (readLink() || [{}]).forEach(put);
  pages[0].click();
  fill();
  settings.forEach((s) => s.ask());
}
main();
