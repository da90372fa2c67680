import { explorerCall } from "../calls.js";
import { clear, h, table } from "../dom.js";
import { MINIMAL_PAIR } from "../examples.js";
import { amount, change, facts, predicted, textField, watched } from "../parts.js";
import { heat } from "../pictures.js";
import { headHeat } from "./attention-maps.js";

export default {
  id: "pair",
  title: "Minimal pair",
  group: "What a prediction depends on",
  uses: "pair",
  about:
    "Two texts that differ slightly, aligned: what changes in the prediction, the vectors " +
    "and the attention.",
  show,
};

function show(root, ctx) {
  const [one, two] = ctx.model.mask
    ? MINIMAL_PAIR.masked.map((text) => text.replace("[MASK]", ctx.model.mask))
    : MINIMAL_PAIR.plain;
  const results = h("div", {});
  const update = ctx.updating(async (signal) => {
    const body = { text: ctx.get("text", one), other: ctx.get("other", two) };
    const answer = await ctx.ask("pair", body, signal);
    clear(results, draw(ctx, answer), explorerCall(ctx, "pair", body, "minimal_pair"));
    return said(answer);
  });
  root.append(
    h(
      "div",
      { class: "form" },
      textField(ctx, update, { label: "First text", fallback: one }),
      textField(ctx, update, { key: "other", label: "Second text", fallback: two }),
    ),
    ctx.status,
    results,
  );
  update();
}

function said({ pieces, other_pieces: other, aligned, changed }) {
  const differ = changed.filter(Boolean).length;
  const [same, missing, added] = [
    aligned.length - differ,
    pieces.tokens.length - aligned.length,
    other.tokens.length - aligned.length,
  ];
  const is = (count) => `${count} ${count === 1 ? "is" : "are"}`;
  return `${[
    `${same} ${same === 1 ? "piece is" : "pieces are"} the same`,
    differ && `${differ} ${differ === 1 ? "differs" : "differ"}`,
    missing && `${is(missing)} missing`,
    added && `${is(added)} added`,
  ]
    .filter(Boolean)
    .join(", ")}.`;
}

function draw(ctx, answer) {
  const names = answer.aligned.map(([i, j], at) =>
    answer.changed[at]
      ? `${answer.pieces.tokens[i].token}/${answer.other_pieces.tokens[j].token}`
      : answer.pieces.tokens[i].token,
  );
  const strip = (pieces, side) =>
    h(
      "p",
      { class: "words" },
      pieces.tokens.map((token, at) => {
        const place = answer.aligned.findIndex((one) => one[side] === at);
        return h(
          "span",
          { class: place < 0 || answer.changed[place] ? "plain second" : "plain" },
          token.token,
        );
      }),
    );
  const first = answer.prediction;
  const second = answer.other_prediction;
  const states = answer.vectors.map((_, at) => (at === 0 ? "Embeddings" : `Layer ${at}`));
  return [
    h(
      "div",
      { class: "card", role: "group", "aria-label": "Both texts" },
      strip(answer.pieces, 0),
      strip(answer.other_pieces, 1),
      h("p", { class: "soft small" }, "Marked pieces differ or have no counterpart."),
    ),
    first &&
      second &&
      h(
        "section",
        { class: "apart" },
        facts([
          ["Prediction", watched(first)],
          ["In the first text", amount(first.target, first.probability)],
          [
            "In the second",
            amount(first.target, second.probability),
            change(first.target, second.probability - first.probability),
          ],
        ]),
        first.distribution.length > 0 &&
          h(
            "div",
            { class: "cards" },
            h("div", { class: "card" }, h("h3", {}, "First text"), predicted(first)),
            h("div", { class: "card" }, h("h3", {}, "Second text"), predicted(second)),
          ),
      ),
    first &&
      !second &&
      h(
        "p",
        { class: "notice" },
        `The prediction for the first text, ${watched(first)}, does not exist for the second.`,
      ),
    !first &&
      h(
        "p",
        { class: "notice" },
        ctx.lacks("predict") ??
          (ctx.model.mask
            ? `These texts have no blank. Write ${ctx.model.mask} in both.`
            : "The model predicts nothing for single texts."),
      ),
    h("h2", {}, "How the difference spreads"),
    heat({
      title: "Change of each vector by layer",
      name: "pair-vectors",
      rows: states,
      columns: names,
      value: (row, column) => 1 - answer.vectors[row][column],
      max: Math.max(0.05, ...answer.vectors.flat().map((one) => 1 - one)),
      columnName: "piece",
      caption: "1 − cosine of the two vectors of a piece; 0 means no change.",
    }),
    answer.attention_pieces &&
      heat({
        title: "Change of attention by layer",
        name: "pair-attention-pieces",
        rows: states.slice(1),
        columns: names,
        value: (row, column) => answer.attention_pieces[row][column],
        max: Math.max(0.05, ...answer.attention_pieces.flat()),
        columnName: "attending piece",
        caption:
          "Total variation distance between a piece’s attention in the two texts, " +
          "mean over heads; 0 means equal, 1 means no overlap.",
      }),
    answer.attention &&
      headHeat(answer.attention, {
        title: "Change of attention by head",
        name: "pair-attention",
        caption: "The same distance, mean over pieces.",
      }),
    h(
      "details",
      {},
      h("summary", {}, "Aligned pieces"),
      table(
        ["First", "Second", "Same"],
        answer.aligned.map(([i, j], at) => [
          answer.pieces.tokens[i].token,
          answer.other_pieces.tokens[j].token,
          answer.changed[at] ? "no" : "yes",
        ]),
        { caption: "Aligned pieces", className: "fit" },
      ),
    ),
  ];
}
