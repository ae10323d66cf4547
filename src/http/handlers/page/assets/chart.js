// Small drawings of numbers: lines over time, bars of a vector, histograms. Drawn as SVG, so that they follow the theme.

import { el, svg, short } from "./dom.js";

const [WIDTH, HEIGHT] = [240, 44];

/** A line over the last minutes, with its newest value read out by the text beside it. `null` is a gap. */
export function sparkline(values, { says, max = 0 }) {
  const top = Math.max(max, ...values.filter(Number.isFinite), 1e-12) * 1.08;
  const x = (index) => ((index + 1) * WIDTH) / values.length;
  const y = (value) => HEIGHT - 2 - ((HEIGHT - 4) * value) / top;
  let [line, area, begun] = ["", "", null];
  values.forEach((value, index) => {
    if (!Number.isFinite(value)) {
      begun = null;
      return;
    }
    line += `${begun === null ? "M" : "L"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    if (begun === null) begun = x(index);
    if (index === values.length - 1 || !Number.isFinite(values[index + 1])) {
      const own = line.slice(line.lastIndexOf("M"));
      area += `${own}L${x(index).toFixed(1)} ${HEIGHT}L${begun.toFixed(1)} ${HEIGHT}Z`;
    }
  });
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": says },
    svg("path", { class: "area", d: area }),
    svg("path", { class: "line", d: line }),
  );
}

/** The numbers of a vector as bars above and below zero. Of long ones, the extremes of each column are drawn. */
export function vectorPlot(values, says) {
  const [width, height] = [640, 140];
  const columns = Math.min(values.length, 320);
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
  let path = "";
  for (let column = 0; column < columns; column += 1) {
    const from = Math.floor((column * values.length) / columns);
    const part = values.slice(from, Math.max(from + 1, Math.floor(((column + 1) * values.length) / columns)));
    const y = (value) => (height / 2) * (1 - (0.95 * value) / largest);
    const [low, high] = [Math.min(0, ...part), Math.max(0, ...part)];
    const x = ((column + 0.5) * width) / columns;
    path += `M${x.toFixed(1)} ${y(low).toFixed(1)}V${y(high).toFixed(1)}`;
  }
  const bars = svg("path", { class: "bars", d: path });
  bars.style.strokeWidth = `${Math.max(1, (0.7 * width) / columns)}`;
  return svg(
    "svg",
    { class: "plot", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": says },
    svg("path", { class: "axis", d: `M0 ${height / 2}H${width}` }),
    bars,
  );
}

/** How values are spread, between two percentiles. */
export function histogram(values, { title, unit }) {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
  if (sorted.length < 2) return null;
  const at = (part) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
  const [low, high, bins] = [at(0.005), at(0.985), 40];
  const counts = new Array(bins).fill(0);
  for (const value of sorted) {
    const bin = Math.floor(((value - low) / (high - low || 1)) * bins);
    if (bin >= 0 && bin < bins) counts[bin] += 1;
  }
  const [width, height, most] = [240, 72, Math.max(...counts)];
  const bars = counts.map((count, bin) =>
    svg("rect", {
      x: ((bin * width) / bins + 0.5).toFixed(1),
      y: (height * (1 - count / most)).toFixed(1),
      width: (width / bins - 1).toFixed(1),
      height: ((height * count) / most).toFixed(1),
    }),
  );
  const middle = `${short(at(0.5))} ${unit}`;
  return el(
    "figure",
    { class: "histogram" },
    el("figcaption", {}, title, " ", el("strong", { text: middle }), el("span", { class: "quiet", text: " median" })),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: median ${middle}` }, ...bars),
    el("p", { class: "ends" }, el("span", { text: short(low) }), el("span", { text: `${short(high)} ${unit}` })),
  );
}
