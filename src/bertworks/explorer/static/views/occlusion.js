import { explorerCall } from "../calls.js";
import { capital, clear, field, h, select, table } from "../dom.js";
import { tools } from "../export.js";
import { amount, asTarget, change, predicted, subject, unpredicted, watched } from "../parts.js";

export default {
  id: "occlusion",
  title: "Which words decided",
  group: "What a prediction depends on",
  uses: "occlusion",
  inFile: true,
  about:
    "Hides each word in turn. The more the probability falls, the more the prediction depends " +
    "on that word.",
  show,
};

const NAMES = { blank: "token", next: "token", label: "label", tag: "tag" };

function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const update = ctx.updating(async (signal) => {
    const given = await asked.read(signal);
    const { body } = given;
    const none = unpredicted(ctx, given);
    if (none) {
      clear(results);
      return none;
    }
    const { prediction } = await ctx.ask("predict", body, signal);
    const kind = prediction.target.kind;
    const wanted = ctx.get("target");
    const names = prediction.distribution.map((one) => one.name);
    const target =
      !isFile && NAMES[kind] && names.includes(wanted)
        ? { ...asTarget(prediction.target), [NAMES[kind]]: wanted }
        : null;
    const answer = await ctx.ask("occlusion", { ...body, target }, signal);
    const chooser =
      !isFile &&
      NAMES[kind] &&
      names.length > 1 &&
      field(
        "Prediction to explain",
        select(names, answer.prediction.target.name, (name) => {
          ctx.set({ target: name });
          update();
        }),
      );
    clear(
      results,
      chooser,
      draw(answer),
      isFile ? null : explorerCall(ctx, "occlusion", { ...body, target }),
    );
    const value = amount(answer.prediction.target, answer.prediction.probability);
    return `${capital(watched(answer.prediction))}: ${value}. ${strongest(answer)}`;
  });
  const asked = subject(
    ctx,
    () => {
      ctx.set({ target: null });
      update();
    },
    {
      pair: true,
      single: true,
      masked: true,
    },
  );
  root.append(asked.node, ctx.status, results);
  update();
}

// The word that the prediction depends on most; and the one that counts against it, if that is
// more.
function strongest({ pieces, prediction, words }) {
  if (!words.length) return "";
  const sorted = [...words].sort((a, b) => a.change - b.change);
  const [lowest, highest] = [sorted[0], sorted.at(-1)];
  const name = (one) => `“${pieces.words[one.word].text}”`;
  const falls =
    lowest.change < 0 ? `It depends most on ${name(lowest)}.` : "Hiding a word never lowers it.";
  return highest.change > Math.max(0, -lowest.change)
    ? `${falls} Hiding ${name(highest)} raises it: ${change(prediction.target, highest.change)}.`
    : falls;
}

function draw({ pieces, prediction, words }) {
  const isValue = prediction.target.kind === "value";
  const most = Math.max(1e-9, ...words.map((one) => Math.abs(one.change)));
  const hidden = new Map(words.map((one) => [one.word, one]));
  const format = (value) => change(prediction.target, value);
  const marked = h(
    "p",
    { class: "passage" },
    pieces.words.map((word) => {
      const one = hidden.get(word.number);
      return [
        one
          ? h(
              "mark",
              {
                title: format(one.change),
                style: {
                  "--mark": one.change < 0 ? "var(--first)" : "var(--second)",
                  "--strength": `${Math.round((40 * Math.abs(one.change)) / most)}%`,
                },
                class: "weighed",
              },
              word.text,
            )
          : h("span", { class: "soft" }, word.text),
        " ",
      ];
    }),
  );
  const rows = [...words].sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  return [
    h(
      "div",
      { class: "card" },
      marked,
      h(
        "p",
        { class: "soft small" },
        "Blue words support the prediction: without them its probability falls. " +
          "Orange words lower it.",
      ),
    ),
    h(
      "div",
      { class: "cards apart" },
      h(
        "section",
        { class: "card" },
        h("h2", { class: "h3" }, "Effect of each word"),
        table(
          [
            "Hidden word",
            { text: isValue ? "Value" : "Probability", number: true },
            { text: "Change", number: true },
          ],
          rows.map((one) => [
            pieces.words[one.word].text,
            amount(prediction.target, one.probability),
            h("span", { class: one.change < 0 ? "down" : "up" }, format(one.change)),
          ]),
          { caption: "Effect of each word" },
        ),
        tools("occlusion", {
          csv: () => [
            ["word", "text", "probability", "change"],
            ...words.map((one) => [
              one.word,
              pieces.words[one.word].text,
              one.probability,
              one.change,
            ]),
          ],
        }),
      ),
      h(
        "section",
        { class: "card" },
        h("h2", { class: "h3" }, "With all words"),
        predicted(prediction),
      ),
    ),
  ];
}
