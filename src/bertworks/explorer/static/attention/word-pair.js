// How much each head attends from one word to another.
import { field, select } from "../ui/controls.js";
import { h } from "../ui/dom.js";
import { formatPercent } from "../ui/format.js";
import { headHeatmap } from "./heads.js";

// `onchange` is called when other words are chosen, `onpick(layer, head)` when a head is.
export function wordPair(ctx, weights, options, { onchange, onpick }) {
  const { names } = weights.getMatrix(0, 0, options);
  const words = [["", "any word"], ...names.map((name, index) => [String(index), name])];
  const wordSelect = (key) =>
    select(words, ctx.get(key), (index) => {
      ctx.set({ [key]: index || null });
      onchange();
    });
  const [from, to] = ["from", "to"].map((key) => ctx.getNumber(key, names.length));
  const isChosen = from < names.length && to < names.length;
  return [
    h(
      "div",
      { class: "row end" },
      field("From", wordSelect("from")),
      field("To", wordSelect("to")),
    ),
    isChosen
      ? headHeatmap(getWeights(weights, options, from, to), {
          title: `From “${names[from]}” to “${names[to]}” in every head`,
          name: "attention-a-to-b",
          format: formatPercent,
          max: 1,
          onpick,
        })
      : h(
          "p",
          { class: "soft small" },
          "Choose two words to see how much each head attends from the first to the second.",
        ),
  ];
}

const getWeights = ({ numLayers, numHeads, getMatrix }, options, from, to) =>
  Array.from({ length: numLayers }, (_, layer) =>
    Array.from({ length: numHeads }, (__, head) =>
      getMatrix(layer, head, { ...options, mean: false }).value(from, to),
    ),
  );
