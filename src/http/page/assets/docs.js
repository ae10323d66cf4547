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
