// Makes elements. Text goes in as text and never as markup, so that a name or label with tags in it is shown as it is.

/** An element with attributes, listeners (keys that begin with `on`) and children; null children are left out. */
export function el(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "text") element.textContent = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for drawings. */
export function svg(name, given = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(given)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A number in few characters: three figures that count. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  if (size >= 100) return value.toFixed(0);
  return String(Number(value.toPrecision(3)));
}

/** A part of one. */
export const percent = (part) => `${(100 * part).toFixed(1)} %`;

/** A score: mostly a probability, but it need not be. */
export const sure = (score) => (score >= 0 && score <= 1 ? percent(score) : short(score));

/** The bytes of a base64 text. */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

/** Seconds as people say them. */
export function time(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${short(seconds * 1e6)} µs`;
  if (seconds < 1) return `${short(seconds * 1e3)} ms`;
  if (seconds < 120) return `${short(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${short(seconds / 3600)} h`;
}

/** Bytes as people say them. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) {
    count /= 1024;
    at += 1;
  }
  return `${short(count)} ${units[at]}`;
}

/** A button that copies a text, and says so. */
export function copyButton(text, what) {
  const button = el("button", { type: "button", class: "button small", "aria-label": `Copy ${what}`, text: "Copy" });
  button.addEventListener("click", async () => {
    let told = "Copied";
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      told = "Select and copy";
    }
    button.textContent = told;
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** While it works, a button is pressed in vain. It is not disabled, since it would lose the focus. */
export async function during(button, work) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  try {
    await work();
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

/** Saves bytes as a file of the user's. */
export function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The colours of classes, told apart by all eyes; the same class has the same one everywhere. */
const COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#4c9be8", "#9bd770", "#b39ddb", "#ff8a80"];
export const colorOf = (index) => COLORS[index % COLORS.length];
