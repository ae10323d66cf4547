// What is kept until the tab is closed; where the browser denies that, until the page is left.

const here = new Map();

/** Keeps a text; an empty one is forgotten. */
export function keep(key, text) {
  here.set(key, text);
  try {
    if (text) sessionStorage.setItem(key, text);
    else sessionStorage.removeItem(key);
  } catch {
    // Denied, as where a browser blocks all cookies.
  }
}

/** What was kept, or an empty text. */
export function kept(key) {
  if (here.has(key)) return here.get(key);
  try {
    return sessionStorage.getItem(key) || "";
  } catch {
    return "";
  }
}
