// What fine-tuned models and sentence encoders do: labels, tags, answers, similarity, search.

import { calls, loading, modelOf, python } from "../calls.js";
import { area, clear, field, fixed, h, later, line, percent, slider, table } from "../dom.js";
import { example, LIBRARY, QUESTION, SIMILAR } from "../examples.js";
import { tools } from "../export.js";
import { cut, facts, linesOf, textField } from "../parts.js";
import { bars, heat, SERIES } from "../pictures.js";

const task = (view) => ({ group: "Tasks", ...view });
const typed = (ctx, key, update) =>
  later((value) => {
    ctx.set({ [key]: value });
    update();
  }, 350);
const lines = (ctx, key, label, fallback, update, rows = 5) =>
  field(label, area(ctx.get(key, fallback), typed(ctx, key, update), { rows }));
const single = (ctx, key, label, fallback, update) =>
  field(label, line(ctx.get(key, fallback), typed(ctx, key, update)));
const frame = (root, ctx, form, results, update) => {
  root.append(h("div", { class: "form" }, form), ctx.status, results);
  update();
};

export const classify = task({
  id: "classify",
  title: "Classify",
  uses: "classify",
  about: "The label of a text, and the probability of each label.",
  show(root, ctx) {
    const results = h("div", {});
    const update = ctx.updating(async (signal) => {
      const given = example(ctx.model);
      const [text, pair] = [ctx.get("text", given.text), ctx.get("pair", given.pair ?? "").trim()];
      const inputs = pair ? [[text, pair]] : [text];
      const sent = pair ? `(${python(text)}, ${python(pair)})` : python(text);
      const [found] = await ctx.post("/classify", { inputs }, signal);
      const shares = Object.entries(found.probabilities ?? {}).sort((a, b) => b[1] - a[1]);
      clear(
        results,
        shares.length
          ? h(
              "div",
              { class: "card" },
              bars(
                shares.map(([name, value]) => ({
                  text: name,
                  value,
                  known: name === found.label || found.labels?.includes(name),
                })),
                { caption: "Labels", head: "Label", max: 1 },
              ),
              tools("labels", { csv: () => [["label", "probability"], ...shares] }),
            )
          : facts(
              Object.entries(found).map(([name, value]) => [
                name,
                typeof value === "number" ? fixed(value, 3) : String(value),
              ]),
            ),
        calls(ctx, {
          path: "/classify",
          body: { inputs },
          python: `${loading(ctx)}model.predict([${sent}])`,
          verb: "predict",
          given: [modelOf(ctx), text],
          options: pair ? ["--pair", pair] : [],
        }),
      );
      return shares.length ? `${shares[0][0]}: ${percent(shares[0][1])}.` : "";
    });
    frame(
      root,
      ctx,
      [
        textField(ctx, update),
        single(
          ctx,
          "pair",
          "Second text (if the model takes pairs)",
          example(ctx.model).pair ?? "",
          update,
        ),
      ],
      results,
      update,
    );
  },
});

export const tag = task({
  id: "tag",
  title: "Tag",
  uses: "tag",
  about: "The tag of every word, and the entities that the tags mark.",
  show(root, ctx) {
    const results = h("div", {});
    const update = ctx.updating(async (signal) => {
      const text = ctx.get("text", example(ctx.model).text);
      const [found] = await ctx.post("/tag", { inputs: text }, signal);
      const entities = found.entities ?? [];
      const kinds = [...new Set(entities.map((one) => one.type))].sort();
      const parts = [];
      let at = 0;
      for (const one of entities) {
        parts.push(
          cut(text, at, one.start),
          h(
            "mark",
            { style: { "--mark": `var(--${SERIES[kinds.indexOf(one.type) % 4]})` } },
            cut(text, one.start, one.end),
            h("sub", {}, one.type),
          ),
        );
        at = one.end;
      }
      const rows = () =>
        found.words.map((word, k) => [
          word,
          found.tags[k],
          Number(found.probabilities[k].toFixed(4)),
        ]);
      clear(
        results,
        found.entities &&
          h("div", { class: "card" }, h("p", { class: "passage" }, parts, cut(text, at))),
        entities.length > 0 && [
          h("h2", {}, "Entities"),
          table(
            ["Entity", "Type", "Characters", { text: "Probability", number: true }],
            entities.map((one) => [
              one.text,
              one.type,
              `${one.start}–${one.end}`,
              percent(one.probability),
            ]),
            { caption: "Entities" },
          ),
        ],
        h("h2", {}, "Word by word"),
        table(
          ["Word", "Tag", { text: "Probability", number: true }],
          rows().map(([word, label, share]) => [word, label, percent(share)]),
          { caption: "Tags", className: "fit" },
        ),
        tools("tags", { csv: () => [["word", "tag", "probability"], ...rows()] }),
        calls(ctx, {
          path: "/tag",
          body: { inputs: text },
          python: `${loading(ctx)}model.predict(${python(text)})`,
          verb: "predict",
          given: [modelOf(ctx), text],
        }),
      );
      return `${entities.length} ${entities.length === 1 ? "entity" : "entities"}.`;
    });
    frame(root, ctx, textField(ctx, update), results, update);
  },
});

