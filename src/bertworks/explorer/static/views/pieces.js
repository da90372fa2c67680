import { calls, loading, modelOf, python } from "../calls.js";
import { clear, counted, field, h, later, line, table } from "../dom.js";
import { tools } from "../export.js";
import { facts, text, textField } from "../parts.js";

export default {
  id: "pieces",
  title: "Pieces",
  group: "Inside the network",
  uses: "pieces",
  inFile: true,
  about:
    "How the tokenizer splits a text: pieces with their ids, segments and positions. " +
    "Rare words are split.",
  show,
};

const COLUMNS = [
  "Piece",
  { text: "Id", number: true },
  { text: "Position", number: true },
  { text: "Segment", number: true },
  "Characters",
  "Kind",
];

function show(root, ctx) {
  const results = h("div", {});
  const pair = () => (ctx.source.data ? ctx.source.data.pair : ctx.get("pair")) || null;
  const update = ctx.updating(async (signal) => {
    const given = text(ctx);
    const { pieces } = await ctx.ask("pieces", { text: given, pair: pair() }, signal);
    const split = pieces.words.filter((word) => word.tokens.length > 1);
    const isMasked = ctx.model.mask && `${given} ${pair() ?? ""}`.includes(ctx.model.mask);
    const args = [
      python(given),
      ...(pair() ? [python(pair())] : []),
      ...(isMasked ? ["typed_mask=True"] : []),
    ];
    const unknown = pieces.tokens.filter((one) => one.unknown).length;
    const rows = () =>
      pieces.tokens.map((one, at) => [
        one.token,
        one.id,
        one.position,
        one.segment,
        one.of ? `${one.start}–${one.end}` : "",
        kind(one, at, pieces),
      ]);
    clear(
      results,
      facts([
        ["Pieces", pieces.tokens.length],
        ["Words", pieces.words.length],
        ["Split words", split.length],
        ["Unknown pieces", unknown],
      ]),
      h("h2", {}, "In the text"),
      strip(pieces),
      h(
        "p",
        { class: "soft small" },
        "A frame contains the pieces of one word, with their ids.",
        pair() && " A line below marks the second segment.",
      ),
      h("h2", {}, "One by one"),
      table(
        COLUMNS,
        rows().map(([token, ...rest]) => [h("span", { class: "mono" }, token), ...rest]),
        { caption: "Pieces" },
      ),
      tools("pieces", { csv: () => [COLUMNS.map((one) => one.text ?? one), ...rows()] }),
      calls(ctx, {
        path: "/explore/pieces",
        body: { text: given, pair: pair() },
        python: `${loading(ctx)}model.tokenizer.encode(${args.join(", ")})`,
        verb: "tokenize",
        given: [modelOf(ctx), given],
        options: [...(pair() ? ["--pair", pair()] : []), ...(isMasked ? ["--typed-mask"] : [])],
      }),
    );
    const words = `${split.length} ${split.length === 1 ? "word is" : "words are"}`;
    return `${counted(pieces.tokens.length, "piece")}; ${words} split.`;
  });
  root.append(
    h(
      "div",
      { class: "form" },
      textField(ctx, update),
      ctx.source.data
        ? pair() && textField(ctx, update, { key: "pair", label: "Second text" })
        : field(
            "Second text (optional)",
            line(
              ctx.get("pair"),
              later((value) => {
                ctx.set({ pair: value || null });
                update();
              }),
            ),
          ),
    ),
    ctx.status,
    results,
  );
  update();
}

function kind(one, at, { words }) {
  if (one.special) return "special";
  if (one.unknown) return "unknown";
  const { tokens, text: word } = words[one.word];
  return tokens.length > 1 ? `${tokens.indexOf(at) + 1} of ${tokens.length} of “${word}”` : "word";
}

// Pieces side by side, those of a word in one frame.
function strip(pieces) {
  const frames = [];
  for (const [at, one] of pieces.tokens.entries()) {
    const same = at > 0 && one.word !== null && pieces.tokens[at - 1].word === one.word;
    if (same) frames.at(-1).push(one);
    else frames.push([one]);
  }
  return h(
    "div",
    { class: "strip" },
    frames.map((frame) =>
      h(
        "span",
        { class: frame[0].special ? "special" : frame[0].unknown ? "unknown" : null },
        frame.map((one) =>
          h(
            "span",
            { class: one.segment ? "b" : null },
            h("span", { class: "mono" }, one.token),
            h("span", { class: "soft" }, one.id),
          ),
        ),
      ),
    ),
  );
}
