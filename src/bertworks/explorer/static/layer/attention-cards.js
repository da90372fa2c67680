// The steps of attention, each as a card: { title, name, size, body }.
import { bars } from "../charts/bars.js";
import { button, table } from "../ui/controls.js";
import { h } from "../ui/dom.js";
import { formatCount, formatPercent } from "../ui/format.js";
import { canAttend, sliceHead } from "./steps.js";
import {
  addSubscripts,
  describeMoments,
  formatMap,
  formatNorm,
  formula,
  paragraph,
  predictionLink,
} from "./text.js";
import { sumAndNorm } from "./vector-sum.js";
import { findLargest, formatShort, shareBar, strip, vectorStrips } from "./vectors.js";
import { weightSum } from "./weight-sum.js";

const MAX_PIECES = 8; // that are shown one by one where the others are added up
const MIN_PIECES = 3;
const MIN_WEIGHT = 0.001;

export const attentionCards = (layer) =>
  [
    inputCard,
    projectionCard,
    scoreCard,
    softmaxCard,
    valueCard,
    headCard,
    outputCard,
    residualCard,
  ].map((card) => card(layer));

function inputCard({ data, steps, piece }) {
  const origin =
    data.layer === 0
      ? [`The embedding of ${piece}: see `, predictionLink(), "."]
      : `What layer ${data.layer} computed for ${piece}.`;
  return {
    title: "The input",
    name: "Input",
    size: [data.hidden_size],
    body: [
      paragraph(
        origin,
        " A strip shows all numbers of a vector: blue ones are positive, orange ones " +
          "negative, strong ones large. Point at it, or use the arrow keys, to read one.",
      ),
      vectorStrips([["x", steps.input]]),
      data.norm_first ? inputNorm(data, steps) : null,
    ],
  };
}

function inputNorm(data, steps) {
  if (!("attention_input" in data.norms)) return paragraph("This layer has no norm here: n = x.");
  return [
    formula(`n = ${formatNorm(data, "attention_input", "x")}`),
    paragraph(describeMoments(steps.input)),
    vectorStrips([["n", steps.attention_input]]),
  ];
}

function projectionCard({ ctx, data, steps, head, piece, token }) {
  const inputName = data.norm_first ? "n" : "x";
  const maps = ["query", "key", "value"].map((matrix) => ({
    name: `the ${matrix}`,
    matrix,
    start: head * data.head_size,
    input: steps.attention_input ?? steps.input,
    inputName,
    outputs: steps[matrix],
  }));
  const formulas = maps.map(({ matrix }) =>
    formatMap(data, matrix, matrix[0], matrix[0].toUpperCase(), inputName),
  );
  return {
    title: "Query, key and value",
    name: "Query, key, value",
    size: [data.head_size],
    body: [
      paragraph(
        `Three trained maps turn ${inputName} into three vectors of head ${head + 1}. ` +
          `The query says what ${piece} looks for, the key what it offers to others, ` +
          "the value what it passes on.",
      ),
      formula(...formulas),
      vectorStrips([
        ["query q", steps.query],
        ["key k", steps.key],
        ["value v", steps.value],
      ]),
      steps.rotated_query && rotation(data, steps, token),
      weightSum(ctx, data.layer, maps),
    ],
  };
}

const rotation = (data, steps, token) => [
  paragraph(
    "Rotary positions turn query and key: each pair of numbers " +
      (data.rope_neighbours ? "2r and 2r + 1" : "r and r + d/2") +
      ", counted from 0, by an angle that grows with the position p. The scores then depend on " +
      "distances.",
  ),
  formula(
    "angle = p · θ^(−2r/d)",
    `p = ${token}`,
    `θ = ${data.rope_theta.toLocaleString("en")}`,
    `d = ${data.head_size}`,
  ),
  vectorStrips([
    ["q, rotated", steps.rotated_query],
    ["k, rotated", steps.rotated_key],
  ]),
];

