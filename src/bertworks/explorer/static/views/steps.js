// One prediction, from the text to the answer.
import { explorerCallExamples } from "../calls.js";
import { bars } from "../charts/bars.js";
import { lineChart } from "../charts/line-chart.js";
import { saveButtons } from "../export.js";
import { predictionBars } from "../predictions.js";
import { describeTarget, formatTargetValue } from "../targets.js";
import { explainNoPrediction, textForm } from "../text-form.js";
import { addArrowKeys, button, table } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatFixed, formatToken } from "../ui/format.js";
import { shape } from "../ui/shape.js";

export function show(root, ctx) {
  const results = h("div", {});
  const update = ctx.createUpdate(async (signal) => {
    const input = await form.read(signal);
    const answer = await ctx.request("steps", input.body, signal);
    replaceContent(
      results,
      stepList(ctx, answer, explainNoPrediction(ctx, input)),
      ctx.source.data ? null : explorerCallExamples(ctx, "steps", input.body),
    );
    return answer.prediction ? `Predicted: ${describeTarget(answer.prediction.target)}.` : "";
  });
  const form = textForm(ctx, update, { hasPair: true, startsMasked: true });
  root.append(form.element, ctx.status, results);
  update();
}

function stepList(ctx, answer, reason) {
  const { pieces, states, head, prediction, hidden_size: hiddenSize } = answer;
  const count = pieces.tokens.length;
  const { pieceButtons, embeddings, layers } = pieceViews(ctx, answer);
  const steps = [
    {
      title: ["The text becomes pieces ", shape(count)],
      body: [h("p", { class: "soft" }, "Choose a piece to follow its vector below."), pieceButtons],
    },
    {
      title: ["Embeddings are looked up and added ", shape(count, hiddenSize)],
      body: embeddings,
    },
    {
      title: [
        `${states.length - 1} layers transform them, each with attention between all pieces `,
        shape(count, hiddenSize),
      ],
      body: [ctx.explainMissing("layer") === null && layerLinks(ctx, states.length - 1), layers],
    },
    head && {
      title: [
        head.is_calibrated
          ? "The head computes logits, and the calibration scales them "
          : "The head computes logits ",
        shape(...head.shape),
      ],
      body: logitTable(head),
    },
    head?.probabilities.length && {
      title: [
        head.activation === "sigmoid"
          ? "A sigmoid turns each into a probability "
          : "Softmax turns them into probabilities ",
        shape(...head.shape),
      ],
      body: probabilityBars(head.probabilities),
    },
    prediction && {
      title:
        `The answer: ${describeTarget(prediction.target)}, ` +
        formatTargetValue(prediction.target, prediction.probability),
      body: head?.probabilities.length ? null : predictionBars(prediction),
    },
  ].filter(Boolean);
  return h(
    "ol",
    { class: "steps" },
    steps.map(({ title, body }, index) =>
      h("li", { class: "card" }, h("h2", {}, `${index + 1}. `, title), body),
    ),
    !head && h("li", { class: "notice" }, reason ?? "The model predicts nothing for this text."),
  );
}

// Buttons that choose a piece, and what is shown of it: embeddings and states after the layers.
function pieceViews(ctx, answer) {
  const { tokens } = answer.pieces;
  const [embeddings, layers] = [h("div", {}), h("div", {})];
  const firstPosition = Math.min(
    ctx.getNumber("token", answer.prediction?.target.position ?? 1),
    tokens.length - 1,
  );
  const drawPiece = (position) => {
    for (const [index, element] of [...pieceButtons.children].entries())
      element.setAttribute("aria-pressed", index === position);
    replaceContent(embeddings, embeddingTable(answer, position));
    replaceContent(layers, stateTable(answer, position), stateCharts(answer, position));
  };
  const choose = (position) => {
    ctx.set({ token: position });
    drawPiece(position);
  };
  const pieceButtons = h(
    "div",
    { class: "words", role: "group", "aria-label": "Pieces; press one to follow it" },
    tokens.map(({ token }, index) => button(token, () => choose(index), { class: "mono" })),
  );
  drawPiece(firstPosition);
  return { pieceButtons: addArrowKeys(pieceButtons), embeddings, layers };
}

const quoteToken = ({ pieces }, position) => `“${pieces.tokens[position].token}”`;

