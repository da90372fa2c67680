// The same blanks in another model, whose mask may have another name and whose words may have
// other borders: words are found by their characters.
import { sliceText } from "./ui/strings.js";

// The answer of `fill`, with a note if the other model masks more than the same characters.
export async function requestOtherModel(ctx, model, pieces, body, signal) {
  if (!model.views)
    Object.assign(model, await ctx.source.fetchModel(model.name), { default: model.default });
  const mask = ctx.model.mask;
  const otherMask = model.mask ?? mask;
  const text = body.text.replaceAll(mask, otherMask);
  const request = { model: model.name, text };
  if (!body.words.length) return ctx.source.request("fill", { ...body, ...request }, signal);

  const otherPieces = (await ctx.source.request("pieces", request, signal)).pieces;
  const matches = body.words.map((number) => {
    const word = pieces.words[number];
    const [start, end] = [word.start, word.end].map((offset) =>
      moveOffset(body.text, offset, mask, otherMask),
    );
    return { start, end, words: findWords(model, otherPieces, word, start, end) };
  });
  const numbers = new Set(matches.flatMap(({ words }) => words.map((word) => word.number)));
  const words = [...numbers].sort((a, b) => a - b);
  const answer = await ctx.source.request("fill", { ...body, ...request, words }, signal);
  return { ...answer, note: describeWiderWords(text, matches) };
}

// An offset in the text with the other model's masks.
function moveOffset(text, offset, mask, otherMask) {
  const numMasks = sliceText(text, 0, offset).split(mask).length - 1;
  return offset + numMasks * ([...otherMask].length - [...mask].length);
}

function findWords(model, pieces, { text }, start, end) {
  const words = pieces.words.filter((word) => word.start < end && word.end > start);
  if (!words.length) throw new Error(`${model.name} has no pieces for “${text}”.`);
  return words;
}

function describeWiderWords(text, matches) {
  const isWider = ({ start, end, words }) => words[0].start !== start || words.at(-1).end !== end;
  const texts = matches
    .filter(isWider)
    .map(({ words }) => `“${sliceText(text, words[0].start, words.at(-1).end)}”`);
  if (!texts.length) return null;
  return `Its words have other borders: it masks ${[...new Set(texts)].join(", ")}.`;
}
