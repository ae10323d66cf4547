// Localizations: read line by line while they come, shown on the frames, and rendered by the server.

import { el, during, save, short } from "./dom.js";
import { Refused, post, predictions } from "./api.js";
import { refusal } from "./answers.js";
import { histogram } from "./chart.js";

const RADIUS_PX = 3.2;
/** Values that are kept for the histograms. */
const KEPT_MAX = 500_000;
/** The width that a picture of small frames has. */
const PICTURE_PX = 512;
const FILES = [
  ["png", "png", "Picture"],
  ["csv", "csv", "CSV"],
  ["thunderstorm", "csv", "ThunderSTORM"],
  ["picasso", "zip", "Picasso"],
];
/** Those that there are of a stack that breaks off: they end with the mistake. */
const FILES_OF_PARTS = ["csv", "thunderstorm"];

/**
 * What a stack holds, from the lines of NDJSON. `progress` is told the newest frame. Of a stack that breaks off it is what came before,
 * and `broken` says why there is no more.
 */
export async function localizations(reply, progress) {
  const found = { head: null, tail: null, broken: null, frames: new Map(), photons: [], errors: [], count: 0, newest: -1, first: "" };
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let ended = false; !ended; ) {
      const { value, done } = await reader.read();
      ended = done;
      const lines = (rest + (value || "")).split("\n");
      rest = lines.pop();
      for (const line of lines) take(found, JSON.parse(line), line);
      progress(found);
    }
    if (!found.tail) throw new Error("the reply has no end");
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const broken = { title: "the stack broke off", detail: error.message, type: error.type };
    found.broken = new Refused(0, broken, reply.headers.get("x-request-id"));
    // There is nothing to show beside it.
    if (found.newest < 0) throw found.broken;
    // Frames without spots have no lines, so there may be more that are good.
    found.tail = { frames: found.newest + 1, status: error.status || {} };
    progress(found);
  }
  return found;
}

function take(found, line, text) {
  if (line.error) throw Object.assign(new Error(line.error), { type: line.type, status: line.status });
  if (line.format) found.head = line;
  else if (line.end) found.tail = line;
  else {
    // In pixels, whatever the unit of the reply.
    const nm = found.head.pixel_size_nm;
    const [x, y] = nm ? [line.x_nm.map((at) => at / nm[0]), line.y_nm.map((at) => at / nm[1])] : [line.x_px, line.y_px];
    const before = found.frames.get(line.frame) || [];
    found.frames.set(line.frame, before.concat(x.map((at, index) => [at, y[index]])));
    found.count += line.count;
    found.newest = line.frame;
    if (found.photons.length < KEPT_MAX) {
      found.photons.push(...line.photons);
      found.errors.push(...(line.x_error_nm || line.x_error_px));
    }
  }
  if (found.first.length < 4000) found.first += `${text}\n`;
}

/**
 * The spots on the frames, with a slider through them; the picture of all, until `signal` ends that; and how good they are. `query` is
 * what was asked, and `look` what is asked beside it of pictures alone, which other files refuse.
 */
export function shown(found, stack, picture, model, { query, look }, file, signal) {
  const { frames } = found.head;
  const unit = found.head.pixel_size_nm ? "nm" : "px";
  const size = found.head.frame_size_px;
  const says = el("output", { class: "quiet" });
  let wanted = 0;
  const move = async (frame) => {
    wanted = frame;
    const spots = found.frames.get(frame) || [];
    says.textContent = `Frame ${frame + 1} of ${found.tail.frames}: ${spots.length} ${spots.length === 1 ? "spot" : "spots"}`;
    // Of a file that cannot be read here, ROIs say nothing of where they are to be drawn.
    if (!picture) return;
    const turned = stack.paint && frame < stack.frames;
    const image = turned ? await stack.paint(frame).catch(() => null) : null;
    // The slider has gone on.
    if (wanted !== frame) return;
    if (turned) picture.draw(image);
    picture.clear();
    picture.rings(spots, RADIUS_PX);
  };
  const last = (found.tail.frames || frames || 1) - 1;
  const slider = el("input", { type: "range", min: 0, max: last, value: 0, "aria-label": "Frame", oninput: () => move(Number(slider.value)) });
  const first = [...found.frames.keys()].sort((a, b) => a - b)[0] ?? 0;
  slider.value = String(first);
  move(first);

  const largest = size ? Math.max(...size) : PICTURE_PX;
  // Larger frames have as many pixels as the server sees fit.
  const asked = largest < PICTURE_PX / 2 ? { scale: Math.round(PICTURE_PX / largest), ...look } : look;
  const status = Object.entries(found.tail.status).filter(([, count]) => count > 0);
  const tally = status.map(([name, count]) => `${count} ${name.replaceAll("_", " ")}`).join(", ");
  const told = el("p", { class: "hint", role: "status" });
  const files = FILES.filter(([format]) => !found.broken || FILES_OF_PARTS.includes(format));
  const downloads = files.map(([format, extension, name]) =>
    el("button", { type: "button", class: "button small", text: name, onclick: (event) => during(event.currentTarget, () => download(model, { ...query, ...(format === "png" ? look : {}), format }, file, extension, told)) }),
  );
  return {
    below: [el("div", { class: "frames" }, slider, says), el("div", { class: "pair" }, histogram(found.photons, { title: "Photons", unit: "" }), histogram(found.errors, { title: "Error in x", unit }))],
    beside: el(
      "div",
      {},
      // Of a part of a stack the server renders nothing.
      found.broken ? refusal(found.broken) : rendered(found.count, render(model, { ...query, ...asked }, file, signal), signal),
      el("p", { class: "count", text: summary(found) }),
      el("p", { class: "quiet tally", text: `${tally || (found.count ? "" : "nothing found")}${size ? ` · frames of ${size.join(" × ")} pixels` : ""}` }),
      el("div", { class: "row" }, el("span", { class: "quiet", text: "Save as" }), downloads),
      told,
    ),
  };
}

/** The picture of all localizations, once it is there. */
function rendered(count, picture, signal) {
  const drawing = el("figure", { class: "superres" }, el("p", { class: "quiet", role: "status", text: "The server is rendering…" }));
  picture.then(
    (blob) => {
      const url = URL.createObjectURL(blob);
      signal.addEventListener("abort", () => URL.revokeObjectURL(url));
      const image = el("img", { alt: `${count} localizations, rendered`, class: "rendered", src: url });
      drawing.replaceChildren(image, el("figcaption", { class: "quiet", text: "All localizations, rendered by the server" }));
    },
    (error) => drawing.lastChild.replaceWith(el("p", { class: "quiet", text: `The picture could not be rendered: ${error.message}` })),
  );
  return drawing;
}

/** How much there is. */
export const summary = ({ count, tail, broken }) => `${count} localizations in ${broken ? "the first " : ""}${tail.frames} frames`;

const render = async (model, query, file, signal) => {
  const reply = await post(predictions(model, { ...query, format: "png" }), file, signal);
  return reply.blob();
};

async function download(model, query, file, extension, told) {
  const name = `${file.name.replace(/\.[^.]*$/, "")}.${extension}`;
  told.textContent = `Making ${name}…`;
  try {
    const reply = await post(predictions(model, query), file);
    save(await reply.blob(), name);
    told.textContent = `${name} is saved.`;
  } catch (error) {
    told.textContent = `${name} could not be made: ${error.message}`;
  }
}

/** What a line under the heading says while a stack is read. */
export const progressText = ({ head, newest, count }) =>
  `Frame ${newest + 1}${head?.frames ? ` of ${head.frames}` : ""}, ${short(count)} localizations`;
