// One word in several sentences: how similar its vectors are.
import { explorerCallExamples } from "../calls.js";
import { SERIES } from "../charts/colours.js";
import { heatmap } from "../charts/heatmap.js";
import { lineChart } from "../charts/line-chart.js";
import { scatter } from "../charts/scatter.js";
import { CONTEXTS } from "../examples.js";
import { inputField } from "../fields.js";
import { slider } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatCount } from "../ui/format.js";
import { splitLines } from "../ui/strings.js";

const FALLBACK = CONTEXTS.texts.join("\n");
const MAX_LINES = 5;

export function show(root, ctx) {
  const results = h("div", {});
  const update = ctx.createUpdate(async (signal) => {
    const word = ctx.get("word", CONTEXTS.word).trim();
    const body = { word, texts: splitLines(ctx.get("texts", FALLBACK)) };
    const answer = await ctx.request("contexts", body, signal);
    const examples = explorerCallExamples(ctx, "contexts", body);
    replaceContent(results, occurrenceCharts(ctx, answer, body.texts), examples);
    return `“${word}” occurs ${formatCount(answer.points.length, "time")}.`;
  });
  root.append(
    h(
      "div",
      { class: "form" },
      inputField(ctx, update, { key: "word", label: "Word", fallback: CONTEXTS.word }),
      inputField(ctx, update, {
        key: "texts",
        label: "Sentences with this word, one per line",
        fallback: FALLBACK,
        rows: 4,
      }),
    ),
    ctx.status,
    results,
  );
  update();
}

// What depends on a layer is drawn again when the slider moves.
function occurrenceCharts(ctx, answer, texts) {
  const occurrences = nameOccurrences(answer.points, texts);
  const lastLayer = answer.similarity.length - 1;
  const firstLayer = Math.min(ctx.getNumber("layer", lastLayer), lastLayer);
  const charts = h("div", {}, layerCharts(answer, occurrences, firstLayer));
  const changeLayer = (layer) => {
    ctx.set({ layer });
    replaceContent(charts, layerCharts(answer, occurrences, layer));
  };
  return [
    slider(
      "After layer",
      {
        min: 0,
        max: lastLayer,
        value: firstLayer,
        format: (layer) => (layer === 0 ? "0 (embeddings)" : String(layer)),
      },
      changeLayer,
    ),
    h("div", { class: "spaced" }, charts),
    occurrences.length > 1 &&
      h("div", { class: "spaced" }, similarityChart(answer.similarity, occurrences)),
  ];
}

// Each occurrence of the word: the number of its sentence, a short name, and a name with the words
// around it.
function nameOccurrences(points, texts) {
  return points.map((point, index) => {
    const earlier = points.slice(0, index).filter(({ text }) => text === point.text);
    return {
      text: point.text,
      shortName: `${point.text + 1}${"′".repeat(earlier.length)}`,
      name: `${point.text + 1} ${excerpt(texts[point.text], point)}`,
    };
  });
}

// The word with at most two words before it and three after it.
function excerpt(text, { start, end }) {
  const letters = [...text];
  const splitWords = (part) => part.join("").trim().split(/\s+/);
  const leftText = splitWords(letters.slice(0, start)).slice(-2).join(" ");
  const rightText = splitWords(letters.slice(end)).slice(0, 3).join(" ");
  return `${leftText} ${letters.slice(start, end).join("")} ${rightText}`.trim();
}

function layerCharts(answer, occurrences, layer) {
  const place = layer === 0 ? "the embeddings" : `layer ${layer}`;
  return [
    h(
      "div",
      { class: "cards" },
      similarityMap(occurrences, answer.similarity[layer], {
        title: `After ${place}`,
        name: `similarity-layer-${layer}`,
        caption: "Cosine similarity of the word’s vectors.",
      }),
      similarityMap(occurrences, answer.static, {
        title: "The static embedding",
        name: "similarity-static",
        caption: "The word’s row of the embedding table: the same in every sentence.",
      }),
    ),
    h("div", { class: "spaced" }, vectorMap(answer, occurrences, layer, place)),
  ];
}

const similarityMap = (occurrences, values, options) =>
  heatmap({
    rows: occurrences.map(({ name }) => name),
    columns: occurrences.map(({ shortName }) => shortName),
    value: (row, column) => values[row][column],
    showsNumbers: true,
    maxCellSize: 44,
    columnName: "sentence",
    ...options,
  });

function vectorMap(answer, occurrences, layer, place) {
  const explainedVariance = answer.explained_variance[layer].reduce((sum, share) => sum + share, 0);
  return scatter({
    title: `A map of ${place}`,
    name: `map-layer-${layer}`,
    caption:
      "The two directions in which the vectors differ most (principal components; " +
      `${(100 * explainedVariance).toFixed(0)} % of the variance).`,
    points: answer.map[layer].map(([x, y], index) => ({
      x,
      y,
      text: occurrences[index].name,
      group: occurrences[index].text,
    })),
  });
}

// The similarity of each occurrence to the first one, by layer.
const similarityChart = (similarity, occurrences) =>
  lineChart({
    title: `Similarity to the first: ${occurrences[0].name}`,
    name: "similarity-by-layer",
    x: similarity.map((_, layer) => String(layer)),
    xName: "after layer",
    series: occurrences.slice(1, MAX_LINES + 1).map(({ name, text }, index) => ({
      name,
      values: similarity.map(([first]) => first[index + 1]),
      colour: SERIES[text % SERIES.length],
    })),
    high: 1,
  });
