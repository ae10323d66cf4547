// Reads Prometheus' text format, and what happened between two looks at it.

/** Every sample: name to a list of `{ labels, value }`. */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const end = line.lastIndexOf(" ");
    const brace = line.indexOf("{");
    const name = brace < 0 ? line.slice(0, end) : line.slice(0, brace);
    const labels = {};
    if (brace >= 0) {
      for (const [, key, value] of line.slice(brace + 1, end).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
        labels[key] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
      }
    }
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels, value: Number(line.slice(end + 1)) });
  }
  return samples;
}

const fits = (labels, wanted) => Object.entries(wanted).every(([key, value]) => labels[key] === value);

const groups = new WeakMap();

/** The samples of one model: sorted out once, since there is a row for each. */
function ofModel(all, model) {
  if (!groups.has(all)) {
    const models = new Map();
    for (const sample of all) {
      if (!models.has(sample.labels.model)) models.set(sample.labels.model, []);
      models.get(sample.labels.model).push(sample);
    }
    groups.set(all, models);
  }
  return groups.get(all).get(model) || [];
}

/** The sum of all samples of a name whose labels are these. */
export function sum(samples, name, wanted = {}) {
  const all = samples.get(name) || [];
  return (wanted.model === undefined ? all : ofModel(all, wanted.model)).reduce((all, { labels, value }) => (fits(labels, wanted) ? all + value : all), 0);
}

/** All values of a label. */
export const valuesOf = (samples, name, label) => [...new Set((samples.get(name) || []).map(({ labels }) => labels[label]))];

/** What a counter counted between two looks; one that began anew counts from 0. */
export function counted(before, now, name, wanted) {
  const [old, current] = [sum(before, name, wanted), sum(now, name, wanted)];
  return current >= old ? current - old : current;
}

/** The mean of a histogram between two looks; NaN when there was nothing. */
export const mean = (before, now, name, wanted) =>
  counted(before, now, `${name}_sum`, wanted) / counted(before, now, `${name}_count`, wanted);

/** A quantile of a histogram between two looks, interpolated within its bucket; NaN when there was nothing. */
export function quantile(before, now, name, wanted, part) {
  const edge = (le) => (le === "+Inf" ? Infinity : Number(le));
  const buckets = valuesOf(now, `${name}_bucket`, "le")
    .map((le) => [edge(le), counted(before, now, `${name}_bucket`, { ...wanted, le })])
    .sort(([a], [b]) => a - b);
  const all = buckets.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return NaN;
  let [low, below] = [0, 0];
  for (const [high, count] of buckets) {
    if (count >= part * all) return high === Infinity ? low : low + ((high - low) * (part * all - below)) / (count - below || 1);
    [low, below] = [high, count];
  }
  return low;
}
