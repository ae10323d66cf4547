// Devices as cards: whatever the server says of them.

import { el, bytes, short, time } from "./dom.js";
import { address } from "./api.js";
import { valuesOf, sum } from "./prometheus.js";

const GOOD = { serving: "good", warming: "busy", waiting: "busy", suspect: "busy", fenced: "bad", lost: "bad" };

/** What `/v2/devices` lists; of a server that has no such list, the states that its metrics know. */
export async function devices(samples) {
  const reply = await fetch(address("v2/devices"), { cache: "no-store" });
  if (reply.ok) return (await reply.json()).devices;
  return valuesOf(samples, "ocelli_device_state", "device").map((id) => {
    const states = valuesOf(samples, "ocelli_device_state", "state");
    return { id, state: states.find((state) => sum(samples, "ocelli_device_state", { device: id, state }) === 1) };
  });
}

export function deviceCards(place, listed) {
  place.replaceChildren(...listed.map(card));
}

function card(device) {
  const { id, name, state, reason } = device;
  return el(
    "article",
    { class: "card device", "data-device": id },
    el("header", {}, el("h3", { text: name || id }), name && name !== id ? el("p", { class: "quiet", text: id }) : null),
    el("p", { class: "state", "data-state": GOOD[state] || "busy" }, el("span", { class: "dot", "aria-hidden": "true" }), state),
    reason ? el("p", { class: "reason", text: reason }) : null,
  );
}
