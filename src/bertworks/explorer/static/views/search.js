// The pasted texts that are nearest to a query.
import { callExamples, formatLoading, formatPython, getModelSource } from "../calls.js";
import { bars } from "../charts/bars.js";
import { comparisonNotice, embedTexts, queryRequest } from "../embedding.js";
import { SEARCH } from "../examples.js";
import { saveButtons } from "../export.js";
import { inputField } from "../fields.js";
import { dotProduct } from "../math.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatFixed } from "../ui/format.js";
import { splitLines } from "../ui/strings.js";

const BATCH_SIZE = 64; // texts of a request
const FALLBACK = SEARCH.texts.join("\n");

export function show(root, ctx) {
  const results = h("div", {});
  const embedOnce = createVectorCache(ctx);
  const update = ctx.createUpdate(async (signal) => {
    const texts = splitLines(ctx.get("texts", FALLBACK));
    const query = ctx.get("query", SEARCH.query).trim();
    if (!texts.length || !query)
      throw new Error("Enter a query, and texts to search, one per line.");
    const vectors = await embedOnce(texts, signal);
    const answer = await ctx.post("/encode", queryRequest(query), signal);
    const matches = vectors
      .map((vector, index) => ({
        text: texts[index],
        value: dotProduct(answer.results[0], vector),
      }))
      .sort((first, second) => second.value - first.value);
    replaceContent(results, matchBars(matches), searchExamples(ctx, query, texts));
    return `The nearest of ${texts.length}: “${matches[0].text}”`;
  });
  root.append(
    h(
      "div",
      { class: "form" },
      comparisonNotice(ctx),
      inputField(ctx, update, { key: "query", label: "Query", fallback: SEARCH.query }),
      inputField(ctx, update, {
        key: "texts",
        label: "Texts to search, one per line",
        fallback: FALLBACK,
        rows: 6,
      }),
    ),
    ctx.status,
    results,
  );
  update();
}

// The vectors of the last texts are kept while the query changes.
function createVectorCache(ctx) {
  let [cachedKey, cachedVectors] = [null, null];
  const embedDocuments = (texts, signal) =>
    embedTexts(ctx, texts, signal, ctx.model.document_prompt);
  return async (texts, signal) => {
    const key = texts.join("\n");
    if (key !== cachedKey) {
      const vectors = [];
      for (let start = 0; start < texts.length; start += BATCH_SIZE)
        vectors.push(...(await embedDocuments(texts.slice(start, start + BATCH_SIZE), signal)));
      [cachedKey, cachedVectors] = [key, vectors];
    }
    return cachedVectors;
  };
}

const matchBars = (matches) =>
  h(
    "div",
    { class: "card matches" },
    bars(matches.slice(0, 10), {
      caption: "Nearest texts",
      header: "Text",
      measure: "Cosine",
      format: formatFixed,
      max: 1,
    }),
    saveButtons("search", {
      csv: () => [["text", "cosine"], ...matches.map(({ text, value }) => [text, value])],
    }),
  );

function searchExamples(ctx, query, texts) {
  const index = `bw.Index.open(model, ${formatPython(texts)})`;
  return callExamples(ctx, {
    path: "/encode",
    body: queryRequest(query),
    python: `${formatLoading(ctx)}${index}.search([${formatPython(query)}])`,
    files: { "texts.txt": texts },
    verb: "search",
    args: [getModelSource(ctx), "texts.txt", query],
  });
}
