// What a model said of one image, drawn: by task, and by what the answer holds.

import { el, colorOf, fromBase64, percent, save, short, sure } from "./dom.js";
import { manual } from "./api.js";
import { vectorPlot } from "./chart.js";
import { Picture, paintClasses, paintRuns } from "./picture.js";
import { valuesOf } from "./png.js";

const LISTED_MAX = 100;
const NUMBERS_MAX = 64;
const WORDS_MAX = 6;

const nameOf = ({ label, index }) => label ?? `class ${index}`;
const pointSays = ({ label, score }, at) => (label ?? `keypoint ${at}`) + (score === undefined ? "" : ` ${sure(score)}`);

/** A prediction with the class of each pixel of its mask, if it has one. */
export async function unpacked(prediction) {
  const { mask } = prediction;
  return mask ? { ...prediction, mask: { ...mask, values: await valuesOf(fromBase64(mask.png)) } } : prediction;
}

/** What is said beside the picture; what lies on it is put on `picture`, if there is one. */
export function answer(prediction, picture) {
  if (prediction.classes) return classes(prediction.classes);
  if (prediction.detections) return detections(prediction.detections, picture);
  if (prediction.mask) return mask(prediction.mask, picture);
  if (prediction.picture) return made(prediction.picture, picture);
  if (prediction.landmarks) return landmarks(prediction.landmarks, picture);
  if (prediction.vector) return vector(prediction.vector);
  if (prediction.outputs) return tensors(prediction.outputs);
  if (prediction.error) return refusal(prediction);
  return el("p", { class: "quiet", text: "This page cannot draw this kind of answer: see the JSON." });
}

/** The same in a few words, for those who have it read aloud. */
export function inWords({ classes, detections, mask, picture, landmarks, vector, outputs, error }) {
  if (classes) {
    const [best] = classes;
    if (!best) return "no label";
    return `${nameOf(best)}, ${sure(best.score)}`;
  }
  if (detections) return detections.length > 0 ? `${detections.length} found, ${detections.slice(0, WORDS_MAX).map(nameOf).join(", ")}${detections.length > WORDS_MAX ? " and more" : ""}` : "nothing found";
  if (mask) return `a mask of ${mask.classes.length} classes`;
  if (picture) return `a picture of ${picture.width} by ${picture.height} pixels`;
  if (landmarks) return `${landmarks.length} points`;
  if (vector) return `${vector.length} numbers`;
  if (outputs) return `${outputs.length} tensors`;
  return error || "";
}

/** Labels, best first, with a bar for each score. Scores that are no probabilities are measured by the best. */
function classes(found) {
  const scores = found.map(({ score }) => score);
  const probabilities = scores.every((score) => score >= 0 && score <= 1);
  const [least, most] = [Math.min(0, ...scores), probabilities ? 1 : Math.max(...scores, 1e-12)];
  const rows = found.map((entry) => {
    const fill = el("span", { class: "fill" });
    fill.style.width = `${(100 * (entry.score - least)) / (most - least)}%`;
    return el(
      "li",
      {},
      el("span", { class: "name", text: nameOf(entry) }),
      el("span", { class: "score", text: probabilities ? percent(entry.score) : short(entry.score) }),
      el("span", { class: "track", "aria-hidden": "true" }, fill),
    );
  });
  return el("ol", { class: "classes", "aria-label": "Labels, best first" }, rows);
}

/** Boxes with their keypoints and masks on the picture, and in a list; a slider hides the weaker ones. */
function detections(found, picture) {
  const list = el("ol", { class: "found", "aria-label": "Detections" });
  const count = el("p", { class: "count" });
  let shown = -1;
  const show = (least) => {
    const kept = found.filter(({ score }) => score >= least);
    // As it was: large masks take a while to paint.
    if (kept.length === shown) return;
    shown = kept.length;
    picture?.clear();
    // Below all boxes, and the best on top.
    const masks = kept.slice(0, LISTED_MAX).reverse().flatMap(({ index, mask }) => (mask ? [{ ...mask, index }] : []));
    if (masks.length > 0) picture?.layer(masks[0].width, masks[0].height, (context) => paintRuns(context, masks[0], masks)).classList.add("mask");
    count.textContent = `${kept.length} of ${found.length} found`;
    list.replaceChildren(
      ...kept.slice(0, LISTED_MAX).map((entry) => {
        const row = el("li", {}, key(entry.index), el("span", { class: "name", text: nameOf(entry) }), el("span", { class: "score", text: sure(entry.score) }));
        row.title = `left, top, right, bottom: ${entry.box.map((edge) => edge.toFixed(1)).join(", ")}`;
        const points = (entry.keypoints || []).map((point, at) => ({ ...point, says: pointSays(point, at) }));
        if (points.length > 0) row.title += `\nkeypoints: ${points.map(({ says }) => says).join(", ")}`;
        const thing = picture?.thing(entry, nameOf(entry), points);
        row.addEventListener("pointerenter", () => thing?.classList.add("lit"));
        row.addEventListener("pointerleave", () => thing?.classList.remove("lit"));
        return row;
      }),
      ...(kept.length > LISTED_MAX ? [el("li", { class: "quiet", text: `and ${kept.length - LISTED_MAX} more` })] : []),
    );
  };
  show(0);
  if (found.length < 2) return el("div", {}, count, list);
  const slider = el("input", { type: "range", min: 0, max: 100, value: 0, oninput: () => show(slider.value / 100) });
  return el("div", {}, count, list, el("label", { class: "range" }, "Hide scores below", slider));
}

