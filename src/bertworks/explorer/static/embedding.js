// Vectors of texts, for the views that compare texts.
import { getModelSource } from "./calls.js";
import { formatLink } from "./links.js";
import { h } from "./ui/dom.js";

// Vectors of length 1; the name of a prompt is optional.
export const embedTexts = (ctx, texts, signal, promptName = null) =>
  ctx.post("/embed", { inputs: texts, normalize: true, prompt_name: promptName }, signal);

// The request for the vector of a query, which may have a prompt or a model of its own.
export const queryRequest = (query) => ({ texts: [query], is_query: true, normalize: true });

// For a model that was not trained to compare texts: links to models that were.
export function comparisonNotice(ctx) {
  if (ctx.model.compares) return null;
  const others = ctx.models.filter((model) => model.compares);
  const link = ({ name }) =>
    h("a", { href: formatLink(ctx.view, { model: name }) }, `Show it with ${name}.`);
  return h(
    "p",
    { class: "notice" },
    `${ctx.model.name} was not trained to compare texts, so its vectors say little about meaning. `,
    others.length
      ? others.map((model) => [link(model), " "])
      : `Serve a model that was: bertworks serve ${getModelSource(ctx)} mini-sentences`,
  );
}
