// The form that asks for the server's API key.
import { field } from "./ui/controls.js";
import { h, replaceContent } from "./ui/dom.js";

// Shows the form in an element; stores the key in the source, and calls `onkey()`.
export function askForKey(element, source, onkey) {
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    source.setKey(input.value.trim());
    onkey();
  };
  replaceContent(
    element,
    h("h1", {}, "API key"),
    h(
      "p",
      {},
      "This server requires a key. The page keeps it until you close this tab, " +
        "and sends it only to this server.",
    ),
    h(
      "form",
      { class: "form", onsubmit: submit },
      field("Key", input),
      h("div", {}, h("button", { class: "main" }, "Use this key")),
    ),
    source.hasKey() &&
      h("p", { class: "notice", role: "alert" }, "The server does not accept this key."),
  );
  input.focus();
}
