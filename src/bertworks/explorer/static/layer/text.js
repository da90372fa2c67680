// Sentences and formulas of the steps.
import { computeMoments } from "../math.js";
import { h } from "../ui/dom.js";
import { formatShort } from "./vectors.js";

export const paragraph = (...content) => h("p", {}, content);

export const formula = (...lines) =>
  h(
    "p",
    { class: "formula mono" },
    lines.filter(Boolean).map((line) => h("span", {}, addSubscripts(line))),
  );

// "W_Q x" with its index set low.
export const addSubscripts = (text) =>
  text
    .split(/(?<=_\w)|(?=_\w)/)
    .map((part) => (/^_\w$/.test(part) ? h("sub", {}, part.slice(1)) : part));

export function formatNorm(data, step, name) {
  const { kind, bias } = data.norms[step];
  if (kind === "rms") return `norm(${name}) = γ · ${name} / √(mean(${name}²) + ε)`;
  const fraction = `(${name} − mean(${name})) / √(variance(${name}) + ε)`;
  return `norm(${name}) = γ · ${fraction}${bias ? " + β" : ""}`;
}

// "z = W_1 m + b_1", or without a bias where the map has none.
export const formatMap = (data, map, name, index, input) =>
  `${name} = W_${index} ${input}${data.biased.includes(map) ? ` + b_${index}` : ""}`;

export function describeMoments(values) {
  const { mean, variance } = computeMoments(values);
  const deviation = formatShort(Math.sqrt(variance));
  return `Here the mean is ${formatShort(mean)} and the standard deviation ${deviation}.`;
}

// A link to the view of a whole prediction, with the same text.
export const predictionLink = () =>
  h("a", { href: location.hash.replace("#/layer", "#/steps") }, "From text to answer");
