// The server's routes. Addresses are relative to the page, so that it works below a path of a proxy as well.

import { keep, kept } from "./kept.js";

const TOKEN_KEY = "ocelli-admin-token";

export const address = (path) => new URL(path, document.baseURI);

/** Where a model's predictions are asked for. */
export function predictions(model, query = {}) {
  const url = address(`predictions/${encodeURIComponent(model)}`);
  for (const [key, value] of Object.entries(query)) if (value !== "") url.searchParams.set(key, value);
  return url;
}

/** A refusal of the server, as it says it. */
export class Refused extends Error {
  constructor(status, problem, id) {
    super(problem.detail || problem.error || `the server answered with status ${status}`);
    this.status = status;
    this.title = problem.title || `status ${status}`;
    this.type = problem.type;
    this.id = problem.request_id || id;
  }

  static async of(reply) {
    let problem = {};
    try {
      problem = JSON.parse(await reply.text());
    } catch {
      // Not one of ours, such as a proxy's page: the status says enough.
    }
    return new Refused(reply.status, problem, reply.headers.get("x-request-id"));
  }
}

/** Whether something is not for whoever is here: a proxy refuses it, or does not pass it on. */
export const withheld = ({ status }) => [401, 403, 404, 405].includes(status);

/** Where the manual explains a kind of error, by the `type` of a refusal. */
export const manual = (type) => (type?.startsWith("/docs/errors#") ? address(type.slice(1)).href : null);

/** A reply that is no refusal. */
export async function ask(url, options = {}) {
  let reply;
  try {
    reply = await fetch(url, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { title: "no answer", detail: "the server cannot be reached" }, null);
  }
  if (!reply.ok) throw await Refused.of(reply);
  return reply;
}

/** The answer to a file. Its bytes say what it is: of itself the browser would say what its name looks like. */
export async function post(url, file, signal) {
  try {
    return await ask(url, { method: "POST", body: file, headers: { "content-type": "application/octet-stream" }, signal });
  } catch (error) {
    const readable = error.status !== 0 || (await file.slice(0, 1).arrayBuffer().then(() => true, () => false));
    if (readable) throw error;
    const detail = "it has changed since it was chosen, it is a folder, or it may not be read: choose it again";
    throw new Refused(0, { title: "the browser cannot read the file", detail }, null);
  }
}

export const json = async (path, options) => (await ask(address(path), options)).json();

/** Every version of every model, with its state. */
export const models = async () => (await json("v2/models")).models;

export const model = (name, version) =>
  json(`v2/models/${encodeURIComponent(name)}${version ? `/versions/${encodeURIComponent(version)}` : ""}`);

export const token = () => kept(TOKEN_KEY);
export const keepToken = (text) => keep(TOKEN_KEY, text);

/** Asks for a change, with the token if there is one. */
export function control(path) {
  const headers = token() ? { authorization: `Bearer ${token()}` } : {};
  return ask(address(path), { method: "POST", headers });
}

/** Ready or not, and why not. */
export async function health() {
  try {
    const reply = await fetch(address("v2/health/ready"), { cache: "no-store" });
    if (reply.ok) return { ready: true, says: "Ready" };
    return { ready: false, says: (await Refused.of(reply)).message };
  } catch {
    return { ready: false, says: "The server cannot be reached" };
  }
}
