// Predictions as the views show them: of a blank, of a task, and the target that is explained.
import { bars } from "./charts/bars.js";
import { h } from "./ui/dom.js";
import { formatFixed, formatPercent, formatPoints, formatSigned } from "./ui/format.js";

// A piece without the sign that its tokenizer gives to pieces within or at the start of a word.
export const formatToken = (token) => token.replace(/^##/, "·").replace(/^[Ġ▁]/, "");

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
  return bars(items, { caption: "Prediction", header: "Prediction" });
}

const REQUEST_FIELDS = {
  blank: ["blank", "token"],
  next: ["token"],
  label: ["label"],
  tag: ["word", "tag"],
  answer: ["start", "end"],
  replaced: ["position"],
};

// A target as a request has it: in answers it has more fields.
export const toRequestTarget = (target) =>
  Object.fromEntries(
    ["kind", ...(REQUEST_FIELDS[target.kind] ?? [])].map((key) => [key, target[key]]),
  );

const TARGET_NAMES = {
  blank: "the blank",
  next: "the next piece",
  "next-sentence": "whether the second text follows",
  label: "the label",
  value: "the value",
  tag: "the tag",
  answer: "the answer",
  replaced: "whether the piece was replaced",
};

export function describeTarget({ kind, name }) {
  return `${TARGET_NAMES[kind] ?? kind}${kind === "value" ? "" : ` “${formatToken(name)}”`}`;
}

// The target of a regression is a value, of all other tasks a probability.
export const formatTargetValue = ({ kind }, value) =>
  kind === "value" ? formatFixed(value, 3) : formatPercent(value);

export const formatTargetChange = ({ kind }, change) =>
  kind === "value" ? formatSigned(change) : formatPoints(change);
