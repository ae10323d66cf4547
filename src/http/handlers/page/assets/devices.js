// Devices as cards: whatever the server says of them. What it does not say is left out.

import { el, bytes, during, short, time } from "./dom.js";
import { address, control } from "./api.js";
import { sum, valuesOf } from "./prometheus.js";
import { redraw } from "./redraw.js";
import { offer } from "./token.js";

const GOOD = { serving: "good", warming: "busy", waiting: "busy", suspect: "busy", fenced: "bad", lost: "bad" };

/** What `/v2/devices` lists; of a server that has no such list, the states that its metrics know. */
export async function devices(samples) {
  const reply = await fetch(address("v2/devices"), { cache: "no-store" });
  if (reply.ok) return (await reply.json()).devices;
  const states = valuesOf(samples, "ocelli_device_state", "state");
  return valuesOf(samples, "ocelli_device_state", "device").map((id) => ({
    id,
    state: states.find((state) => sum(samples, "ocelli_device_state", { device: id, state }) === 1),
  }));
}

/** Draws what has changed. A device's button keeps the focus, also where it has turned from one into the other. */
export function deviceCards(place, listed, say) {
  const focused = place.contains(document.activeElement) ? document.activeElement.closest("[data-device]")?.dataset.device : null;
  redraw(place, listed.map((device) => card(device, say)));
  if (focused && !place.contains(document.activeElement)) place.querySelector(`[data-device="${CSS.escape(focused)}"] button`)?.focus();
}

const told = (value) => value !== null && value !== undefined;

function card(device, say) {
  const { id, name, reason, drained, since_s: since } = device;
  // Left alone because somebody wanted it, and not because it is sick.
  const state = drained && device.state === "fenced" ? "drained" : device.state;
  return el(
    "article",
    { class: "card device", "data-card": id, "data-device": id },
    el("header", {}, el("h3", { text: name || id }), name ? el("p", { class: "quiet id", text: id }) : null),
    el(
      "p",
      { class: "state", "data-state": GOOD[state] || "busy" },
      el("span", { class: "dot", "aria-hidden": "true" }),
      state,
      told(since) ? el("span", { class: "quiet", text: `for ${time(Math.round(since))}` }) : null,
    ),
    reason ? el("p", { class: "reason", text: reason }) : null,
    memory(device.memory || {}),
    told(device.utilization_percent) ? meter("Utilisation", `${device.utilization_percent} %`, [[device.utilization_percent, "own"]], 100) : null,
    sentence(device),
    told(device.drained) ? button(device, say) : null,
  );
}

/** Ours, what others hold, and what is free. */
function memory({ total_bytes: total, free_bytes: free, own_bytes: own }) {
  if (!total || !told(free)) return null;
  const used = total - free;
  const ours = Math.min(own || 0, used);
  return meter("Memory", `${bytes(used)} of ${bytes(total)}${ours ? `, ${bytes(ours)} ours` : ""}`, [[ours, "own"], [used - ours, "other"]], total);
}

function meter(title, text, parts, whole) {
  const track = el("span", { class: "track", "aria-hidden": "true" });
  for (const [value, kind] of parts) {
    const fill = el("span", { class: `part ${kind}` });
    fill.style.width = `${(100 * value) / whole}%`;
    track.append(fill);
  }
  return el("div", { class: "meter" }, el("p", {}, el("span", { class: "quiet", text: title }), el("span", { text })), track);
}

/** The rest, in a line. */
function sentence({ state, temperature_c: heat, power_w: power, other_processes: others, waited_s: waited, memory: { needed_bytes: needed } = {} }) {
  const parts = [
    told(power) ? `${short(power)} W` : "",
    told(heat) ? `${short(heat)} °C` : "",
    others?.length ? `${others.length} other ${others.length === 1 ? "process" : "processes"}` : "",
    state === "waiting" && waited ? `waited ${time(Math.round(waited))}` : "",
    state === "waiting" && needed ? `needs ${bytes(needed)}` : "",
  ].filter(Boolean);
  return parts.length > 0 ? el("p", { class: "reason", text: parts.join(" · ") }) : null;
}

/** Leaves a device alone, and takes it again: for callers who may. */
function button({ id, name, drained }, say) {
  const act = drained ? "resume" : "drain";
  const press = async () => {
    try {
      await control(`v2/devices/${encodeURIComponent(id)}/${act}`);
      say(drained ? `${name || id} may be used again.` : `${name || id} finishes what it has begun and is left alone.`);
    } catch (error) {
      say(`${name || id} stays as it is: ${error.message}`);
      offer(error);
    }
  };
  const text = drained ? "Resume" : "Drain";
  return el("div", { class: "row" }, el("button", { type: "button", class: "button small", "data-control": `${act} ${id}`, "aria-label": `${text} ${name || id}`, text, onclick: (event) => during(event.currentTarget, press) }));
}
