// The steps of the feed-forward part, each as a card: { title, name, size, body }.
import { saveButtons } from "../export.js";
import { button, table } from "../ui/controls.js";
import { h } from "../ui/dom.js";
import { formatMap, formula, paragraph, predictionLink } from "./text.js";
import { sumAndNorm } from "./vector-sum.js";
import { formatShort, vectorStrips } from "./vectors.js";
import { weightSum } from "./weight-sum.js";

const MAX_ROWS = 8; // of the table of the largest activations
const ACTIVE = 0.1; // an activation beyond this is counted as large

const ACTIVATION_FORMULAS = {
  gelu: "gelu(z) = z · Φ(z)",
  relu: "relu(z) = max(0, z)",
  tanh: "tanh(z) = (e^z − e^−z) / (e^z + e^−z)",
  silu: "silu(z) = z / (1 + e^−z)",
  gelu_new: "gelu(z) = z/2 · (1 + tanh(√(2/π) · (z + 0.0447 z³)))",
};

export function feedForwardCards(layer) {
  const hasConvolution = "convolution" in layer.data.numbers;
  const resultCards = hasConvolution ? [sumCard, convolutionCard] : [resultCard];
  return [expansionCard, contractionCard, ...resultCards].map((card) => card(layer));
}

function expansionCard({ ctx, data, steps }) {
  const { activated, intermediate, gate, feed_forward_input: input } = steps;
  const map = (name, matrix, outputs) => ({
    name,
    matrix,
    start: 0,
    input,
    inputName: "m",
    outputs,
  });
  const numActive = activated.filter((value) => Math.abs(value) > ACTIVE).length;
  const activation = ACTIVATION_FORMULAS[data.activation];
  return {
    title: "Feed-forward: a wider vector, an activation",
    name: "Feed-forward",
    size: [data.intermediate_size],
    body: [
      paragraph(
        `A map to ${data.intermediate_size.toLocaleString("en")} numbers, each of which detects ` +
          "something in m. The activation lets large ones pass and holds others back: " +
          `${numActive.toLocaleString("en")} are beyond ±${ACTIVE} here. `,
        gate && "This model is gated: a second map g multiplies the result (GLU).",
      ),
      formula(
        formatMap(data, "intermediate", "z", "1", "m"),
        gate ? formatMap(data, "gate", "g", "g", "m") : "",
        `a = ${activation.split("(")[0]}(z)${gate ? " · g" : ""}`,
        activation,
      ),
      vectorStrips([["z", intermediate], ...(gate ? [["g", gate]] : [])]),
      vectorStrips([["a", activated]]),
      h("h3", { class: "spaced" }, "The largest"),
      activationTable(steps),
      weightSum(ctx, data.layer, [
        map("z", "intermediate", intermediate),
        ...(gate ? [map("the gate g", "gate", gate)] : []),
      ]),
    ],
  };
}

function activationTable({ activated, intermediate, gate }) {
  const columns = [["z", intermediate], ...(gate ? [["gate g", gate]] : []), ["a", activated]];
  const largest = activated
    .map((_, index) => index)
    .sort((first, second) => Math.abs(activated[second]) - Math.abs(activated[first]))
    .slice(0, MAX_ROWS);
  return table(
    ["Number", ...columns.map(([text]) => ({ text, number: true }))],
    largest.map((index) => [
      `number ${index + 1}`,
      ...columns.map(([, values]) => formatShort(values[index])),
    ]),
    { caption: "The largest activations", className: "fit" },
  );
}

function contractionCard({ ctx, data, steps }) {
  return {
    title: "Feed-forward: back to the layer’s width",
    name: "Second map",
    size: [data.hidden_size],
    body: [
      paragraph(`A last trained map brings the vector back to ${data.hidden_size} numbers.`),
      formula(formatMap(data, "feed_forward_output", "f", "2", "a")),
      vectorStrips([["a", steps.activated]]),
      vectorStrips([["f", steps.feed_forward_output]]),
      weightSum(ctx, data.layer, [
        {
          name: "f",
          matrix: "feed_forward_output",
          start: 0,
          input: steps.activated,
          inputName: "a",
          outputs: steps.feed_forward_output,
        },
      ]),
    ],
  };
}

// The vectors of the feed-forward part's sum, with their names.
const feedForwardSum = ({ data, steps }) => [
  data.norm_first ? ["s", steps.attention_sum] : ["m", steps.feed_forward_input],
  ["f", steps.feed_forward_output],
  ["t", steps.feed_forward_sum],
];

function resultCard(layer) {
  const { data, steps } = layer;
  const hasNorm = "output" in data.norms;
  return {
    title: hasNorm ? "Add, normalise: the layer’s output" : "Add: the layer’s output",
    name: "Output",
    size: [data.hidden_size],
    body: [
      ...sumAndNorm(data, feedForwardSum(layer), "output", ["y", steps.output]),
      ...outputNotes(layer),
    ],
  };
}

// The feed-forward part's result, where a convolution follows.
function sumCard(layer) {
  const { data, steps } = layer;
  return {
    title: "Add, normalise",
    name: "Add",
    size: [data.hidden_size],
    body: sumAndNorm(data, feedForwardSum(layer), "convolution_input", [
      "u",
      steps.convolution_input,
    ]),
  };
}

function convolutionCard(layer) {
  const { data, steps } = layer;
  const parts = [
    ["u", steps.convolution_input],
    ["c", steps.convolution],
    ["v", steps.convolution_sum],
  ];
  return {
    title: "A convolution in parallel with the layer: the layer’s output",
    name: "Convolution",
    size: [data.hidden_size],
    body: [
      paragraph(
        "The first layer of this model has a convolution in parallel with it: c is a trained map " +
          "of the layer’s inputs of this piece and of its neighbours, with an activation.",
      ),
      ...sumAndNorm(data, parts, "output", ["y", steps.output]),
      ...outputNotes(layer),
    ],
  };
}

const outputNotes = (layer) => [
  nextLayer(layer),
  h(
    "p",
    { class: "soft small" },
    "Computed again from the numbers above, y differs from the network’s own by at most " +
      `${layer.steps.difference.toExponential(0)}. Dropout is off outside training.`,
  ),
  saveButtons("layer", { csv: () => formatSteps(layer.steps, layer.token, layer.head) }),
];

// What the output is used for: by the next layer, or by a head.
function nextLayer({ ctx, data, piece, set }) {
  if (data.layer === data.layers - 1)
    return paragraph(
      "y is the final vector of ",
      piece,
      ". A head turns such vectors into logits: ",
      predictionLink(),
      ".",
    );
  const next = data.layer + 1;
  const hasNext = next < (ctx.source.data?.layers.length ?? data.layers);
  return paragraph(
    `y is the input of layer ${next + 1}. `,
    hasNext &&
      button(`Go on to layer ${next + 1}`, () => set({ layer: next }), { "data-key": "next" }),
  );
}

const formatSteps = (steps, token, head) => [
  ["step", "piece", "head", "numbers"],
  ...Object.entries(steps)
    .filter(([, values]) => typeof values[0] === "number")
    .map(([step, values]) => [step, token, head, ...values]),
];
