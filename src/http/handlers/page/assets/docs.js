// Shows openapi.yaml in Swagger UI. Requests that are tried go to this server, wherever the description says that it is.

const here = new URL(".", document.baseURI).href.replace(/\/$/, "");

globalThis.SwaggerUIBundle({
  url: new URL("openapi.yaml", document.baseURI).href,
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  // It would ask a service elsewhere.
  validatorUrl: null,
  requestInterceptor: (request) => {
    const { pathname, search } = new URL(request.url, document.baseURI);
    request.url = pathname.endsWith("/openapi.yaml") ? request.url : `${here}${pathname}${search}`;
    return request;
  },
});

// The viewer has colours for the night, but does not look at the clock.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

// What the viewer leaves out for those who have it read aloud, or have no mouse: names of fields, the order of headings, a way to
// scroll. It draws anew whenever something opens.
const LEVELS = { ".opblock-tag": 2, ".models h4": 2, ".opblock h4": 3, ".opblock h5": 4 };
const mend = () => {
  for (const row of document.querySelectorAll("tr[data-param-name]")) {
    for (const field of row.querySelectorAll("select, textarea, input")) field.setAttribute("aria-label", row.dataset.paramName);
  }
  for (const field of document.querySelectorAll(".body-param__text, .opblock-section-request-body textarea")) field.setAttribute("aria-label", "Request body");
  for (const table of document.querySelectorAll("table.responses-table")) {
    const of = table.closest(".opblock");
    table.setAttribute("aria-label", `Responses of ${of?.querySelector(".opblock-summary-method")?.textContent} ${of?.querySelector(".opblock-summary-path")?.textContent}`);
  }
  for (const text of document.querySelectorAll("pre.microlight")) text.tabIndex = 0;
  // A link within a button; the button puts the same into the address.
  for (const link of document.querySelectorAll(".opblock-summary-control a[href]")) link.removeAttribute("href");
  for (const [which, says] of Object.entries({ ".information-container": "About", ".models": "Schemas" })) {
    for (const part of document.querySelectorAll(`#docs ${which}`)) {
      part.setAttribute("role", "region");
      part.setAttribute("aria-label", says);
    }
  }
  for (const [which, level] of Object.entries(LEVELS)) {
    for (const heading of document.querySelectorAll(`#docs ${which}`)) heading.setAttribute("aria-level", level);
  }
};
let due = 0;
new MutationObserver(() => {
  cancelAnimationFrame(due);
  due = requestAnimationFrame(mend);
}).observe(document.getElementById("docs"), { childList: true, subtree: true });
