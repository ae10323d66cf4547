// Images in, answers out: choosing, asking, and a card for each answer.

import { el, byId, bytes, save } from "./dom.js";
import { Refused, model as modelOf, models, post, predictions } from "./api.js";
import { answer, inWords, refusal, unpacked } from "./answers.js";
import { examples } from "./examples.js";
import { keep, kept } from "./kept.js";
import { localizations, progressText, shown, summary } from "./localize.js";
import { Picture } from "./picture.js";
import { raw, snippets } from "./snippets.js";
import { open } from "./stack.js";
import { bar, stages } from "./timing.js";

const FILES_MAX = 32;
const AT_ONCE = 3;
const MODEL_KEY = "ocelli-model";

const TASKS = {
  classify: "says what an image shows",
  detect: "finds objects and draws boxes around them",
  segment: "gives each pixel a class",
  image: "turns an image into another picture",
  landmarks: "finds the points of what an image shows",
  embed: "turns an image into a vector",
  tensors: "returns its output tensors as they are",
  localize: "finds single molecules in a stack of camera frames and fits them",
};

/** What may be set, by task. The key is the query's, and what is not set is as the model says, or the file. */
const FIELDS = {
  classify: [{ key: "top_k", label: "Labels", type: "number", min: 1, max: 1000 }],
  localize: [
    { key: "psf", label: "Model of a spot", choices: ["", "xynb", "xynbs", "xynbsxsy", "xyznb"] },
    { key: "sigma_px", label: "Width of a spot, px", type: "number", min: 0.3, max: 5, step: "any" },
    { key: "noise_min", label: "Threshold, × noise", type: "number", min: 0, step: "any" },
    { key: "pixel_nm", label: "Pixel, nm", type: "number", min: 1, step: "any", from: "file" },
    { key: "render", label: "Picture", choices: ["", "blur", "histogram"] },
    { key: "colormap", label: "Colours", choices: ["", "hot", "gray", "viridis"] },
  ],
};

/** Ready models by name. */
let known = new Map();
/** What was asked last, for asking again. */
let files = [];
/** Ends what is still under way when something new is asked. */
let under = new AbortController();

export const enter = refresh;

/** Whether there is nothing to ask. */
export const isEmpty = () => known.size === 0;

/** Once, whatever is looked at: files may be dropped on every view. */
export function begin() {
  const drop = byId("drop");
  byId("files").addEventListener("change", (event) => {
    run([...event.target.files]);
    event.target.value = "";
  });
  // The whole window takes files: one that misses the field would open in place of the page.
  addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  for (const name of ["dragleave", "drop"]) addEventListener(name, () => drop.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    const given = [...(event.dataTransfer?.files || [])];
    if (given.length === 0) return;
    location.hash = "try";
    run(given);
  });
  addEventListener("paste", (event) => {
    const given = [...(event.clipboardData?.files || [])];
    if (given.length > 0 && !byId("view-try").hidden) run(given);
  });
  byId("model").addEventListener("change", () => {
    keep(MODEL_KEY, byId("model").value);
    describe();
    if (files.length > 0) run(files);
  });
  byId("again").addEventListener("click", () => run(files));
  byId("examples").append(...examples().map(exampleButton));
}

/** Brings the list of models up to date, and keeps the choice. */
export async function refresh() {
  const select = byId("model");
  try {
    const ready = (await models()).filter(({ state }) => state === "READY");
    known = new Map(ready.map(({ name, task }) => [name, { task }]));
  } catch (error) {
    byId("model-says").textContent = error.message;
    return;
  }
  const tasks = new Set([...known.values()].map(({ task }) => task));
  // What no model here can answer is no example.
  for (const button of byId("examples").querySelectorAll("button")) button.hidden = !tasks.has(button.dataset.task);
  byId("examples-title").hidden = ![...byId("examples").querySelectorAll("button")].some((button) => !button.hidden);
  const before = select.value || kept(MODEL_KEY);
  select.replaceChildren(...[...known.keys()].map((name) => el("option", { value: name, text: name })));
  if (known.has(before)) select.value = before;
  describe();
}

/** What the chosen model does, and its settings. */
async function describe() {
  const name = byId("model").value;
  const says = byId("model-says");
  const entry = known.get(name);
  if (!entry) {
    says.textContent = "No model is ready: see Models.";
    byId("fields").replaceChildren();
    return;
  }
  says.textContent = `It ${TASKS[entry.task] || entry.task}.`;
  const fields = FIELDS[entry.task] || [];
  byId("settings").hidden = fields.length === 0;
  if (byId("fields").dataset.task !== entry.task) {
    byId("fields").dataset.task = entry.task;
    byId("fields").replaceChildren(...fields.map(field));
  }
  const { images } = await modelOf(name).catch(() => ({ images: true }));
  if (!images && byId("model").value === name) says.textContent = "It takes tensors only, not images: see the API.";
}

