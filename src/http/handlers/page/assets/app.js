// The frame: views, the server's health, its version.

import { byId } from "./dom.js";
import { health, json } from "./api.js";
import * as live from "./live.js";
import * as models from "./models.js";
import * as token from "./token.js";
import * as trying from "./try.js";

const VIEWS = { try: trying, live, models };
const HEALTH_MS = 5000;
let shown = null;

/** Shows the view that the address names. A view is told when it is looked at and when it is left. */
function show() {
  const asked = location.hash.slice(1);
  if (asked === "main") return;
  const name = Object.hasOwn(VIEWS, asked) ? asked : "try";
  if (name === shown) return;
  if (shown) VIEWS[shown].leave?.();
  for (const view of Object.keys(VIEWS)) byId(`view-${view}`).hidden = view !== name;
  byId("token-box").hidden = name === "try";
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = byId(`${name}-title`).textContent;
  document.title = `${title} – Ocelli`;
  const first = shown === null;
  shown = name;
  VIEWS[name].enter();
  if (!first) {
    byId("main").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

async function look() {
  if (!document.hidden) {
    const { ready, says } = await health();
    const place = byId("health");
    const [before, state] = [place.dataset.state, ready ? "good" : "bad"];
    place.dataset.state = state;
    // What became ready since is to be chosen from as well.
    if (before && (before !== state || trying.isEmpty())) trying.refresh();
    const text = place.querySelector(".says");
    // Said again only when it changed: it is read aloud.
    if (text.textContent !== says) text.textContent = says;
    place.title = says;
  }
  setTimeout(look, HEALTH_MS);
}

addEventListener("hashchange", show);
trying.begin();
token.begin();
show();
look();
json("v2").then(
  (server) => (byId("version").textContent = `Ocelli ${server.version}`),
  () => {},
);