const key = (index) => {
  const square = el("span", { class: "swatch", "aria-hidden": "true" });
  square.style.background = colorOf(index);
  return square;
};

/** A mask over the picture, with its classes to be switched on and off. The first is taken for what is not meant, and off. */
function mask(found, picture) {
  const meant = new Set(found.classes.map(({ index }) => index).filter((index) => index > 0));
  const draw = () => {
    picture?.clear();
    picture?.layer(found.width, found.height, (context) => paintClasses(context, found, meant)).classList.add("mask");
  };
  draw();
  const whole = found.width * found.height;
  const rows = found.classes.map((entry) => {
    const box = el("input", { type: "checkbox", checked: entry.index !== 0 });
    box.addEventListener("change", () => {
      if (box.checked) meant.add(entry.index);
      else meant.delete(entry.index);
      draw();
    });
    return el("li", {}, el("label", {}, box, key(entry.index), el("span", { class: "name", text: nameOf(entry) })), el("span", { class: "score", text: percent(entry.pixels / whole) }));
  });
  return el("ul", { class: "found", "aria-label": "Classes of the mask" }, rows);
}

/** A picture over that which was posted, to be switched off; beside it where it has another shape, or the other cannot be shown. */
function made({ width, height, channels, depth, range, png }, picture) {
  const file = new Blob([fromBase64(png)], { type: "image/png" });
  const over = picture && Math.abs((width * picture.height) / (height * picture.width) - 1) < 0.02;
  const on = over ? picture : new Picture(width, height, "the answer");
  const layer = on.layer(width, height, (context) => {
    createImageBitmap(file).then((bitmap) => context.drawImage(bitmap, 0, 0));
  });
  layer.classList.add("made");
  const box = el("input", { type: "checkbox", checked: true });
  box.addEventListener("change", () => (layer.hidden = !box.checked));
  const kinds = { 1: "grey", 3: "in colour", 4: "in colour with alpha" };
  return el(
    "div",
    {},
    el("p", { class: "count", text: `${width} × ${height} pixels, ${kinds[channels]}, ${depth} bits; black is ${short(range[0])}, white ${short(range[1])}` }),
    over ? el("label", {}, box, "Show the answer over the image") : on.element,
    el("p", {}, el("button", { type: "button", class: "button small", text: "Save the picture", onclick: () => save(file, "picture.png") })),
  );
}

/** Points on the picture, and in a list. */
function landmarks(found, picture) {
  const points = found.map((point, at) => ({ ...point, says: pointSays(point, at) }));
  picture?.points(points);
  const rows = points.slice(0, LISTED_MAX).map(({ label, x, y, score }, at) =>
    el(
      "li",
      {},
      el("span", { class: "name", text: label ?? `point ${at}` }),
      el("span", { class: "score", text: `${x.toFixed(1)}, ${y.toFixed(1)}${score === undefined ? "" : ` · ${sure(score)}`}` }),
    ),
  );
  if (found.length > LISTED_MAX) rows.push(el("li", { class: "quiet", text: `and ${found.length - LISTED_MAX} more` }));
  return el("div", {}, el("p", { class: "count", text: `${found.length} points` }), el("ol", { class: "found", "aria-label": "Points" }, rows));
}

function vector(values) {
  const norm = Math.hypot(...values);
  return el(
    "div",
    {},
    el("p", { class: "count", text: `${values.length} numbers, norm ${short(norm)}` }),
    vectorPlot(values, `${values.length} numbers from ${short(Math.min(...values))} to ${short(Math.max(...values))}`),
  );
}

function tensors(outputs) {
  const rows = outputs.map(({ name, datatype, shape, data }) => {
    const numbers = data.filter((value) => typeof value === "number");
    const spread = numbers.length > 0 && numbers.length === data.length;
    // One by one: long lists are too many arguments.
    const least = spread ? short(numbers.reduce((a, b) => Math.min(a, b))) : "";
    const most = spread ? short(numbers.reduce((a, b) => Math.max(a, b))) : "";
    const first = data.slice(0, NUMBERS_MAX).map((value) => (typeof value === "number" ? short(value) : String(value)));
    return [
      el("tr", {}, el("th", { scope: "row", text: name }), ...[datatype, `[${shape.join(", ")}]`, least, most].map((text) => el("td", { text }))),
      el("tr", {}, el("td", { colspan: 5, class: "data", text: first.join("  ") + (data.length > NUMBERS_MAX ? "  …" : "") })),
    ];
  });
  const head = ["Output", "Type", "Shape", "Minimum", "Maximum"].map((text) => el("th", { scope: "col", text }));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Outputs" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

/** An error of the server, as it says it. */
export function refusal({ title, detail, error, message, status, request_id, id, type }) {
  const name = request_id || id;
  const more = manual(type);
  return el(
    "div",
    { class: "refusal", role: "alert" },
    el("h3", { text: title || "Error" }),
    el("p", { text: detail || message || error || "" }),
    more ? el("p", {}, el("a", { href: more, text: "What it means, and what to do" })) : null,
    el("p", { class: "quiet" }, status ? `Status ${status}` : "", name ? el("span", {}, status ? " · request " : "Request ", el("code", { text: name })) : null),
  );
}
