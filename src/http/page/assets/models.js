// The models: what they take and give, in what state they are, and loading and unloading where the server allows it.

import { el, byId, during } from "./dom.js";
import * as api from "./api.js";

const EVERY_MS = 5000;
/** How models come and go, where callers have no say in it. */
const MODES = {
  none: "Models are loaded when the server starts; repository_mode = \"explicit\" lets callers load and unload them.",
  watch: "Models follow their folder.",
};
const LABELS_SHOWN = 40;
const TENSORS_SHOWN = 4;
let timer = null;
let looking = false;
let begun = false;
/** What is known of versions that are ready, by name and version. */
const described = new Map();
/** Lists that are open stay open when the list is drawn anew; the drawing is left out if nothing changed. */
let drawn = "";

export function enter() {
  if (!begun) begin();
  looking = true;
  tick();
}

export function leave() {
  looking = false;
  clearTimeout(timer);
}

function begin() {
  begun = true;
  byId("token").value = api.token();
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    api.keepToken(byId("token").value.trim());
    say(api.token() ? "The token is kept until this tab is closed." : "There is no token now.");
  });
}

const say = (text) => (byId("models-says").textContent = text);

async function tick() {
  clearTimeout(timer);
  if (!document.hidden) {
    try {
      await look();
    } catch (error) {
      say(`No news: ${error.message}`);
    }
  }
  if (looking) timer = setTimeout(tick, EVERY_MS);
}

async function look() {
  const { models, repository_mode: mode } = await api.json("v2/models");
  const tasks = new Map(models.map(({ name, version, task }) => [`${name}/${version}`, task]));
  // The index knows those of the folder that are not loaded, too.
  const listed = await (await api.control("v2/repository/index")).json();
  const entries = await Promise.all(
    listed.map(async (entry) => {
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
  byId("token-box").hidden = mode !== "explicit";
  // A button keeps the focus, and where it has gone, the model's other one gets it.
  const focused = document.activeElement?.dataset?.control;
  const model = document.activeElement?.closest("[data-model]")?.dataset.model;
  byId("list").replaceChildren(...entries.map(card));
  const left = (selector) => byId("list").querySelector(selector);
  if (focused) (left(`[data-control="${CSS.escape(focused)}"]`) || left(`[data-model="${CSS.escape(model)}"] button`))?.focus();
}

function card({ name, version, state, reason, task, about, mode }) {
  const labels = about?.labels || [];
  return el(
    "article",
    { class: "card model", "data-model": name },
    el("header", {}, el("h2", { text: name }), el("p", { class: "quiet", text: [version && `version ${version}`, task].filter(Boolean).join(" · ") })),
    el("p", { class: "state", "data-state": state === "READY" ? "good" : state === "LOADING" ? "busy" : "bad" }, el("span", { class: "dot", "aria-hidden": "true" }), state.toLowerCase()),
    reason ? el("p", { class: "reason", text: reason }) : null,
    about ? el("dl", { class: "facts" }, tensors("Inputs", about.inputs), tensors("Outputs", about.outputs)) : null,
    labels.length > 0
      ? el("details", {}, el("summary", { text: `${labels.length} labels` }), el("p", { class: "labels", text: labels.slice(0, LABELS_SHOWN).join(" · ") + (labels.length > LABELS_SHOWN ? ` · and ${labels.length - LABELS_SHOWN} more` : "") }))
      : null,
    mode === "explicit"
      ? el("div", { class: "row" }, button(name, "load", state === "READY" ? "Load anew" : "Load"), state === "READY" ? button(name, "unload", "Unload") : null)
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
  }
  drawn = "";
  described.clear();
  await tick();
  say(told);
}
