// The code that asks the same.

import { el, copyButton } from "./dom.js";

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const quoted = (text) => JSON.stringify(text);
// curl would take one that begins with "-" for something else.
const path = (name) => shell(name.startsWith("-") ? `./${name}` : name);

/** The three ways. `url` has the query; `file` is a name; `save` is the name of a file for replies that are no JSON. */
function texts(url, file, save) {
  const out = save ? ` -o ${path(save)}` : "";
  // Without -g, curl takes these for patterns.
  const plain = /[[\]{}\\]/.test(file) ? " -g" : "";
  return {
    curl: `curl${plain} -T ${path(file)} ${shell(url)}${out}`,
    Python: [
      "import requests",
      "",
      `with open(${quoted(file)}, "rb") as file:`,
      `    reply = requests.post(${quoted(url)}, data=file)`,
      "reply.raise_for_status()",
      ...(save ? [`open(${quoted(save)}, "wb").write(reply.content)`] : ["print(reply.json())"]),
    ].join("\n"),
    JavaScript: [
      "// Node: node this.mjs; in a page, `file` is what an <input type=\"file\"> holds.",
      'import { openAsBlob } from "node:fs";',
      "",
      `const file = await openAsBlob(${quoted(file)});`,
      `const reply = await fetch(${quoted(url)}, {`,
      '  method: "POST", body: file, headers: { "content-type": "application/octet-stream" },',
      "});",
      "if (!reply.ok) throw new Error(await reply.text());",
      save ? "console.log(await reply.text());" : "console.log(await reply.json());",
    ].join("\n"),
  };
}

let chosen = "curl";
let count = 0;

/** A list of tabs, one for each way. */
export function snippets(url, file, save) {
  const all = texts(url.href, file, save);
  const names = Object.keys(all);
  const id = `code-${(count += 1)}`;
  const code = el("code", {});
  const pane = el("pre", { id, role: "tabpanel", tabindex: "0" }, code);
  const tabs = names.map((name) =>
    el("button", { type: "button", role: "tab", id: `${id}-${name}`, "aria-controls": id, text: name, onclick: () => take(name) }),
  );
  const take = (name, focus) => {
    chosen = name;
    code.textContent = all[name];
    pane.setAttribute("aria-labelledby", `${id}-${name}`);
    for (const tab of tabs) {
      const on = tab.textContent === name;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      if (on && focus) tab.focus();
    }
  };
  const list = el("div", { role: "tablist", "aria-label": "Language" }, tabs);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    take(names[(names.indexOf(chosen) + step + names.length) % names.length], true);
  });
  take(chosen);
  return el("div", { class: "code" }, el("div", { class: "bar" }, list, copyButton(() => code.textContent, "the code")), pane);
}

/** Text that can be copied. */
export function raw(text, what) {
  const shown = text.length > 100_000 ? `${text.slice(0, 100_000)}\n… (${text.length} characters; Copy takes them all)` : text;
  const pane = el("pre", { tabindex: "0", role: "region", "aria-label": what }, el("code", { text: shown }));
  return el("div", { class: "code" }, el("div", { class: "bar" }, el("span", { class: "quiet", text: what }), copyButton(() => text, what)), pane);
}
