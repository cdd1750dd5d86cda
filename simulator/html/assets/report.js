// The report of one step: everything on the page is drawn from the block of data.
const report = JSON.parse(byId("data").textContent);

const card = (id, title, tools, ...children) => el("section", { class: "card", id }, el("div", { class: "head" }, el("h2", {}, title), tools), children);
const note = (text) => el("p", { class: "note" }, text);

function criticalCard(data) {
  return card("critical", "What sets the step time", null,
    el("h3", {}, "from the peak to the step"), ladder(data.ladder, data.whole),
    el("h3", {}, "the longest chain of work and messages, by what prices it"), ladder(data.classes, data.whole),
    data.host_bound.length ? note(`Host-bound, the CPU launches too slowly: ${data.host_bound.slice(0, 6).join(", ")}`) : null,
    data.leaves.length ? note(`Leaves the node: ${data.leaves.join(", ")}`) : null);
}

function roofCard(data) {
  if (data.why_not || !data.kernels.length) return card("roofline", "Kernels under their roofs", null, note(`Not drawn: ${data.why_not || "the step has no kernels"}.`));
  const seen = [...new Set(data.kernels.map((k) => k.work))];
  return card("roofline", `Kernels under the roofs of ${data.gpu}`, null, el("div", { class: "two" },
    el("div", {}, data.kernels.some((k) => k.flops > 0) ? rooflineChart(data) : null,
      el("div", { class: "legend" }, seen.map((work) => el("span", {}, el("i", { style: { background: workColour(work) } }), WORK_WORDS[work] || work))),
      note("Area: time in a step. Roofs are the data sheet's dense peak and memory bandwidth; kernels without FLOP stand in the table only, held against the bandwidth. Attention counts masked scores too, so a causal kernel can stand above its roof.")),
    el("div", {}, kernelTable(data, 12), data.kernels.length > 12 ? el("details", {}, el("summary", {}, `all ${data.kernels.length}${data.left_out ? " largest" : ""}`), kernelTable(data, data.kernels.length)) : null)));
}

function leverCard(data, now) {
  if (data.why_not) return card("levers", "What would help", null, note(`Not tried: ${data.why_not}`));
  const good = data.rows.filter((l) => l.fits), first = [...good, ...data.rows.filter((l) => !l.fits)];
  return card("levers", "What would help: one change at a time, each simulated", null,
    el("p", {}, data.best ? ["Most: ", el("b", {}, data.best)] : "None of the neighbouring plans is quicker, fits and is run by the framework."), leverTable(first.slice(0, 12), now),
    first.length > 12 ? el("details", {}, el("summary", {}, `${first.length - 12} more that are slower or do not fit`), leverTable(first.slice(12), now)) : null);
}

function trustCard(data) {
  const kind = data.runs.n ? `Measured runs of this kind (${data.kind}): the median error is ${show.percent(data.runs.median_error)} over ${data.runs.n} runs of ${data.runs.sources} sources.` : `No measured runs of this kind (${data.kind}): the spread of all kinds is used, so take the band with care.`;
  const most = Math.max(...data.terms.map(([, s]) => s), 1e-9);
  return card("trust", "How far to trust this", null, el("p", {}, kind),
    data.unseen ? el("p", {}, `${data.unseen[0].toUpperCase()}${data.unseen.slice(1)}.`) : null,
    note("The band holds 8 of 10 measured runs when each is judged without its own source; docs/accuracy.md has the table."),
    el("h3", {}, "what makes the band wide (one sigma, towards slower)"),
    el("div", { class: "scroll" }, el("table", { class: "wide" }, data.terms.map(([name, s]) => el("tr", {}, el("td", {}, breakable(name)), el("td", { class: "n" }, show.percent(s)), el("td", { class: "meter" }, el("div", { style: { width: `${(100 * s) / most}%` } })))))),
    el("dl", { class: "facts" }, el("dt", {}, "no measurement behind"), el("dd", {}, data.uncalibrated.length ? breakable(data.uncalibrated.join(", ")) : "nothing: every price rests on measurements"),
      el("dt", {}, "measurements behind"), el("dd", {}, data.calibrated.length ? breakable(data.calibrated.join(", ")) : "nothing")));
}