function field({ key, label, choices, from = "model", ...given }) {
  const id = `set-${key}`;
  // In few words, since fields are narrow, and in more.
  const [unset, title] = [`the ${from}'s`, `as the ${from} says, unless it is set here`];
  const input = choices
    ? el("select", { id, name: key, title }, choices.map((choice) => el("option", { value: choice, text: choice || unset })))
    : el("input", { id, name: key, placeholder: unset, title, ...given });
  return el("div", { class: "field" }, el("label", { for: id, text: label }), input);
}

const settings = () => Object.fromEntries([...byId("fields").querySelectorAll("[name]")].map(({ name, value }) => [name, value]));

function exampleButton(example) {
  const { name, says, shows, thumbnail, task, file } = example;
  const picture = thumbnail ? el("img", { src: thumbnail, alt: "", width: 60, height: 60 }) : el("span", { class: "movie", "aria-hidden": "true" });
  const take = async () => {
    const select = byId("model");
    // Of the chosen task if it can be had, else as it stands.
    if (known.get(select.value)?.task !== task) {
      const fitting = [...known].find(([, model]) => model.task === task);
      if (fitting) select.value = fitting[0];
      describe();
    }
    try {
      run([await file()]);
    } catch (error) {
      under.abort();
      byId("asking").textContent = "";
      byId("empty").hidden = true;
      byId("answers").replaceChildren(refusal(error));
    }
  };
  return el("li", {}, el("button", { type: "button", class: "example", "data-example": name, "data-task": task, "aria-label": `${shows}: ${says}`, title: says, hidden: !known.size, onclick: take }, picture, el("span", { text: shows })));
}

