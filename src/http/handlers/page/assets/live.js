// The live view: what `/metrics` and `/v2/devices` say, once a second, while somebody looks.
//
// Numbers are those that monitoring sees. Rates and times are of what happened since a look some seconds ago.

import { el, byId, time, short, bytes } from "./dom.js";
import { ask, address, withheld } from "./api.js";
import { sparkline } from "./chart.js";
import { devices, deviceCards } from "./devices.js";
import { counted, mean, parse, quantile, sum, valuesOf } from "./prometheus.js";
import { redraw } from "./redraw.js";

const EVERY_MS = 1000;
/** Where there is nothing to be seen. */
const WITHHELD_EVERY_MS = 10_000;
/** Two minutes. */
const KEPT = 120;
/** Rates over so many looks: smooth, and still quick to follow. */
const OVER = 5;
/** Of a server with more models, the busiest are shown. */
const MODELS_MAX = 50;
const DURATION = "ocelli_http_request_duration_seconds";
const STAGE = "ocelli_stage_duration_seconds";
/** What asks for inference, as the rules of `deploy/prometheus` have it, and stacks: probes are none, and gRPC is counted beside HTTP. */
const INFERENCE = /^(\/predictions\/.+|\/v1\/models\/.+:predict|\/v2\/models\/.+\/infer|\/.+\/(ModelInfer|(Stream)?Predictions))$/;

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
  const seen = document.hidden || (await look());
  // It may have been left and entered again meanwhile, and be on its way once more.
  clearTimeout(timer);
  if (looking) timer = setTimeout(tick, seen ? EVERY_MS : WITHHELD_EVERY_MS);
}

/** Whether there may be more to see soon. */
async function look() {
  let samples = null;
  let says = "The last two minutes, while this view is open.";
  try {
    samples = parse(await (await ask(address("metrics"))).text());
  } catch (error) {
    if (!withheld(error)) {
      say(`Cannot update: ${error.message}`);
      return true;
    }
    says = `Metrics are not passed on here: /metrics has status ${error.status}, as behind most proxies. Open the page at the server's own address.`;
  }
  try {
    const at = performance.now() / 1e3;
    // After a pause, what happened in between is nobody's rate.
    if (looks.length > 0 && at - looks.at(-1).at > 10) looks = [];
    if (samples) looks.push({ at, samples });
    looks = looks.slice(-OVER - 1);
    const listed = await devices(samples || new Map());
    if (!looking) return true;
    say(says);
    byId("devices-title").hidden = listed.length === 0;
    for (const part of ["tiles", "traffic-title", "traffic-box"]) byId(part).hidden = !samples;
    deviceCards(byId("devices"), listed, (text) => (byId("devices-says").textContent = text));
    if (!samples) return false;
    tiles();
    traffic();
  } catch (error) {
    say(`Cannot update: ${error.message}`);
  }
  return true;
}

/** Said again only when it changed: it is read aloud. */
function say(text) {
  const place = byId("live-says");
  if (place.textContent !== text) place.textContent = text;
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
  valuesOf(samples, `${DURATION}_count`, "route").filter((route) => INFERENCE.test(route));

function tiles() {
  const [{ at: from, samples: before }, { at: to, samples: now }] = [looks[0], looks.at(-1)];
  const rate = (count) => (to > from ? count / (to - from) : NaN);
  const routes = routesOf(now);
  const requests = rate(routes.reduce((all, route) => all + counted(before, now, `${DURATION}_count`, { route }), 0));
  const items = rate(counted(before, now, "ocelli_items_total"));
  // The route that most asked of stands for all: quantiles do not add up.
  const busiest = routes.map((route) => [route, counted(before, now, `${DURATION}_count`, { route })]).sort(([, a], [, b]) => b - a)[0];
  const of = (part) => (busiest ? quantile(before, now, DURATION, { route: busiest[0], class: "answered" }, part) : NaN);
  const [half, most] = [of(0.5), of(0.95)];
  const refused = rate(counted(before, now, "ocelli_refused_total"));
  show([
    ["requests", "Requests", requests, (value) => `${short(value)} /s`, refused > 0 ? `${short(refused)} /s refused` : "inference, all models"],
    ["items", "Items", items, (value) => `${short(value)} /s`, "run in batches, all models"],
    ["latency", "Latency", most, (value) => time(value), Number.isFinite(half) ? `95th percentile; median ${time(half)}` : "95th percentile; no requests"],
    ["flight", "In flight", sum(now, "ocelli_requests_in_flight"), short, `${bytes(sum(now, "ocelli_in_flight_bytes"))} of bodies and replies`],
    ["waiting", "Queue", sum(now, "ocelli_queue_items"), short, `oldest ${time(sum(now, "ocelli_queue_oldest_age_seconds"))}, ${bytes(sum(now, "ocelli_queue_bytes"))}`],
    ["memory", "Memory", sum(now, "process_resident_memory_bytes"), bytes, `${short(sum(now, "process_threads"))} threads`],
  ]);
}

function show(all) {
  redraw(
    byId("tiles"),
    all.map(([name, title, value, form, below]) => {
      const text = Number.isFinite(value) ? form(value) : "–";
      return el(
        "article",
        { class: "tile", "data-card": name, "data-tile": name },
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
    return { model, rate, line: keep(`model ${model}`, rate), all: sum(now, "ocelli_outcomes_total", { model }) };
  });
  rows.sort((a, b) => b.all - a.all);
  redraw(
    byId("traffic").tBodies[0],
    rows.slice(0, MODELS_MAX).map(({ model, rate, line, all }) => {
      const says = Number.isFinite(rate) ? `${short(rate)} /s` : "–";
      const stage = (name) => time(mean(before, now, STAGE, { model, stage: name }));
      const batch = mean(before, now, "ocelli_batch_items", { model });
      const failed = all - sum(now, "ocelli_outcomes_total", { model, outcome: "ok" });
      const cells = [short(sum(now, "ocelli_queue_items", { model })), short(batch), stage("queue"), stage("compute"), short(failed)];
      return el(
        "tr",
        { "data-card": model },
        el("th", { scope: "row", text: model }),
        el("td", { class: "trend" }, sparkline(line, { says: `Requests for ${model} over two minutes` }), el("span", { text: says })),
        ...cells.map((text) => el("td", { class: "number", text })),
      );
    }),
  );
}
