// The cosines of the texts of a list.
import { callExamples, formatLoading, formatPython, getModelSource } from "../calls.js";
import { heatmap } from "../charts/heatmap.js";
import { comparisonNotice, embedTexts } from "../embedding.js";
import { SIMILARITY_TEXTS } from "../examples.js";
import { inputField } from "../fields.js";
import { dotProduct } from "../math.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatFixed } from "../ui/format.js";
import { splitLines } from "../ui/strings.js";

const FALLBACK = SIMILARITY_TEXTS.join("\n");

export function show(root, ctx) {
  const results = h("div", {});
  const update = ctx.createUpdate(async (signal) => {
    const texts = splitLines(ctx.get("texts", FALLBACK));
    if (texts.length < 2) throw new Error("Enter at least two texts, one per line.");
    const vectors = await embedTexts(ctx, texts, signal);
    const cosines = vectors.map((first) => vectors.map((second) => dotProduct(first, second)));
    replaceContent(results, cosineMap(texts, cosines), similarityExamples(ctx, texts));
    const [row, column] = findMostSimilar(cosines);
    return `Most similar: ${row + 1} and ${column + 1}, ${formatFixed(cosines[row][column])}.`;
  });
  root.append(
    h(
      "div",
      { class: "form" },
      comparisonNotice(ctx),
      inputField(ctx, update, {
        key: "texts",
        label: "Texts, one per line",
        fallback: FALLBACK,
        rows: 5,
      }),
    ),
    ctx.status,
    results,
  );
  update();
}

// The pair of two texts with the largest cosine.
function findMostSimilar(cosines) {
  let best = [0, 1];
  for (const [row, values] of cosines.entries())
    for (let column = row + 1; column < values.length; column++)
      if (values[column] > cosines[best[0]][best[1]]) best = [row, column];
  return best;
}

const cosineMap = (texts, cosines) =>
  heatmap({
    title: "Cosine similarity",
    name: "similarity",
    rows: texts.map((text, index) => `${index + 1} ${text}`),
    columns: texts.map((_, index) => String(index + 1)),
    value: (row, column) => cosines[row][column],
    showsNumbers: true,
    maxCellSize: 56,
    rowName: "text",
    columnName: "text",
  });

function similarityExamples(ctx, texts) {
  const list = formatPython(texts);
  return callExamples(ctx, {
    path: "/embed",
    body: { inputs: texts },
    python: `${formatLoading(ctx)}texts = ${list}\nmodel.similarity(texts, texts)`,
    verb: "embed",
    args: [getModelSource(ctx), ...texts],
    options: ["--out", "vectors.npy"],
  });
}
