// Where the time went: the stages that the server states in `Server-Timing`, and what is left of the round trip.

import { el, time } from "./dom.js";

const STAGES = {
  decode: "Decode",
  queue: "Queue",
  stage: "Batch",
  compute: "Compute",
  begin: "To the first result",
  stream: "First to last result",
  rest: "Network and rest",
};

/** `decode;dur=1.5, queue;dur=0.1` as pairs of name and milliseconds. */
export function stages(header) {
  const entries = (header || "").split(",").map((entry) => entry.trim().match(/^([\w-]+).*?;\s*dur=([\d.]+)/));
  return entries.filter(Boolean).map(([, name, ms]) => [name, Number(ms)]);
}

/** A stacked bar of stages with its legend. `total` is what the caller waited, in milliseconds. */
export function bar(parts, total) {
  const told = parts.reduce((sum, [, ms]) => sum + ms, 0);
  const whole = Math.max(total, told);
  if (whole - told > 0.01) parts = [...parts, ["rest", whole - told]];
  const strip = el("div", { class: "strip", "aria-hidden": "true" });
  const legend = el("dl", { class: "legend" });
  for (const [name, ms] of parts) {
    const piece = el("span", { class: `stage-${name}` });
    piece.style.flexGrow = String(Math.max(ms / whole, 0.004));
    strip.append(piece);
    legend.append(
      el("div", {}, el("dt", { class: `key stage-${name}`, text: STAGES[name] || name }), el("dd", { text: time(ms / 1e3) })),
    );
  }
  return el(
    "section",
    { class: "timing", "aria-label": "Timings" },
    el("h3", {}, "Time ", el("span", { class: "quiet", text: `${time(total / 1e3)} in all` })),
    strip,
    legend,
  );
}