function embeddingTable(answer, position) {
  const { id, position: place, segment } = answer.pieces.tokens[position];
  const tableRows = { word: id, position: place + answer.position_offset, segment };
  const labels = { sum: "= sum", norm: "→ normalised", projection: "→ projected" };
  return vectorTable(
    `The embeddings of ${quoteToken(answer, position)}`,
    answer.embeddings.map(({ name, rows, table: size }, index) => [
      labels[name] ?? `${index ? "+ " : ""}${name}`,
      rows[position],
      size ? `row ${tableRows[name] ?? ""} of [${size.join(", ")}]` : null,
    ]),
    answer.hidden_size,
  );
}

function stateTable(answer, position) {
  const { pieces, states } = answer;
  const numbers = states[0].rows[0].map((_, index) => `number ${index}`);
  const csv = () => [
    ["layer", "piece", "norm", ...numbers],
    ...states.flatMap(({ layer, rows, norms }) =>
      rows.map((row, index) => [layer, pieces.tokens[index].token, norms[index], ...row]),
    ),
  ];
  return [
    vectorTable(
      `The states of ${quoteToken(answer, position)}`,
      states.map(({ layer, rows }) => [
        layer === 0 ? "Embeddings" : `Layer ${layer}`,
        rows[position],
      ]),
      answer.hidden_size,
    ),
    saveButtons("states", { csv }),
  ];
}

function stateCharts(answer, position) {
  const { states } = answer;
  const name = quoteToken(answer, position);
  return h(
    "div",
    { class: "cards spaced" },
    lineChart({
      title: `Length of the vector of ${name}`,
      name: "norms",
      x: states.map(({ layer }) => String(layer)),
      xName: "after layer",
      low: 0,
      series: [{ name: "norm", values: states.map(({ norms }) => norms[position]) }],
    }),
    lineChart({
      title: `Similarity of ${name} to its vector one layer before`,
      name: "cosines",
      x: states.slice(1).map(({ layer }) => String(layer)),
      xName: "after layer",
      high: 1,
      caption: "Cosine with the vector before the layer: 1 means the same direction.",
      series: [{ name: "cosine", values: states.slice(1).map(({ cosine }) => cosine[position]) }],
    }),
  );
}

// Rows are [name, first numbers of a vector of `size` numbers, note].
function vectorTable(caption, rows, size) {
  return h(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      { class: "vectors" },
      h("caption", { class: "visually-hidden" }, caption),
      h(
        "tbody",
        {},
        rows.map(([name, values, note]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, name, note && h("span", { class: "soft small" }, ` ${note}`)),
            vectorCells(values, size),
          ),
        ),
      ),
    ),
  );
}

// Numbers, each on a background as strong as it is large.
function vectorCells(values, size) {
  const maxValue = Math.max(...values.map(Math.abs), 1e-9);
  const cell = (value) => {
    const style = {
      "--share": `${Math.round((45 * Math.abs(value)) / maxValue)}%`,
      "--tone": value < 0 ? "var(--second)" : "var(--first)",
    };
    return h("td", { class: "cell number", style }, formatFixed(value));
  };
  const rest = size > values.length ? `… ${size - values.length} more` : "";
  return [values.map(cell), h("td", { class: "soft" }, rest)];
}

// Links to each layer in the view that shows its steps.
function layerLinks(ctx, count) {
  const numLayers = ctx.source.data?.layers.length ?? count;
  const link = (layer) => {
    const values = new URLSearchParams(location.hash.split("?")[1]);
    values.set("layer", layer);
    return h("a", { href: `#/layer?${values}` }, `layer ${layer + 1}`);
  };
  return h(
    "p",
    {},
    "How attention works, step by step: ",
    Array.from({ length: numLayers }, (_, layer) => [layer ? ", " : "", link(layer)]),
    ".",
  );
}

const logitTable = ({ shape: size, logits }) => [
  h("p", { class: "soft" }, `${size.at(-1).toLocaleString("en")} numbers; the largest:`),
  table(
    ["", { text: "Logit", number: true }],
    logits.map(({ name, logit }) => [formatToken(name), formatFixed(logit, 3)]),
    { caption: "Logits", className: "fit" },
  ),
];

const probabilityBars = (probabilities) =>
  bars(
    probabilities.map(({ name, probability }) => ({ text: formatToken(name), value: probability })),
    { caption: "Probabilities" },
  );