function scoreCard({ data, steps, pieces, token, piece }) {
  const root = Math.sqrt(data.score_divisor);
  const rootText = `√${data.score_divisor}${Number.isInteger(root) ? ` = ${root}` : ""}`;
  return {
    title: "Scores: the query times every key",
    name: "Scores",
    size: [pieces.length],
    body: [
      paragraph(
        `The query of ${piece} is multiplied by the key of every piece, number by number (the ` +
          `strips), and added up: q · k. Divided by ${rootText}, the scores do not grow with ` +
          "the size of the vectors.",
        steps.score_bias &&
          " A term b, which depends on how far apart the two pieces are, is added.",
      ),
      formula(
        `score(j) = q · k_j / √${data.score_divisor}${steps.score_bias ? " + b_j" : ""}`,
        steps.rotated_query ? "q and k rotated" : "",
      ),
      table(
        [
          "Piece j",
          { text: addSubscripts("q × k_j") },
          { text: addSubscripts("q · k_j"), number: true },
          ...(steps.score_bias ? [{ text: addSubscripts("b_j"), number: true }] : []),
          { text: "score", number: true },
        ],
        scoreRows(data, steps, pieces, token),
        { caption: "Scores", className: "scores" },
      ),
    ],
  };
}

function scoreRows(data, steps, pieces, token) {
  const query = steps.rotated_query ?? steps.query;
  const products = steps.keys.map((key) => query.map((value, index) => value * key[index]));
  const scale = findLargest(...products);
  const scoreCells = (name, target) => [
    strip(products[target], scale, `q × k of ${name}`),
    formatShort(products[target].reduce((sum, value) => sum + value, 0)),
    ...(steps.score_bias ? [formatShort(steps.score_bias[target])] : []),
    formatShort(steps.scores[target]),
  ];
  return pieces.map((name, target) => [
    h("span", { class: "mono" }, name),
    ...(canAttend(data, token, target)
      ? scoreCells(name, target)
      : [h("span", { class: "soft" }, "not seen"), "", ...(steps.score_bias ? [""] : []), "−∞"]),
  ]);
}

// The pieces with the largest weights, and the others, which are shown together.
function splitByWeight(weights) {
  const order = weights.map((_, index) => index).sort((a, b) => weights[b] - weights[a]);
  const numShown = order.filter(
    (index, rank) => rank < MAX_PIECES && (rank < MIN_PIECES || weights[index] >= MIN_WEIGHT),
  ).length;
  const others = order.slice(numShown);
  return {
    largest: order.slice(0, numShown),
    others,
    othersName: `${formatCount(others.length, "other")}, together`,
    othersWeight: others.reduce((sum, index) => sum + weights[index], 0),
  };
}

function softmaxCard({ steps, pieces, piece }) {
  const { largest, others, othersName, othersWeight } = splitByWeight(steps.weights);
  const items = largest.map((index) => ({ text: pieces[index], value: steps.weights[index] }));
  if (others.length) items.push({ text: othersName, value: othersWeight });
  return {
    title: "Softmax: scores become weights",
    name: "Softmax",
    size: [pieces.length],
    body: [
      paragraph(
        `The softmax makes positive numbers of the scores that add up to 100 %: how ${piece} ` +
          "divides its attention.",
      ),
      formula("weight(j) = exp(score(j)) / Σ exp(score)"),
      bars(items, { caption: "Weights", header: "Piece", measure: "Weight" }),
    ],
  };
}

function valueCard({ data, steps, pieces, head, piece }) {
  const rows = valueRows(data, steps, pieces, head);
  const scale = findLargest(...rows.map(([, , values]) => values));
  return {
    title: "The weighted values",
    name: "Values",
    size: [data.head_size],
    body: [
      paragraph(
        "The values of all pieces are multiplied by the weights and added. The sum is what head " +
          `${head + 1} tells ${piece} about the text.`,
      ),
      formula("c = Σ weight(j) · v_j"),
      table(
        ["Piece j", "Weight", { text: addSubscripts("Weight × v_j") }],
        rows.map(([name, weight, values]) => [name, weight, strip(values, scale)]),
        { caption: "Weighted values", className: "scores" },
      ),
    ],
  };
}

