// Predictions as the views show them: of a blank, and of a task.
import { bars } from "./charts/bars.js";
import { formatTargetValue, getTargetNote } from "./targets.js";
import { h } from "./ui/dom.js";
import { formatToken } from "./ui/format.js";

// A number with its name, and a note below it: [name, value, note].
export const facts = (items) =>
  h(
    "dl",
    { class: "figures" },
    items.map(([name, value, note]) =>
      h(
        "div",
        {},
        h("dt", {}, name),
        h("dd", {}, value, note && h("span", { class: "note" }, note)),
      ),
    ),
  );

// The prediction for a blank: from both sides, if the model has it.
export const getBlankAnswer = (blank) => blank.both ?? blank.left;

export const nameBlank = (index, hasMany) => (hasMany ? `Blank ${index + 1}` : "The blank");

export function describeOriginal(blank) {
  const { original } = getBlankAnswer(blank);
  return original ? ` · was “${formatToken(original.token)}”` : "";
}

// The most probable pieces of a blank, and the original if it is known.
export function blankBars({ top, original }, { max = 10, caption } = {}) {
  const items = top.slice(0, max).map(({ token, id, probability }) => ({
    text: formatToken(token),
    value: probability,
    isMarked: id === original?.id,
  }));
  if (original && !items.some((item) => item.isMarked))
    items.push({
      text: formatToken(original.token),
      value: original.probability,
      isMarked: true,
      note: `(rank ${original.rank})`,
    });
  return bars(items, { caption, mark: "the original" });
}

export function describeEntropy(bits) {
  const count = 2 ** bits;
  const choices = count < 9.5 ? count.toFixed(1) : Math.round(count).toLocaleString("en");
  return (
    `Entropy ${bits.toFixed(1)} bits: ` +
    `as uncertain as a choice among ${choices} equally probable pieces.`
  );
}

// A prediction: its target, and the probabilities of all others.
export function predictionBars({ target, probability, distribution }) {
  if (!distribution.length)
    return facts([["Predicted", formatTargetValue(target, probability), target.name]]);
  const items = distribution.map((item) => ({
    text: formatToken(item.name),
    value: item.probability,
    isMarked: item.name === target.name,
  }));
  const note = getTargetNote(target);
  return h(
    "div",
    {},
    bars(items, { caption: "Prediction", header: "Prediction" }),
    note && h("p", { class: "soft small" }, note),
  );
}
