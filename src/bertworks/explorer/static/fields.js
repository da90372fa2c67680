// Fields whose values are in the link of a view.
import { selectExample } from "./examples.js";
import { field, textArea, textInput } from "./ui/controls.js";
import { h } from "./ui/dom.js";
import { debounce } from "./ui/timing.js";

const DELAY = 300; // milliseconds from the last letter to the request

// A field of one line, or of more.
export function inputField(ctx, onchange, { key, label, fallback = "", rows = 1 }) {
  const change = debounce((value) => {
    ctx.set({ [key]: value });
    onchange();
  }, DELAY);
  const value = ctx.get(key, fallback);
  return field(label, rows === 1 ? textInput(value, change) : textArea(value, change, { rows }));
}

// The text of a view, or its second text. In a file it cannot be changed.
export function textField(ctx, onchange, options = {}) {
  const { key = "text", label = "Text", rows = 2 } = options;
  const { fallback = selectExample(ctx.model)[key] ?? "" } = options;
  if (!ctx.source.data) return inputField(ctx, onchange, { key, label, fallback, rows });
  return h(
    "div",
    { class: "field" },
    h("span", { class: "soft small" }, label),
    h("p", { class: "passage" }, readText(ctx, key)),
  );
}

// The text of the link, or of the file.
export function readText(ctx, key = "text") {
  if (ctx.source.data) return ctx.source.data[key] ?? "";
  return ctx.get(key, selectExample(ctx.model)[key] ?? "");
}