/** Asks about each file, a few at once. */
async function run(given) {
  under.abort();
  under = new AbortController();
  const { signal } = under;
  files = given.slice(0, FILES_MAX);
  byId("again").disabled = files.length === 0;
  byId("empty").hidden = true;
  const asking = byId("asking");
  // One may be ready by now.
  if (isEmpty()) await refresh();
  if (signal.aborted) return;
  const name = byId("model").value;
  if (!name) {
    byId("answers").replaceChildren(refusal({ title: "no model", detail: "no model is ready to be asked" }));
    return;
  }
  const left = given.length > FILES_MAX ? ` Only the first ${FILES_MAX} of ${given.length} files are sent.` : "";
  const cards = files.map((file) => el("article", { class: "card", "aria-busy": "true", "aria-label": file.name }, heading(file)));
  byId("answers").replaceChildren(...cards);
  // Below the fold on a narrow screen.
  if (asking.getBoundingClientRect().top > innerHeight * 0.7) asking.scrollIntoView();
  const { task } = known.get(name) || {};
  const query = settings();
  // The server may be set to another form than that which is shown here.
  if (["classify", "detect"].includes(task)) query.format = "ocelli";
  let [next, done, failed, words] = [0, 0, 0, ""];
  const say = () => (asking.textContent = done < files.length ? `Asking ${name}: ${done} of ${files.length}…${left}` : `${ended(name, files.length, failed, words)}${left}`);
  say();
  const worker = async () => {
    while (next < files.length && !signal.aborted) {
      const at = next++;
      const card = cards[at];
      try {
        words = await (task === "localize" ? fit : predict)({ card, file: files[at], name, query, signal, asking });
        if (signal.aborted) return;
      } catch (error) {
        if (signal.aborted) return;
        failed += 1;
        card.append(refusal(error instanceof Refused ? error : { title: error.title || "error", detail: error.message }));
      }
      card.removeAttribute("aria-busy");
      done += 1;
      say();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/** What became of all files, in a sentence that is read aloud. */
function ended(name, count, failed, words) {
  if (count === 1) return failed ? `${name} gave no answer.` : `Answered by ${name}${words ? `: ${words}` : ""}.`;
  return failed ? `${count - failed} of ${count} answered by ${name}, ${failed} failed.` : `${count} answers by ${name}.`;
}

function heading(file, ...more) {
  return el("header", {}, el("h2", { text: file.name }), el("p", { class: "quiet" }, bytes(file.size), ...more));
}

/** The picture of a file, or why there is none. */
async function pictured(file, says, how) {
  const source = await open(file, how);
  const none = (reason) => ({ source: { ...source, paint: null }, picture: null, element: el("p", { class: "quiet none", text: `No preview: ${reason}.` }) });
  if (!source.paint) return none(source.reason);
  try {
    const picture = new Picture(source.width, source.height, says);
    picture.draw(await source.paint(0));
    return { source, picture, element: picture.element };
  } catch (error) {
    // What the header promised may be more than can be painted here. The server may well read it.
    return none(error.message);
  }
}

const facts = (model, device) => el("span", {}, ` · ${model}`, device ? ` on ${device}` : "");

/** Everything that a card ends with. */
function ending(url, file, text, timing, save) {
  return [
    timing,
    el("details", {}, el("summary", { text: "The same from your code" }), snippets(url, file.name, save)),
    el("details", {}, el("summary", { text: save ? "The beginning of the reply" : "JSON" }), raw(text, save ? "Reply" : "JSON")),
  ];
}

async function predict({ card, file, name, query, signal }) {
  const url = predictions(name, query);
  const showing = pictured(file, file.name);
  showing.catch(() => {});
  const began = performance.now();
  const reply = await post(url, file, signal);
  const text = await reply.text();
  const took = performance.now() - began;
  const body = JSON.parse(text);
  const { source, picture, element } = await showing;
  const all = body.predictions || [body];
  const says = el("div", { class: "says" });
  const other = el("p", { class: "quiet none", text: "No preview: the browser decodes this file to another size than the server." });
  let wanted = 0;
  const show = async (at) => {
    wanted = at;
    const { width, height } = all[at].image || source;
    const fits = width === source.width && height === source.height;
    const turned = picture && fits && source.frames > 1;
    const page = turned ? await source.paint(Math.min(at, source.frames - 1)).catch(() => null) : null;
    const prediction = await unpacked(all[at]);
    // The slider has gone on.
    if (wanted !== at) return;
    if (turned) picture.draw(page);
    picture?.clear();
    if (picture) [element.hidden, other.hidden] = [!fits, fits];
    says.replaceChildren(answer(prediction, fits ? picture : null));
  };
  const pages = all.length > 1 ? pager(all.length, show) : null;
  await show(0);
  if (signal.aborted) return;
  card.firstChild.replaceWith(heading(file, facts(`${body.model} ${body.version}`, reply.headers.get("ocelli-device"))));
  card.append(
    el("div", { class: "result" }, el("div", { class: "shown" }, element, picture ? other : null, pages), says),
    ...ending(url, file, JSON.stringify(body, null, 2), bar(stages(reply.headers.get("server-timing")), took)),
  );
  return all.length === 1 ? inWords(all[0]) : `${all.length} pages`;
}

/** A slider through the pages of a file. */
function pager(count, show) {
  const says = el("output", { class: "quiet", text: `Page 1 of ${count}` });
  const slider = el("input", { type: "range", min: 1, max: count, value: 1, "aria-label": "Page" });
  slider.addEventListener("input", () => {
    says.textContent = `Page ${slider.value} of ${count}`;
    show(slider.value - 1);
  });
  return el("div", { class: "frames" }, slider, says);
}

async function fit({ card, file, name, query, signal, asking }) {
  const { render, colormap, ...asked } = query;
  const url = predictions(name, { ...asked, format: "ndjson" });
  const began = performance.now();
  const reply = await post(url, file, signal);
  let first = 0;
  const found = await localizations(reply, (far) => {
    first ||= performance.now() - began;
    asking.textContent = progressText(far);
  });
  const took = performance.now() - began;
  let { source, picture, element } = await pictured(file, file.name, { asStored: true });
  if (signal.aborted) return;
  const [width, height] = found.head.frame_size_px || [source.width, source.height];
  if (!picture && width && height) {
    // The spots alone.
    picture = new Picture(width, height, "the spots");
    element = el("div", {}, picture.element, element);
  }
  const { below, beside } = shown(found, source, picture, name, { query: asked, look: { render, colormap } }, file, signal);
  card.firstChild.replaceWith(heading(file, facts(found.head.served_as)));
  const keep = file.name === "movie.npy" ? el("button", { type: "button", class: "button small", text: "Save this movie", onclick: () => save(file, file.name) }) : null;
  card.append(
    el("div", { class: "result even" }, el("div", { class: "shown" }, element, below, keep), el("div", { class: "says" }, beside)),
    ...ending(predictions(name, { ...asked, format: "csv" }), file, found.first, bar([["begin", first], ["stream", took - first]], took), `${file.name.replace(/\.[^.]*$/, "")}.csv`),
  );
  return `${summary(found)}${found.broken ? ", then the stack broke off" : ""}`;
}