function originCard(data) {
  const copy = el("button", { type: "button", onclick: () => copyText(data.command, copy) }, "copy");
  return card("origin", "Where this comes from", null,
    el("h3", {}, "assumed, because the job does not say"), el("ul", {}, (data.assumptions.length ? data.assumptions : ["nothing"]).map((text) => el("li", {}, text))),
    el("h3", {}, "the job"), el("dl", { class: "facts" }, data.job.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("h3", {}, "the same again"), el("div", { class: "tools" }, el("code", {}, data.command), copy),
    el("details", {}, el("summary", {}, "provenance"), el("dl", { class: "facts" }, data.provenance.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))));
}

// What a click on a bar opens: its facts, and where the seconds of its kernels go.
function chosenBar(line, b) {
  if (b < 0) return [];
  const item = line.data.items[line.columns.item[b]], priced = item.split ? Object.values(item.split).reduce((sum, s) => sum + s, 0) : 0;
  const facts = [...line.facts(b), ["priced by", item.by], ["lies", item.place]].filter(([, value]) => value);
  const split = item.split && !(line.columns.path[b] & 2) ? Object.entries(item.split).sort((x, y) => y[1] - x[1]) : [];
  return [el("h3", {}, line.label(b)), el("dl", { class: "facts" }, facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    split.length > 1 ? [el("div", { class: "bar thin", style: { margin: ".5rem 0 .2rem" } }, split.map(([name, s]) => part(name, s, priced))), note(split.map(([name, s]) => `${KIND_WORDS[name] || name} ${show.time(s)}`).join(", "))] : []].flat();
}

async function main() {
  const { timeline, memory } = report, lineHost = el("div"), memoryHost = el("div"), chosen = el("div", { id: "chosen" }), peak = el("div");
  const scene = el("main", {},
    el("header", { class: "top" }, el("div", {}, el("h1", {}, report.title), el("p", { class: "soft" }, report.subtitle)), themeButton()),
    el("div", { class: "tiles" }, tilesOf(report.answer)),
    el("div", { id: "advice" }));
  byId("page").replaceWith(scene);
  const line = card("timeline", "Timeline", null, lineHost);
  const room = card("memory", "Memory over time", null, memoryHost, el("h3", {}, "what stands there at the peak"), peak);
  scene.append(line, room, el("div", { class: "two" }, card("breakdown", "Where the time goes (mean over ranks)", null, breakdownCard(report.breakdown)), criticalCard(report.critical)),
    roofCard(report.roofline), leverCard(report.levers, report.answer.step), el("div", { class: "two" }, trustCard(report.trust), originCard(report.origin)));
  const [extra, later] = [byId("extra"), byId("later")];
  if (extra.children.length) byId("advice").append(el("section", { class: "card" }, extra));
  if (later.children.length) byId("roofline").before(el("section", { class: "card" }, later));
  const chart = new MemoryChart(memoryHost);
  await chart.load(memory, timeline);
  const picture = new Timeline(lineHost, { choose: (b) => chosen.replaceChildren(...chosenBar(picture, b)), view: (from, to) => chart.show(from, to) });
  await picture.load(timeline);
  line.querySelector(".head").append(picture.tools());
  line.append(kindLegend([...picture.kindsSeen, "bubble"]), picture.columns.way ? note("Darker: the second direction of the pipeline.") : "", note(`Drag to pan; Ctrl and wheel, two fingers or + and − to zoom; a tap or click opens a bar. Numbers are microbatches; the longest chain is the work and the messages that set the step time.${timeline.all_ranks > timeline.ranks.length ? ` ${timeline.ranks.length} of ${timeline.all_ranks} pipeline ranks are shown, so that the page stays small.` : ""}`), chosen);
  room.querySelector(".head").append(chart.choice);
  const fill = () => {
    const i = chart.rank < 0 ? Math.max(0, memory.peaks.findIndex((p) => p.rank === memory.fullest)) : chart.rank;
    peak.replaceChildren(el("p", {}, `${timeline.ranks[i].name}${memory.peaks[i].rank === memory.fullest ? ", the fullest" : ""}`), peakTable(memory.peaks[i]));
  };
  chart.choice.addEventListener("change", fill);
  fill();
  document.documentElement.dataset.ready = "yes";
}
main();
