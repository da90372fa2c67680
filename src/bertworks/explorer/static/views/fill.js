import { calls, loading, modelOf, python } from "../calls.js";
import { clear, field, h, later, line, select } from "../dom.js";
import { tools } from "../export.js";
import { answerOf, blankName, cut, guesses, NO_BLANK, subject, sure, was } from "../parts.js";
import { bars } from "../pictures.js";

export default {
  id: "fill",
  title: "Fill in the blank",
  group: "Words in context",
  uses: "fill",
  inFile: true,
  about: "Mask words and see what the model predicts for them from both sides of the text.",
  show,
};

function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const update = ctx.updating(async (signal) => {
    const { text, pieces, chosen, hasBlank } = await asked.read(signal);
    if (!hasBlank && !ctx.model.causal) {
      clear(results);
      return NO_BLANK;
    }
    const candidates = ctx
      .get("candidates")
      .split(",")
      .map((one) => one.trim())
      .filter(Boolean);
    const second = ctx.models.find((one) => one.name === ctx.get("beside"));
    const body = {
      text,
      words: chosen,
      top_k: 10,
      candidates,
      layers: false,
      left: ctx.model.causal,
    };
    const wanted = [ctx.ask("fill", body, signal)];
    if (second) wanted.push(beside(ctx, second, text, pieces, body, signal));
    const answers = await Promise.all(wanted);
    clear(
      results,
      h(
        "div",
        { class: second ? "cards" : null },
        answers.map((answer, at) =>
          h(
            "div",
            {},
            second && h("h2", {}, [ctx.model, second][at].name),
            answer.note && h("p", { class: "soft small" }, answer.note),
            blanks(answer),
          ),
        ),
      ),
      isFile ? null : sameCall(ctx, text, pieces, chosen, candidates),
    );
    return summary(answers[0]);
  });
  const asked = subject(ctx, update, { fills: true, single: isFile });
  const able = ctx.models.filter(
    (one) =>
      one !== ctx.model &&
      (!one.views || (one.views.fill === null && !one.mask === !ctx.model.mask)),
  );
  const others =
    able.length > 0 &&
    select(
      [["", "no other model"], ...able.map((one) => [one.name, one.name])],
      ctx.get("beside"),
      (name) => {
        ctx.set({ beside: name || null });
        update();
      },
    );
  asked.node.append(
    ...(isFile
      ? []
      : [
          h(
            "div",
            { class: "row end" },
            h(
              "div",
              { class: "grow" },
              field(
                "Candidates to score, separated by commas (optional)",
                line(
                  ctx.get("candidates"),
                  later((value) => {
                    ctx.set({ candidates: value || null });
                    update();
                  }),
                ),
              ),
            ),
            ...(others ? [field("Compare with", others)] : []),
          ),
        ]),
  );
  root.append(asked.node, ctx.status, results);
  update();
}

// What another model puts in the same place. Its mask may have another name, and its words other
// borders: they are found by their characters.
async function beside(ctx, second, text, pieces, body, signal) {
  if (!second.views)
    Object.assign(second, await ctx.source.model(second.name), { default: second.default });
  const [mask, other] = [ctx.model.mask, second.mask ?? ctx.model.mask];
  const given = { model: second.name, text: text.replaceAll(mask, other) };
  if (!body.words.length) return ctx.source.ask("fill", { ...body, ...given }, signal);
  const theirs = (await ctx.source.ask("pieces", given, signal)).pieces.words;
  const moved = (at) =>
    at + (cut(text, 0, at).split(mask).length - 1) * ([...other].length - [...mask].length);
  const found = body.words.map((number) => {
    const [start, end] = [moved(pieces.words[number].start), moved(pieces.words[number].end)];
    const words = theirs.filter((word) => word.start < end && word.end > start);
    if (!words.length)
      throw new Error(`${second.name} has no pieces for “${pieces.words[number].text}”.`);
    return { words, isSame: words[0].start === start && words.at(-1).end === end };
  });
  const wider = found
    .filter((one) => !one.isSame)
    .map(({ words }) => `“${cut(given.text, words[0].start, words.at(-1).end)}”`);
  const words = [...new Set(found.flatMap((one) => one.words.map((word) => word.number)))].sort(
    (a, b) => a - b,
  );
  return {
    ...(await ctx.source.ask("fill", { ...body, ...given, words }, signal)),
    note: wider.length
      ? `Its words have other borders: it masks ${[...new Set(wider)].join(", ")}.`
      : null,
  };
}

function blanks(answer) {
  return h(
    "div",
    { class: "cards" },
    answer.blanks.map((blank, at) => {
      const found = answerOf(blank);
      const name = blankName(at, answer.blanks.length > 1);
      const rows = () => [
        ["piece", "probability"],
        ...found.top.map((one) => [one.token, one.probability]),
        ...found.candidates.map((one) => [one.candidate, one.probability]),
      ];
      return h(
        "section",
        { class: "card" },
        h("h2", { class: "h3" }, name, was(blank)),
        guesses(found, { caption: name }),
        found.candidates?.length > 0 && [
          h("h3", {}, "Candidates"),
          bars(
            found.candidates.map((one) => ({
              text: one.candidate,
              value: one.probability,
              note: one.pieces.length > 1 ? `(${one.pieces.join(" ")})` : null,
            })),
            { caption: `Candidates for ${name}` },
          ),
        ],
        h("p", { class: "soft small" }, sure(found.entropy)),
        tools(name.toLowerCase().replaceAll(" ", "-"), { csv: rows }),
      );
    }),
  );
}

const summary = (answer) =>
  `Most probable: ${answer.blanks
    .map((blank) => answerOf(blank).top[0])
    .map((one) => `${one.token} (${(100 * one.probability).toFixed(0)} %)`)
    .join(", ")}.`;

// The text with its masks, as other callers write it: a mask for each piece.
export const masked = (ctx, text, pieces, chosen) =>
  [...pieces.words]
    .reverse()
    .reduce(
      (found, word) =>
        chosen.includes(word.number)
          ? cut(found, 0, word.start) +
            word.tokens.map(() => ctx.model.mask).join(" ") +
            cut(found, word.end)
          : found,
      text,
    );

function sameCall(ctx, text, pieces, chosen, candidates) {
  if (ctx.model.causal)
    return calls(ctx, {
      path: "/generate",
      body: { inputs: text, max_new_tokens: 1 },
      python: `${loading(ctx)}model.generate([${python(text)}], max_new_tokens=1)`,
      verb: "generate",
      given: [modelOf(ctx), text],
      options: ["--max-new-tokens", "1"],
    });
  const inputs = masked(ctx, text, pieces, chosen);
  return calls(ctx, {
    path: "/fill-mask",
    body: { inputs, top_k: 10, candidates },
    python: candidates.length
      ? `import bertworks as bw\n\nclient = bw.Client(${python(ctx.source.origin)})\n` +
        `client.fill_mask(${python(inputs)}, candidates=${python(candidates)})`
      : `${loading(ctx)}model.fill_mask(${python(inputs)}, top_k=10)`,
    verb: "fill-mask",
    given: [modelOf(ctx), inputs],
    options: ["--top-k", "10"],
  });
}