// [name, weight, weighted values] of the pieces with the largest weights, the others, and the sum.
function valueRows(data, steps, pieces, head) {
  const weighted = steps.values.map((value, index) =>
    value.map((number) => number * steps.weights[index]),
  );
  const { largest, others, othersName, othersWeight } = splitByWeight(steps.weights);
  const sum = sliceHead(Float32Array.from(steps.context), head, data.head_size);
  const rows = largest.map((index) => [
    h("span", { class: "mono" }, pieces[index]),
    shareBar(steps.weights[index]),
    weighted[index],
  ]);
  if (others.length) {
    const values = sum.map((_, number) =>
      others.reduce((total, index) => total + weighted[index][number], 0),
    );
    rows.push([othersName, shareBar(othersWeight), values]);
  }
  return [...rows, [h("strong", {}, "c, their sum"), "", sum]];
}

function headCard({ data, steps, pieces, head, set, piece }) {
  const context = Float32Array.from(steps.context);
  const scale = findLargest(context);
  const rows = steps.all_weights.map((weights, index) => {
    const strongest = weights.indexOf(Math.max(...weights));
    return h(
      "div",
      { class: `vector-row${index === head ? " chosen" : ""}` },
      button(`Head ${index + 1}`, () => set({ head: index }), {
        class: "small name",
        "aria-pressed": index === head,
        "data-key": `head-${index}`,
      }),
      strip(sliceHead(context, index, data.head_size), scale, `Head ${index + 1}`),
      h(
        "span",
        { class: "first" },
        "mostly ",
        h("span", { class: "mono" }, pieces[strongest]),
        ` ${formatPercent(weights[strongest])}`,
      ),
    );
  });
  return {
    title: "All heads, joined",
    name: "All heads",
    size: [data.hidden_size],
    body: [
      paragraph(
        data.heads > 1 ? `${data.heads} heads do this, each with maps of its own. ` : "",
        `The results for ${piece} are joined: ${data.heads} × ${data.head_size} = ` +
          `${data.hidden_size} numbers. Press a head to follow it.`,
      ),
      formula("c = [c of head 1, …, c of head h]"),
      h("div", { class: "vector-strips" }, rows),
    ],
  };
}

function outputCard({ ctx, data, steps }) {
  return {
    title: "The output map",
    name: "Output map",
    size: [data.hidden_size],
    body: [
      paragraph("One more trained map mixes the heads."),
      formula(formatMap(data, "attention_output", "o", "O", "c")),
      vectorStrips([["c", Float32Array.from(steps.context)]]),
      vectorStrips([["o", steps.attention_output]]),
      weightSum(ctx, data.layer, [
        {
          name: "o",
          matrix: "attention_output",
          start: 0,
          input: steps.context,
          inputName: "c",
          outputs: steps.attention_output,
        },
      ]),
    ],
  };
}

function residualCard({ data, steps }) {
  return {
    title: "Add the input, normalise",
    name: "Add and norm",
    size: [data.hidden_size],
    body: [
      paragraph(
        "The result is added to the input (the residual connection), so a layer changes its " +
          "input rather than replacing it. The norm brings all vectors to a common size, then " +
          "scales each number by trained weights. ",
        data.norm_first && "The sum s itself goes on to step 11.",
      ),
      ...sumAndNorm(
        data,
        [
          ["x", steps.input],
          ["o", steps.attention_output],
          ["s", steps.attention_sum],
        ],
        "feed_forward_input",
        ["m", steps.feed_forward_input],
      ),
    ],
  };
}
