import { explorerCall } from "../calls.js";
import { button, clear, fixed, h, roving, table } from "../dom.js";
import { tools } from "../export.js";
import { amount, predicted, shown, subject, unpredicted, watched } from "../parts.js";
import { bars, lineChart } from "../pictures.js";

export default {
  id: "steps",
  title: "From text to answer",
  group: "Inside the network",
  uses: "steps",
  inFile: true,
  about: "One prediction, step by step, with the computed shapes and numbers.",
  show,
};

const shape = (...sizes) => h("span", { class: "shape mono" }, `[${sizes.join(", ")}]`);

function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const update = ctx.updating(async (signal) => {
    const given = await asked.read(signal);
    const answer = await ctx.ask("steps", given.body, signal);
    clear(
      results,
      draw(ctx, answer, unpredicted(ctx, given)),
      isFile ? null : explorerCall(ctx, "steps", given.body),
    );
    return answer.prediction ? `Predicted: ${watched(answer.prediction)}.` : "";
  });
  const asked = subject(ctx, update, { pair: true, masked: true });
  root.append(asked.node, ctx.status, results);
  update();
}

// The first numbers of a vector, each on a ground as strong as it is large.
function vector(row, width) {
  const most = Math.max(...row.map(Math.abs), 1e-9);
  return [
    row.map((value) =>
      h(
        "td",
        {
          class: "cell number",
          style: {
            "--share": `${Math.round((45 * Math.abs(value)) / most)}%`,
            "--tone": value < 0 ? "var(--second)" : "var(--first)",
          },
        },
        fixed(value),
      ),
    ),
    h("td", { class: "soft" }, width > row.length ? `… ${width - row.length} more` : ""),
  ];
}

function numbersTable(caption, rows, width) {
  return h(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      { class: "vectors" },
      h("caption", { class: "hidden" }, caption),
      h(
        "tbody",
        {},
        rows.map(([name, row, note]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, name, note && h("span", { class: "soft small" }, ` ${note}`)),
            vector(row, width),
          ),
        ),
      ),
    ),
  );
}

// Each layer opens in the view that takes it apart.
function layerLinks(ctx, count) {
  const layers = ctx.source.data?.layers.length ?? count;
  const link = (layer) => {
    const values = new URLSearchParams(location.hash.split("?")[1]);
    values.set("layer", layer);
    return h("a", { href: `#/layer?${values}` }, `layer ${layer + 1}`);
  };
  return h(
    "p",
    {},
    "How attention works, step by step: ",
    Array.from({ length: layers }, (_, layer) => [layer ? ", " : "", link(layer)]),
    ".",
  );
}

function draw(ctx, answer, why) {
  const { pieces, embeddings, states, head, prediction } = answer;
  const count = pieces.tokens.length;
  const width = answer.hidden_size;
  let chosen = Math.min(ctx.number("token", prediction?.target.position ?? 1), count - 1);
  const [sums, layers] = [h("div", {}), h("div", {})];
  const strip = h(
    "div",
    { class: "words", role: "group", "aria-label": "Pieces; press one to follow it" },
    pieces.tokens.map((one, at) =>
      button(
        one.token,
        () => {
          chosen = at;
          ctx.set({ token: at });
          follow();
        },
        { class: "mono" },
      ),
    ),
  );
  function follow() {
    for (const [at, one] of [...strip.children].entries())
      one.setAttribute("aria-pressed", at === chosen);
    const name = `“${pieces.tokens[chosen].token}”`;
    const { id, position, segment } = pieces.tokens[chosen];
    const numbers = { word: id, position, segment };
    const sign = { sum: "= sum", norm: "→ normalised", projection: "→ projected" };
    clear(
      sums,
      numbersTable(
        `The embeddings of ${name}`,
        embeddings.map((one, at) => [
          sign[one.name] ?? `${at ? "+ " : ""}${one.name}`,
          one.rows[chosen],
          one.table ? `row ${numbers[one.name] ?? ""} of [${one.table.join(", ")}]` : null,
        ]),
        width,
      ),
    );
    clear(
      layers,
      numbersTable(
        `The states of ${name}`,
        states.map((one) => [
          one.layer === 0 ? "Embeddings" : `Layer ${one.layer}`,
          one.rows[chosen],
        ]),
        width,
      ),
      tools("states", {
        csv: () => [
          ["layer", "piece", "norm", ...states[0].rows[0].map((_, at) => `number ${at}`)],
          ...states.flatMap((one) =>
            one.rows.map((row, at) => [one.layer, pieces.tokens[at].token, one.norms[at], ...row]),
          ),
        ],
      }),
      h(
        "div",
        { class: "cards apart" },
        lineChart({
          title: `Length of the vector of ${name}`,
          name: "norms",
          x: states.map((one) => String(one.layer)),
          xName: "after layer",
          low: 0,
          series: [{ name: "norm", values: states.map((one) => one.norms[chosen]) }],
        }),
        lineChart({
          title: `Similarity of ${name} to its vector one layer before`,
          name: "cosines",
          x: states.slice(1).map((one) => String(one.layer)),
          xName: "after layer",
          high: 1,
          caption: "Cosine with the vector before the layer: 1 means the same direction.",
          series: [{ name: "cosine", values: states.slice(1).map((one) => one.cosine[chosen]) }],
        }),
      ),
    );
  }
  follow();
  const step = (number, title, ...content) =>
    h("li", { class: "card" }, h("h2", {}, `${number}. `, title), content);
  let number = 0;
  return h(
    "ol",
    { class: "steps" },
    step(
      ++number,
      ["The text becomes pieces ", shape(count)],
      h("p", { class: "soft" }, "Choose a piece to follow its vector below."),
      roving(strip),
    ),
    step(++number, ["Embeddings are looked up and added ", shape(count, width)], sums),
    step(
      ++number,
      [
        `${states.length - 1} layers transform them, each with attention between all pieces `,
        shape(count, width),
      ],
      ctx.lacks("layer") === null && layerLinks(ctx, states.length - 1),
      layers,
    ),
    head &&
      step(
        ++number,
        ["The head computes logits ", shape(...head.shape)],
        h(
          "p",
          { class: "soft" },
          `${head.shape.at(-1).toLocaleString("en")} numbers; the largest:`,
        ),
        table(
          ["", { text: "Logit", number: true }],
          head.logits.map((one) => [shown(one.name), fixed(one.logit, 3)]),
          { caption: "Logits", className: "fit" },
        ),
      ),
    head &&
      head.probabilities.length > 0 &&
      step(
        ++number,
        ["Softmax turns them into probabilities ", shape(...head.shape)],
        bars(
          head.probabilities.map((one) => ({ text: shown(one.name), value: one.probability })),
          { caption: "Probabilities" },
        ),
      ),
    prediction &&
      step(
        ++number,
        `The answer: ${watched(prediction)}, ${amount(prediction.target, prediction.probability)}`,
        head?.probabilities.length ? null : predicted(prediction),
      ),
    !head && h("li", { class: "notice" }, why ?? "The model predicts nothing for this text."),
  );
}