const { text: ASKED, pair: PASSAGE } = QUESTION;
export const answer = task({
  id: "answer",
  title: "Answer",
  uses: "answer",
  about: "The answer to a question, marked in the passage; or no answer, if the passage has none.",
  show(root, ctx) {
    const results = h("div", {});
    let found = null;
    const update = ctx.updating(async (signal) => {
      const inputs = { question: ctx.get("question", ASKED), context: ctx.get("text", PASSAGE) };
      [found] = await ctx.post("/answer", { inputs, n_best: 100 }, signal);
      return draw();
    });
    function draw() {
      const [question, passage] = [ctx.get("question", ASKED), ctx.get("text", PASSAGE)];
      const all = found.alternatives;
      const none = all.find((one) => one.answer === "");
      const spans = all.filter((one) => one.answer !== "");
      const limit = ctx.number("limit", 50) / 100;
      const best = spans[0];
      const share = none && best ? none.probability / (none.probability + best.probability) : 0;
      const isAnswered = best && (!none || share <= limit);
      clear(
        results,
        h(
          "div",
          { class: "card" },
          h(
            "p",
            { class: "passage" },
            isAnswered
              ? [
                  cut(passage, 0, best.start),
                  h("mark", {}, cut(passage, best.start, best.end)),
                  cut(passage, best.end),
                ]
              : passage,
          ),
          !isAnswered && h("p", { class: "notice" }, "No answer."),
        ),
        h(
          "p",
          { class: "soft small" },
          none
            ? `“No answer” compared with the best span: ${percent(share)}.`
            : "“No answer” is not among the best 100.",
        ),
        none &&
          h(
            "div",
            { class: "apart" },
            slider(
              "“No answer” is predicted above this share",
              { min: 0, max: 100, value: limit * 100, text: (one) => `${one} %` },
              (one) => {
                ctx.set({ limit: one });
                ctx.say(draw());
              },
            ),
          ),
        h("h2", {}, "The best spans"),
        h(
          "div",
          { class: "card" },
          bars(
            all.slice(0, 10).map((one) => ({
              text: one.answer || "(no answer)",
              value: one.probability,
              known: one === best && isAnswered,
            })),
            { caption: "The best spans", head: "Answer" },
          ),
          tools("answers", {
            csv: () => [
              ["answer", "start", "end", "probability"],
              ...all.map((one) => [one.answer, one.start, one.end, one.probability]),
            ],
          }),
        ),
        calls(ctx, {
          path: "/answer",
          body: { inputs: { question, context: passage }, n_best: 20 },
          python: `${loading(ctx)}model.predict([(${python(question)}, ${python(passage)})])`,
          verb: "predict",
          given: [modelOf(ctx), question],
          options: ["--pair", passage],
        }),
      );
      return isAnswered ? `“${best.answer}”, ${percent(best.probability)}.` : "No answer.";
    }
    frame(
      root,
      ctx,
      [
        single(ctx, "question", "Question", ASKED, update),
        textField(ctx, update, { label: "Passage", fallback: PASSAGE }),
      ],
      results,
      () => update(),
    );
    results.addEventListener(
      "input",
      (event) => event.target.type === "range" && results.querySelector("input")?.focus(),
    );
  },
});

const cosine = (one, two) => one.reduce((sum, value, at) => sum + value * two[at], 0);
const embed = (ctx, inputs, signal) => ctx.post("/embed", { inputs, normalize: true }, signal);
const embedCall = (ctx, inputs) =>
  calls(ctx, {
    path: "/embed",
    body: { inputs },
    python: `${loading(ctx)}texts = ${python(inputs)}\nmodel.similarity(texts, texts)`,
    verb: "embed",
    given: [modelOf(ctx), ...inputs],
    options: ["--out", "vectors.npy"],
  });

