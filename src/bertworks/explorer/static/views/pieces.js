// How the tokenizer splits a text.
import { callExamples, formatLoading, formatPython, getModelSource } from "../calls.js";
import { saveButtons } from "../export.js";
import { inputField, readText, textField } from "../fields.js";
import { facts } from "../predictions.js";
import { table } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatCount } from "../ui/format.js";

const COLUMNS = [
  "Piece",
  { text: "Id", number: true },
  { text: "Position", number: true },
  { text: "Segment", number: true },
  "Characters",
  "Kind",
];

export function show(root, ctx) {
  const results = h("div", {});
  const { data } = ctx.source;
  const readPair = () => (data ? data.pair : ctx.get("pair")) || null;
  const update = ctx.createUpdate(async (signal) => {
    const [text, pair] = [readText(ctx), readPair()];
    const { pieces } = await ctx.request("pieces", { text, pair }, signal);
    const splitWords = pieces.words.filter(({ tokens }) => tokens.length > 1);
    replaceContent(
      results,
      facts([
        ["Pieces", pieces.tokens.length],
        ["Words", pieces.words.length],
        ["Split words", splitWords.length],
        ["Unknown pieces", pieces.tokens.filter(({ unknown }) => unknown).length],
      ]),
      h("h2", {}, "In the text"),
      wordFrames(pieces),
      h(
        "p",
        { class: "soft small" },
        "A frame contains the pieces of one word, with their ids.",
        pair && " A line below marks the second segment.",
      ),
      h("h2", {}, "One by one"),
      pieceTable(pieces),
      tokenizeExamples(ctx, text, pair),
    );
    const subject = `${splitWords.length} ${splitWords.length === 1 ? "word is" : "words are"}`;
    return `${formatCount(pieces.tokens.length, "piece")}; ${subject} split.`;
  });
  const pairField = data
    ? data.pair && textField(ctx, update, { key: "pair", label: "Second text" })
    : inputField(ctx, update, { key: "pair", label: "Second text (optional)" });
  root.append(h("div", { class: "form" }, textField(ctx, update), pairField), ctx.status, results);
  update();
}

// Pieces side by side, those of a word in one frame.
function wordFrames({ tokens }) {
  const frames = [];
  for (const [position, token] of tokens.entries()) {
    const isSameWord =
      position > 0 && token.word !== null && tokens[position - 1].word === token.word;
    if (isSameWord) frames.at(-1).push(token);
    else frames.push([token]);
  }
  return h(
    "div",
    { class: "strip" },
    frames.map((frame) => h("span", { class: getFrameClass(frame) }, frame.map(framedPiece))),
  );
}

function getFrameClass([first]) {
  if (first.special) return "special";
  return first.unknown ? "unknown" : null;
}

const framedPiece = ({ token, id, segment }) =>
  h(
    "span",
    { class: segment ? "b" : null },
    h("span", { class: "mono" }, token),
    h("span", { class: "soft" }, id),
  );

function pieceTable(pieces) {
  const rows = pieces.tokens.map((token, position) => [
    token.token,
    token.id,
    token.position,
    token.segment,
    token.field ? `${token.start}–${token.end}` : "",
    describeKind(token, position, pieces.words),
  ]);
  const csv = () => [COLUMNS.map((column) => column.text ?? column), ...rows];
  return [
    table(
      COLUMNS,
      rows.map(([piece, ...cells]) => [h("span", { class: "mono" }, piece), ...cells]),
      { caption: "Pieces" },
    ),
    saveButtons("pieces", { csv }),
  ];
}

function describeKind(token, position, words) {
  if (token.special) return "special";
  if (token.unknown) return "unknown";
  const { tokens, text } = words[token.word];
  return tokens.length > 1
    ? `${tokens.indexOf(position) + 1} of ${tokens.length} of “${text}”`
    : "word";
}

function tokenizeExamples(ctx, text, pair) {
  const { mask } = ctx.model;
  const hasMask = mask && `${text} ${pair ?? ""}`.includes(mask);
  const args = [formatPython(text)];
  if (pair) args.push(formatPython(pair));
  if (hasMask) args.push("typed_mask=True");
  return callExamples(ctx, {
    path: "/explore/pieces",
    body: { text, pair },
    python: `${formatLoading(ctx)}model.tokenizer.encode(${args.join(", ")})`,
    verb: "tokenize",
    args: [getModelSource(ctx), text],
    options: [...(pair ? ["--pair", pair] : []), ...(hasMask ? ["--typed-mask"] : [])],
  });
}
