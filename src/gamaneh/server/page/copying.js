/** Copying to the clipboard, also on pages that were not fetched over HTTPS. */

import { make } from "./tokens.js";

/** Put a text on the clipboard. */
export async function copy(text) {
  if (navigator.clipboard && isSecureContext) {
    try {
      return await navigator.clipboard.writeText(text);
    } catch {
      // refused by the browser: the older way may still be open
    }
  }
  const field = make("textarea", { value: text, className: "hidden", ariaHidden: "true" });
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  before?.focus();
}
