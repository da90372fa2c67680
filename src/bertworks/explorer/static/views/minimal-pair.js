// Two texts that differ slightly: what changes in the prediction, the vectors and the attention.
import { headHeatmap } from "../attention/heads.js";
import { explorerCallExamples } from "../calls.js";
import { heatmap } from "../charts/heatmap.js";
import { MINIMAL_PAIR } from "../examples.js";
import { textField } from "../fields.js";
import { facts, predictionBars } from "../predictions.js";
import { describeTarget, formatTargetChange, formatTargetValue } from "../targets.js";
import { table } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";

export function show(root, ctx) {
  const [first, second] = ctx.model.mask
    ? MINIMAL_PAIR.masked.map((text) => text.replace("[MASK]", ctx.model.mask))
    : MINIMAL_PAIR.plain;
  const results = h("div", {});
  const update = ctx.createUpdate(async (signal) => {
    const body = { text: ctx.get("text", first), other: ctx.get("other", second) };
    const answer = await ctx.request("pair", body, signal);
    replaceContent(
      results,
      alignedTexts(answer),
      predictions(ctx, answer),
      h("h2", {}, "How the difference spreads"),
      changeMaps(answer),
      alignmentTable(answer),
      explorerCallExamples(ctx, "pair", body, "minimal_pair"),
    );
    return describeAlignment(answer);
  });
  root.append(
    h(
      "div",
      { class: "form" },
      textField(ctx, update, { label: "First text", fallback: first }),
      textField(ctx, update, { key: "other", label: "Second text", fallback: second }),
    ),
    ctx.status,
    results,
  );
  update();
}

function describeAlignment({
  pieces,
  other_pieces: otherPieces,
  alignment,
  is_different: isDifferent,
}) {
  const numDifferent = isDifferent.filter(Boolean).length;
  const numSame = alignment.length - numDifferent;
  const numMissing = pieces.tokens.length - alignment.length;
  const numAdded = otherPieces.tokens.length - alignment.length;
  const conjugate = (count) => (count === 1 ? "is" : "are");
  const parts = [
    `${numSame} ${numSame === 1 ? "piece is" : "pieces are"} the same`,
    numDifferent && `${numDifferent} ${numDifferent === 1 ? "differs" : "differ"}`,
    numMissing && `${numMissing} ${conjugate(numMissing)} missing`,
    numAdded && `${numAdded} ${conjugate(numAdded)} added`,
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}

// Both texts; pieces that differ or have no counterpart are marked.
function alignedTexts({ pieces, other_pieces: otherPieces, alignment, is_different: isDifferent }) {
  const words = ({ tokens }, side) =>
    h(
      "p",
      { class: "words" },
      tokens.map(({ token }, position) => {
        const index = alignment.findIndex((pair) => pair[side] === position);
        const isSame = index >= 0 && !isDifferent[index];
        return h("span", { class: isSame ? "plain" : "plain second" }, token);
      }),
    );
  return h(
    "div",
    { class: "card", role: "group", "aria-label": "Both texts" },
    words(pieces, 0),
    words(otherPieces, 1),
    h("p", { class: "soft small" }, "Marked pieces differ or have no counterpart."),
  );
}

function predictions(ctx, { prediction: first, other_prediction: second }) {
  if (!first) return h("p", { class: "notice" }, explainNoPrediction(ctx));
  const target = describeTarget(first.target);
  if (!second)
    return h(
      "p",
      { class: "notice" },
      `The prediction for the first text, ${target}, does not exist for the second.`,
    );
  const card = (title, prediction) =>
    h("div", { class: "card" }, h("h3", {}, title), predictionBars(prediction));
  return h(
    "section",
    { class: "spaced" },
    facts([
      ["Prediction", target],
      ["In the first text", formatTargetValue(first.target, first.probability)],
      [
        "In the second",
        formatTargetValue(first.target, second.probability),
        formatTargetChange(first.target, second.probability - first.probability),
      ],
    ]),
    first.distribution.length > 0 &&
      h("div", { class: "cards" }, card("First text", first), card("Second text", second)),
  );
}

function explainNoPrediction(ctx) {
  const missing = ctx.explainMissing("predict");
  if (missing) return missing;
  return ctx.model.mask
    ? `These texts have no blank. Write ${ctx.model.mask} in both.`
    : "The model predicts nothing for single texts.";
}

function changeMaps(answer) {
  const { vectors, attention, attention_pieces: attentionChanges } = answer;
  const layers = vectors.map((_, layer) => (layer === 0 ? "Embeddings" : `Layer ${layer}`));
  const columns = namePieces(answer);
  return [
    heatmap({
      title: "Change of each vector by layer",
      name: "pair-vectors",
      rows: layers,
      columns,
      value: (row, column) => 1 - vectors[row][column],
      max: Math.max(0.05, ...vectors.flat().map((cosine) => 1 - cosine)),
      columnName: "piece",
      caption: "1 − cosine of the two vectors of a piece; 0 means no change.",
    }),
    attentionChanges &&
      heatmap({
        title: "Change of attention by layer",
        name: "pair-attention-pieces",
        rows: layers.slice(1),
        columns,
        value: (row, column) => attentionChanges[row][column],
        max: Math.max(0.05, ...attentionChanges.flat()),
        columnName: "attending piece",
        caption:
          "Total variation distance between a piece’s attention in the two texts, " +
          "mean over heads; 0 means equal, 1 means no overlap.",
      }),
    attention &&
      headHeatmap(attention, {
        title: "Change of attention by head",
        name: "pair-attention",
        caption: "The same distance, mean over pieces.",
      }),
  ];
}

// The aligned pieces; two that differ are written one after the other.
const namePieces = ({ pieces, other_pieces: otherPieces, alignment, is_different: isDifferent }) =>
  alignment.map(([position, otherPosition], index) => {
    const { token } = pieces.tokens[position];
    return isDifferent[index] ? `${token}/${otherPieces.tokens[otherPosition].token}` : token;
  });

const alignmentTable = ({
  pieces,
  other_pieces: otherPieces,
  alignment,
  is_different: isDifferent,
}) =>
  h(
    "details",
    {},
    h("summary", {}, "Aligned pieces"),
    table(
      ["First", "Second", "Same"],
      alignment.map(([position, otherPosition], index) => [
        pieces.tokens[position].token,
        otherPieces.tokens[otherPosition].token,
        isDifferent[index] ? "no" : "yes",
      ]),
      { caption: "Aligned pieces", className: "fit" },
    ),
  );
