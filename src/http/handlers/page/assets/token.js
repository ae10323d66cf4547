// The field for the admin token: below whatever may be changed with one.

import { byId } from "./dom.js";
import { keepToken, token } from "./api.js";

/** Once, whatever is looked at. */
export function begin() {
  byId("token").value = token();
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keepToken(byId("token").value.trim());
    byId("token-told").textContent = token() ? "The token is kept until this tab is closed." : "There is no token now.";
  });
}

/** Opens the field if a change was refused to whoever asked for it, for whom it may be a matter of the token. */
export function offer({ status }) {
  if (status === 403) byId("token-box").open = true;
}
