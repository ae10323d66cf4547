// The models: what they take and give, in what state they are, and loading and unloading where the server allows it.

import { el, byId, during } from "./dom.js";
import * as api from "./api.js";
import { redraw } from "./redraw.js";
import { offer } from "./token.js";

const EVERY_MS = 5000;
/** How models come and go, where callers have no say in it. */
const MODES = {
  none: "Models are loaded when the server starts; repository_mode = \"explicit\" lets callers load and unload them.",
  watch: "Models follow the changes of their folder.",
  withheld: "What else lies in the folder is not told here, and nothing can be loaded: the server's index is not passed on.",
};
const LABELS_SHOWN = 40;
const TENSORS_SHOWN = 4;
let timer = null;
let looking = false;
/** What is known of versions that are ready, by name and version. */
const described = new Map();
/** What was drawn last: it is left as it is if nothing changed. */
let drawn = "";

export function enter() {
  looking = true;
  tick();
}

export function leave() {
  looking = false;
  clearTimeout(timer);
}

const say = (text) => (byId("models-says").textContent = text);

async function tick() {
  clearTimeout(timer);
  if (!document.hidden) {
    try {
      await look();
    } catch (error) {
      say(`Cannot update: ${error.message}`);
      drawn = "";
    }
  }
  if (looking) timer = setTimeout(tick, EVERY_MS);
}

async function look() {
  const { models, repository_mode } = await api.json("v2/models");
  const tasks = new Map(models.map(({ name, version, task }) => [`${name}/${version}`, task]));
  const listed = await index();
  // Who may not see the index may not load either.
  const mode = listed ? repository_mode : "withheld";
  const entries = await Promise.all(
    (listed || models).map(async (entry) => {
      const key = `${entry.name}/${entry.version}`;
      if (entry.state !== "READY") described.delete(key);
      else if (!described.has(key)) described.set(key, await api.model(entry.name, entry.version).catch(() => null));
      return { ...entry, mode, task: tasks.get(key), about: described.get(key) };
    }),
  );
  const text = JSON.stringify(entries);
  if (!looking || text === drawn) return;
  drawn = text;
  const ready = entries.filter(({ state }) => state === "READY").length;
  say(`${ready} of ${entries.length} ready. ${MODES[mode] || ""}`);
  // A button keeps the focus, and where it has gone, the model's other one gets it.
  const focused = document.activeElement?.dataset?.control;
  const model = document.activeElement?.closest("[data-model]")?.dataset.model;
  redraw(byId("list"), entries.map(card));
  if (document.activeElement?.dataset?.control) return;
  const left = (selector) => byId("list").querySelector(selector);
  if (focused) (left(`[data-control="${CSS.escape(focused)}"]`) || left(`[data-model="${CSS.escape(model)}"] button`))?.focus();
}

/** Everything that is known, those of the folder that are not loaded, too; null where a proxy keeps that back. */
async function index() {
  try {
    return await (await api.control("v2/repository/index")).json();
  } catch (error) {
    if (api.withheld(error)) return null;
    throw error;
  }
}

function card({ name, version, state, reason, task, about, mode }) {
  const labels = about?.labels || [];
  return el(
    "article",
    { class: "card model", "data-card": `${name}/${version}`, "data-model": name },
    el("header", {}, el("h2", { text: name }), el("p", { class: "quiet", text: [version && `version ${version}`, task].filter(Boolean).join(" · ") })),
    el("p", { class: "state", "data-state": state === "READY" ? "good" : state === "LOADING" ? "busy" : "bad" }, el("span", { class: "dot", "aria-hidden": "true" }), state.toLowerCase()),
    reason ? el("p", { class: "reason", text: reason }) : null,
    about ? el("dl", { class: "facts" }, tensors("Inputs", about.inputs), tensors("Outputs", about.outputs)) : null,
    labels.length > 0
      ? el("details", {}, el("summary", { text: `${labels.length} labels` }), el("p", { class: "labels", text: labels.slice(0, LABELS_SHOWN).join(" · ") + (labels.length > LABELS_SHOWN ? ` · and ${labels.length - LABELS_SHOWN} more` : "") }))
      : null,
    mode === "explicit"
      ? el("div", { class: "row" }, button(name, "load", state === "READY" ? "Load changes" : "Load"), state === "READY" ? button(name, "unload", "Unload") : null)
      : null,
  );
}

function tensors(title, specs) {
  const rows = specs.map(({ name, datatype, shape }) => {
    const form = ` ${datatype} [${shape.map((size) => (size < 0 ? "any" : size)).join(", ")}]`;
    return el("dd", {}, el("code", { text: name }), el("span", { class: "quiet", text: form }));
  });
  const more = rows.splice(TENSORS_SHOWN);
  const rest = more.length > 0 ? el("dd", {}, el("details", {}, el("summary", { text: `${more.length} more` }), ...more.map((row) => el("div", {}, ...row.childNodes)))) : null;
  return [el("dt", { text: title }), ...rows, rest];
}

function button(name, act, text) {
  return el("button", { type: "button", class: "button small", "data-control": `${act} ${name}`, "aria-label": `${text} ${name}`, text, onclick: (event) => during(event.currentTarget, () => change(name, act)) });
}

async function change(name, act) {
  say(`Asking to ${act} ${name}…`);
  let told;
  try {
    await api.control(`v2/repository/models/${encodeURIComponent(name)}/${act}`);
    told = `${name} is ${act}ed.`;
  } catch (error) {
    told = `${name} is not ${act}ed: ${error.message}${error.id ? ` (request ${error.id})` : ""}`;
    offer(error);
  }
  drawn = "";
  described.clear();
  await tick();
  say(told);
}