export const similarity = task({
  id: "similarity",
  title: "Similarity",
  uses: "similarity",
  about: "How similar the texts of a list are: the cosines of their vectors.",
  show(root, ctx) {
    const results = h("div", {});
    const update = ctx.updating(async (signal) => {
      const texts = linesOf(ctx.get("texts", SIMILAR.join("\n")));
      if (texts.length < 2) throw new Error("Enter at least two texts, one per line.");
      const vectors = await embed(ctx, texts, signal);
      const values = vectors.map((one) => vectors.map((two) => cosine(one, two)));
      const pairs = texts
        .flatMap((_, i) => texts.slice(i + 1).map((__, k) => [i, i + 1 + k]))
        .sort((a, b) => values[b[0]][b[1]] - values[a[0]][a[1]]);
      const [i, j] = pairs[0];
      clear(
        results,
        heat({
          title: "Cosine similarity",
          name: "similarity",
          rows: texts.map((text, at) => `${at + 1} ${text}`),
          columns: texts.map((_, at) => String(at + 1)),
          value: (row, column) => values[row][column],
          numbers: true,
          most: 56,
          rowName: "text",
          columnName: "text",
        }),
        embedCall(ctx, texts),
      );
      return `Most similar: ${i + 1} and ${j + 1}, ${fixed(values[i][j])}.`;
    });
    frame(
      root,
      ctx,
      [comparing(ctx), lines(ctx, "texts", "Texts, one per line", SIMILAR.join("\n"), update)],
      results,
      update,
    );
  },
});

// A model that was not trained to compare texts says so, and names one that was.
function comparing(ctx) {
  if (ctx.model.compares) return null;
  const better = ctx.models.filter((one) => one.compares);
  const link = (one) =>
    h(
      "a",
      { href: `#/${ctx.view}?model=${encodeURIComponent(one.name)}` },
      `Show it with ${one.name}.`,
    );
  return h(
    "p",
    { class: "notice" },
    `${ctx.model.name} was not trained to compare texts, so its vectors say little about meaning. `,
    better.length
      ? better.map((one) => [link(one), " "])
      : `Serve a model that was: bertworks serve ${modelOf(ctx)} mini-sentences`,
  );
}

export const search = task({
  id: "search",
  title: "Search",
  uses: "search",
  about: "The pasted texts that are nearest in meaning to your query.",
  show(root, ctx) {
    const results = h("div", {});
    let [key, vectors] = [null, null];
    const update = ctx.updating(async (signal) => {
      const texts = linesOf(ctx.get("texts", LIBRARY.texts.join("\n")));
      const query = ctx.get("query", LIBRARY.query).trim();
      if (!texts.length || !query)
        throw new Error("Enter a query, and texts to search, one per line.");
      if (key !== texts.join("\n")) {
        const made = [];
        for (let at = 0; at < texts.length; at += 64)
          made.push(...(await embed(ctx, texts.slice(at, at + 64), signal)));
        [key, vectors] = [texts.join("\n"), made];
      }
      const [asked] = await embed(ctx, [query], signal);
      const ranked = vectors
        .map((one, at) => ({ text: texts[at], value: cosine(asked, one) }))
        .sort((a, b) => b.value - a.value);
      clear(
        results,
        h(
          "div",
          { class: "card found" },
          bars(ranked.slice(0, 10), {
            caption: "Nearest texts",
            head: "Text",
            measure: "Cosine",
            format: fixed,
            max: 1,
          }),
          tools("search", {
            csv: () => [["text", "cosine"], ...ranked.map((one) => [one.text, one.value])],
          }),
        ),
        calls(ctx, {
          path: "/similarity",
          body: { inputs: { source_sentence: query, sentences: texts } },
          python: `${loading(ctx)}model.similarity(${python(query)}, ${python(texts)})`,
          lines: { "texts.txt": texts },
          verb: "search",
          given: [modelOf(ctx), "texts.txt", query],
        }),
      );
      return `The nearest of ${texts.length}: “${ranked[0].text}”`;
    });
    frame(
      root,
      ctx,
      [
        comparing(ctx),
        single(ctx, "query", "Query", LIBRARY.query, update),
        lines(ctx, "texts", "Texts to search, one per line", LIBRARY.texts.join("\n"), update, 6),
      ],
      results,
      update,
    );
  },
});
