// Draws anew only what has changed: what is selected, open or has the focus stays so.

/** Puts cards in place of those that are there; each takes the place of that with the same `data-card`. */
export function redraw(place, cards) {
  const before = new Map([...place.children].map((card) => [card.dataset.card, card]));
  const wanted = new Set(cards.map((card) => card.dataset.card));
  for (const [key, card] of before) if (!wanted.has(key)) card.remove();
  cards.forEach((fresh, at) => {
    const old = before.get(fresh.dataset.card);
    if (old) carryOpen(old, fresh);
    const card = old ? become(old, fresh) : fresh;
    if (place.children[at] !== card) place.insertBefore(card, place.children[at] ?? null);
  });
}

/** What is there instead of `old`: that itself, where only parts of it have changed. */
function become(old, fresh) {
  if (old.isEqualNode(fresh)) return old;
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  // What a button does is not seen in it, so it is as new as its text.
  const alike = before.length > 0 && before.length === after.length && old.nodeName !== "BUTTON" && old.cloneNode().isEqualNode(fresh.cloneNode());
  if (!alike) {
    old.replaceWith(fresh);
    return fresh;
  }
  before.forEach((child, at) => become(child, after[at]));
  return old;
}

/** Lists that are open stay open. */
function carryOpen(old, fresh) {
  const lists = old.querySelectorAll("details");
  fresh.querySelectorAll("details").forEach((list, at) => {
    const same = lists[at]?.firstChild.textContent === list.firstChild.textContent;
    if (same && lists[at].open) list.open = true;
  });
}
