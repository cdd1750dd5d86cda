// The controls of one setting: lists, sliders, switches, a place to drop a file.
const POWERS = (low, high) => { const out = []; for (let v = low; v <= high; v *= 2) out.push(v); return out; };
const WHOLE = (low, high) => Array.from({ length: high - low + 1 }, (_, i) => low + i);

// A slider over a list of values; a value outside the list is kept until the slider is moved.
function slider(label, values, value, change, words = (v) => v.toLocaleString("en"), title = "") {
  const near = () => values.reduce((best, v, i) => (Math.abs(Math.log(v / value)) < Math.abs(Math.log(values[best] / value)) ? i : best), 0);
  const said = el("output", { class: "number" }, words(value));
  const range = el("input", { type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": label, title });
  range.value = near();
  range.setAttribute("aria-valuetext", words(value));
  range.addEventListener("input", () => {
    value = values[range.value];
    said.textContent = words(value);
    range.setAttribute("aria-valuetext", words(value));
    change(value);
  });
  return el("label", { class: "control", title }, el("span", {}, label), said, range);
}

function chooser(label, options, value, change, title = "") {
  const known = options.some((o) => (o.value ?? o) === value) ? options : [value, ...options];
  const list = el("select", { "aria-label": label }, known.map((o) => el("option", { value: o.value ?? o }, o.text ?? o)));
  list.value = value;
  list.addEventListener("change", () => change(list.value));
  return el("label", { class: "control line", title }, el("span", {}, label), list);
}

function switcher(label, value, change, title = "") {
  const box = el("input", { type: "checkbox", "aria-label": label });
  box.checked = value;
  box.addEventListener("change", () => change(box.checked));
  return el("label", { class: "control line", title }, el("span", {}, label), box);
}

function field(label, value, change, hint, title = "") {
  const input = el("input", { type: "text", inputmode: "text", placeholder: hint, "aria-label": label, size: 10 });
  input.value = value;
  input.addEventListener("change", () => change(input.value));
  return el("label", { class: "control line", title }, el("span", {}, label), input);
}

// 300B, 1.5T, 2e12 -> a number; NaN where it is none
const amount = (text) => {
  const match = /^\s*([\d.]+(?:e\d+)?)\s*([kMBGT]?)\s*$/i.exec(text);
  return match ? Number(match[1]) * { "": 1, k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12 }[match[2].toLowerCase()] : text.trim() ? NaN : 0;
};
const shortAmount = (x) => (x ? (x >= 1e12 ? `${three(x / 1e12)}T` : x >= 1e9 ? `${three(x / 1e9)}B` : String(x)) : "");

const group = (title, ...controls) => el("fieldset", {}, el("legend", {}, title), controls);

// All controls for a state; `put` takes the fields that changed, `facts` is what the last answer told (or null).
function controlPanel(state, choices, facts, put) {
  const set = (name) => (value) => put({ [name]: value });
  const schedules = choices.schedules.filter((s) => s.chunks.length).map((s) => ({ value: s.name, text: scheduleWords(s.name) }));
  const chunks = (choices.schedules.find((s) => s.name === state.schedule) || { chunks: [] }).chunks;
  const chooseSchedule = (name) => {
    const takes = choices.schedules.find((s) => s.name === name).chunks;
    put({ schedule: name, chunks_per_rank: takes.includes(state.chunks_per_rank) ? state.chunks_per_rank : takes[0] });
  };
  const own = (words) => [{ value: "", text: "the framework's" }, ...words];
  const models = state.table ? [{ value: "", text: `${state.table.name} (from the file)` }, ...choices.models] : choices.models;
  const more = el("textarea", { rows: 3, "aria-label": "more settings", placeholder: "plan.overlap_gradients = true", spellcheck: "false", style: { width: "100%" } }, state.more.join("\n"));
  more.addEventListener("change", () => put({ more: more.value.split("\n").map((l) => l.trim()).filter(Boolean) }));
  return [
    group("model", chooser("model", models, state.table ? "" : state.model, (name) => name && put({ model: name, table: null })),
      slider("tokens in a sequence", POWERS(512, 2 ** 20), state.sequence_length, set("sequence_length")),
      chooser("precision", choices.precision, state.precision, set("precision"))),
    group("machine", chooser("cluster", choices.clusters, state.cluster, set("cluster")),
      slider("GPUs", POWERS(1, 2 ** 15), state.gpus, set("gpus"))),
    group("pipeline", slider("microbatches", WHOLE(1, 128), state.microbatches, set("microbatches"), (v) => `${v} per replica`, "drag it and watch the bubble"),
      slider("microbatch size", POWERS(1, 64), state.microbatch_size, set("microbatch_size"), (v) => `${v} ${v === 1 ? "sequence" : "sequences"}`),
      state.pipeline_parallel > 1 ? [chooser("schedule", schedules, state.schedule, chooseSchedule),
        chunks.length > 1 ? slider("chunks per rank", chunks, state.chunks_per_rank, set("chunks_per_rank")) : null] : null),
    group("split of the work", slider("tensor parallel", POWERS(1, 64), state.tensor_parallel, set("tensor_parallel"), String, "GPUs that share every layer"),
      slider("pipeline parallel", [...WHOLE(1, 16), 20, 24, 32, 48, 64], state.pipeline_parallel, set("pipeline_parallel"), String, "groups of layers, one behind the other"),
      slider("context parallel", POWERS(1, 64), state.context_parallel, set("context_parallel"), String, "GPUs that share a sequence"),
      facts && facts.experts ? slider("expert parallel", POWERS(1, 256), state.expert_parallel, set("expert_parallel"), String) : null,
      el("p", { class: "note" }, facts ? `data parallel ${show.count(facts.replicas)}; global batch ${show.count(facts.batch)} sequences` : " "),
      switcher("sequence parallel", state.sequence_parallel, set("sequence_parallel"), "norms and residuals split over the tensor-parallel group")),
    group("memory", slider("ZeRO stage", [0, 1, 2, 3], state.zero_stage, set("zero_stage"), (v) => ["0: nothing sharded", "1: optimizer states", "2: and gradients", "3: and weights"][v]),
      chooser("recompute", own(choices.recompute), state.recompute, set("recompute"))),
    group("code", chooser("framework", choices.frameworks, state.framework, set("framework")),
      chooser("attention", own(choices.attention), state.attention, set("attention"))),
    group("money", field("$ per GPU-hour", state.price || "", (text) => put({ price: Number(text) || 0 }), "the cluster's"),
      field("tokens to train on", shortAmount(state.tokens), (text) => { const n = amount(text); if (!Number.isNaN(n)) put({ tokens: n }); }, "1T")),
    el("details", { open: state.more.length > 0 }, el("summary", {}, "more settings, one a line"), more),
  ];
}

function dropZone(read) {
  const input = el("input", { type: "file", hidden: true, "aria-label": "a file" });
  const zone = el("button", { type: "button", class: "zone", onclick: () => input.click() }, "drop a config of any program: Megatron, DeepSpeed, torchtitan, Hugging Face, ... or click");
  const take = async (file) => { if (file) read(file.name, file.size > 2 ** 20 ? null : await file.text()); };
  input.addEventListener("change", () => { take(input.files[0]); input.value = ""; });
  addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  addEventListener("dragleave", () => zone.classList.remove("over"));
  addEventListener("drop", (event) => { event.preventDefault(); zone.classList.remove("over"); take(event.dataTransfer.files[0]); });
  return el("div", {}, zone, input);
}
