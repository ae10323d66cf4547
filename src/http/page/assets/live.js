// The live view: what `/metrics` and `/v2/devices` say, once a second, while somebody looks.
//
// Numbers are those that monitoring sees. Rates and times are of what happened since a look some seconds ago.

import { el, byId, time, short, bytes } from "./dom.js";
import { ask, address } from "./api.js";
import { sparkline } from "./chart.js";
import { devices, deviceCards } from "./devices.js";
import { counted, mean, parse, quantile, sum, valuesOf } from "./prometheus.js";

const EVERY_MS = 1000;
/** Two minutes. */
const KEPT = 120;
/** Rates over so many looks: smooth, and still quick to follow. */
const OVER = 5;
/** Of a server with more models, the busiest are shown. */
const MODELS_MAX = 50;
const DURATION = "ocelli_http_request_duration_seconds";
const STAGE = "ocelli_stage_duration_seconds";

/** The newest looks, oldest first: `{ at, samples }`. */
let looks = [];
/** Series for the lines, by name. */
const series = new Map();
let timer = null;
let looking = false;

export function enter() {
  looking = true;
  clearTimeout(timer);
  tick();
}

export function leave() {
  looking = false;
  clearTimeout(timer);
}

async function tick() {
  if (!document.hidden) await look();
  // It may have been left and entered again meanwhile, and be on its way once more.
  clearTimeout(timer);
  if (looking) timer = setTimeout(tick, EVERY_MS);
}

async function look() {
  try {
    const samples = parse(await (await ask(address("metrics"))).text());
    const at = performance.now() / 1e3;
    // After a pause, what happened in between is nobody's rate.
    if (looks.length > 0 && at - looks.at(-1).at > 10) looks = [];
    looks.push({ at, samples });
    looks = looks.slice(-OVER - 1);
    const listed = await devices(samples);
    if (!looking) return;
    byId("live-says").textContent = "The last two minutes, as long as this view is open.";
    tiles();
    deviceCards(byId("devices"), listed, (text) => (byId("devices-says").textContent = text));
    traffic();
  } catch (error) {
    byId("live-says").textContent = `No news: ${error.message}`;
  }
}

/** Adds a value to a series, and gives the series. */
function keep(name, value) {
  if (!series.has(name)) series.set(name, new Array(KEPT).fill(null));
  const values = series.get(name);
  values.push(Number.isFinite(value) ? value : null);
  values.shift();
  return values;
}

const routesOf = (samples) =>
  valuesOf(samples, `${DURATION}_count`, "route").filter((route) => /^\/predictions|infer$|^\/v1\/models\//.test(route));

function tiles() {
  const [{ at: from, samples: before }, { at: to, samples: now }] = [looks[0], looks.at(-1)];
  const rate = (count) => (to > from ? count / (to - from) : NaN);
  const routes = routesOf(now);
  const requests = rate(routes.reduce((all, route) => all + counted(before, now, `${DURATION}_count`, { route }), 0));
  const items = rate(counted(before, now, "ocelli_items_total"));
  // The route that most asked of stands for all: quantiles do not add up.
  const busiest = routes.map((route) => [route, counted(before, now, `${DURATION}_count`, { route })]).sort(([, a], [, b]) => b - a)[0];
  const of = (part) => (busiest ? quantile(before, now, DURATION, { route: busiest[0] }, part) : NaN);
  const [half, most] = [of(0.5), of(0.95)];
  const refused = rate(counted(before, now, "ocelli_refused_total"));
  show([
    ["requests", "Requests", requests, (value) => `${short(value)} /s`, refused > 0 ? `${short(refused)} /s refused` : "inference, all models"],
    ["items", "Items", items, (value) => `${short(value)} /s`, "rows of batches, run"],
    ["latency", "Latency", most, (value) => time(value), Number.isFinite(half) ? `95 %; half within ${time(half)}` : "95 %; nothing asked"],
    ["flight", "In flight", sum(now, "ocelli_requests_in_flight"), short, `${bytes(sum(now, "ocelli_in_flight_bytes"))} of bodies and replies`],
    ["waiting", "Queue", sum(now, "ocelli_queue_items"), short, `oldest ${time(sum(now, "ocelli_queue_oldest_age_seconds"))}, ${bytes(sum(now, "ocelli_queue_bytes"))}`],
    ["memory", "Memory", sum(now, "process_resident_memory_bytes"), bytes, `${short(sum(now, "process_threads"))} threads`],
  ]);
}

function show(all) {
  byId("tiles").replaceChildren(
    ...all.map(([name, title, value, form, below]) => {
      const text = Number.isFinite(value) ? form(value) : "–";
      return el(
        "article",
        { class: "tile", "data-tile": name },
        el("h2", { text: title }),
        el("p", { class: "value", text }),
        sparkline(keep(name, value), { says: `${title} over two minutes, now ${text}` }),
        el("p", { class: "quiet", text: below }),
      );
    }),
  );
}

/** A row for each model. */
function traffic() {
  const [{ at: from, samples: before }, { at: to, samples: now }] = [looks[0], looks.at(-1)];
  const names = valuesOf(now, "ocelli_outcomes_total", "model");
  const rows = names.map((model) => {
    const ended = counted(before, now, "ocelli_outcomes_total", { model });
    const rate = to > from ? ended / (to - from) : NaN;
    const failed = sum(now, "ocelli_outcomes_total", { model }) - sum(now, "ocelli_outcomes_total", { model, outcome: "ok" });
    const stage = (name) => time(mean(before, now, STAGE, { model, stage: name }));
    const batch = mean(before, now, "ocelli_batch_items", { model });
    return { model, rate, line: keep(`model ${model}`, rate), cells: [short(sum(now, "ocelli_queue_items", { model })), short(batch), stage("queue"), stage("compute"), short(failed)] };
  });
  rows.sort((a, b) => sum(now, "ocelli_outcomes_total", { model: b.model }) - sum(now, "ocelli_outcomes_total", { model: a.model }));
  byId("traffic").tBodies[0].replaceChildren(
    ...rows.slice(0, MODELS_MAX).map(({ model, rate, line, cells }) => {
      const says = Number.isFinite(rate) ? `${short(rate)} /s` : "–";
      return el(
        "tr",
        {},
        el("th", { scope: "row", text: model }),
        el("td", { class: "trend" }, sparkline(line, { says: `Requests for ${model} over two minutes` }), el("span", { text: says })),
        ...cells.map((text) => el("td", { class: "number", text })),
      );
    }),
  );
}
