import { explorerCall } from "../calls.js";
import { area, clear, counted, field, h, later, line, slider } from "../dom.js";
import { MEANINGS } from "../examples.js";
import { linesOf } from "../parts.js";
import { heat, lineChart, SERIES, scatter } from "../pictures.js";

export default {
  id: "contexts",
  title: "A word in context",
  group: "Words in context",
  uses: "contexts",
  about:
    "One word in several sentences. Its vectors differ by meaning; its static embedding is " +
    "always the same.",
  show,
};

const TEXTS = MEANINGS.texts.join("\n");

function show(root, ctx) {
  const results = h("div", {});
  const update = ctx.updating(async (signal) => {
    const body = {
      word: ctx.get("word", MEANINGS.word).trim(),
      texts: linesOf(ctx.get("texts", TEXTS)),
    };
    const answer = await ctx.ask("contexts", body, signal);
    clear(results, draw(ctx, answer, body), explorerCall(ctx, "contexts", body));
    return `“${body.word}” occurs ${counted(answer.points.length, "time")}.`;
  });
  root.append(
    h(
      "div",
      { class: "form" },
      field(
        "Word",
        line(
          ctx.get("word", MEANINGS.word),
          later((word) => {
            ctx.set({ word });
            update();
          }, 400),
        ),
      ),
      field(
        "Sentences with this word, one per line",
        area(
          ctx.get("texts", TEXTS),
          later((texts) => {
            ctx.set({ texts });
            update();
          }, 500),
          { rows: 4 },
        ),
      ),
    ),
    ctx.status,
    results,
  );
  update();
}

function draw(ctx, answer, body) {
  const last = answer.similarity.length - 1;
  const names = answer.points.map((one) => `${one.text + 1} ${around(body.texts[one.text], one)}`);
  const brief = answer.points.map(
    (one, at) =>
      `${one.text + 1}${answer.points
        .filter((other, k) => other.text === one.text && k < at)
        .map(() => "′")
        .join("")}`,
  );
  const pictures = h("div", {});
  const matrix = (title, name, values, caption) =>
    heat({
      title,
      name,
      rows: names,
      columns: brief,
      value: (row, column) => values[row][column],
      numbers: true,
      most: 44,
      columnName: "sentence",
      caption,
    });
  function at(layer) {
    const where = layer === 0 ? "the embeddings" : `layer ${layer}`;
    const explained = answer.explained[layer].reduce((sum, one) => sum + one, 0);
    clear(
      pictures,
      h(
        "div",
        { class: "cards" },
        matrix(
          `After ${where}`,
          `similarity-layer-${layer}`,
          answer.similarity[layer],
          "Cosine similarity of the word’s vectors.",
        ),
        matrix(
          "The static embedding",
          "similarity-static",
          answer.static,
          "The word’s row of the embedding table: the same in every sentence.",
        ),
      ),
      h(
        "div",
        { class: "apart" },
        scatter({
          title: `A map of ${where}`,
          name: `map-layer-${layer}`,
          caption:
            "The two directions in which the vectors differ most (principal components; " +
            `${(100 * explained).toFixed(0)} % of the variance).`,
          points: answer.map[layer].map(([x, y], k) => ({
            x,
            y,
            text: names[k],
            group: answer.points[k].text,
          })),
        }),
      ),
    );
  }
  const start = Math.min(ctx.number("layer", last), last);
  at(start);
  const pairs = names.slice(1, 6).map((name, k) => ({
    name,
    values: answer.similarity.map((one) => one[0][k + 1]),
    colour: SERIES[answer.points[k + 1].text % SERIES.length],
  }));
  return [
    slider(
      "After layer",
      {
        min: 0,
        max: last,
        value: start,
        text: (one) => (one === 0 ? "0 (embeddings)" : String(one)),
      },
      (layer) => {
        ctx.set({ layer });
        at(layer);
      },
    ),
    h("div", { class: "apart" }, pictures),
    pairs.length > 0 &&
      h(
        "div",
        { class: "apart" },
        lineChart({
          title: `Similarity to the first: ${names[0]}`,
          name: "similarity-by-layer",
          x: answer.similarity.map((_, k) => String(k)),
          xName: "after layer",
          series: pairs,
          high: 1,
        }),
      ),
  ];
}

// The word with a little of what is around it.
function around(text, { start, end }) {
  const letters = [...text];
  const [before, behind] = [
    letters.slice(0, start).join("").trim().split(/\s+/).slice(-2).join(" "),
    letters.slice(end).join("").trim().split(/\s+/).slice(0, 3).join(" "),
  ];
  return `${before} ${letters.slice(start, end).join("")} ${behind}`.trim();
}
