// The text that a view is about: its field, a second one, and its words as buttons that mask them.
import { getModelSource } from "./calls.js";
import { SENTENCE } from "./examples.js";
import { readText, textField } from "./fields.js";
import { addArrowKeys, button } from "./ui/controls.js";
import { h, replaceKeepingFocus } from "./ui/dom.js";

export const NO_BLANK = "Press a word to mask it: this text has no blank.";

// The form of most views: a text, perhaps a second one, and words that are masked.
// `hasPair`: whether there is a second text, if the model takes one; `hasWords`: whether words can
// be masked, if the model has a mask; `isSingle`: at most one; `startsMasked`: a word of the first
// example is masked.
// In a file, `readsMasks` means that each word is there masked once; without it one word is, or
// none.
// Returns { element, read }; `read(signal)` is called before each request.
export function textForm(
  ctx,
  onchange,
  {
    hasPair = false,
    readsMasks = false,
    startsMasked = readsMasks || !ctx.source.data,
    isSingle = false,
    hasWords = true,
    hint = "Words; press one to mask it",
  } = {},
) {
  const { data } = ctx.source;
  const canMask =
    hasWords && Boolean(ctx.model.mask) && (!data || readsMasks || Boolean(data.masked));
  const takesPair = hasPair && ctx.model.second_text;
  const hasOneMask = canMask && data && !readsMasks;
  const wordsHolder = h("div", {});
  const fetchPieces = createPiecesCache(ctx);

  const changeText = () => {
    ctx.set({ words: null });
    onchange();
  };

  // The first example has a masked word, so that there is something to see.
  function getInitialWords() {
    if (!startsMasked || ctx.get("text", null) !== null) return "";
    return data ? String(data.masked?.word ?? "") : String(SENTENCE.word);
  }

  const isFixed = (word) =>
    word.text === ctx.model.mask || (hasOneMask && word.number !== data.masked.word);

  function readMaskedWords(pieces) {
    if (!canMask) return [];
    const numbers = parseNumbers(ctx.get("words", getInitialWords()));
    return numbers.filter(
      (number) => number < pieces.words.length && !isFixed(pieces.words[number]),
    );
  }

  function drawWords(pieces, maskedWords) {
    let numbers = maskedWords;
    const press = (number) => {
      if (numbers.includes(number)) numbers = numbers.filter((other) => other !== number);
      else numbers = isSingle ? [number] : [...numbers, number];
      ctx.set({ words: numbers.sort((a, b) => a - b).join(",") });
      onchange();
    };
    replaceKeepingFocus(
      wordsHolder,
      wordButtons(pieces, { pressedNumbers: numbers, label: hint, isFixed, onclick: press }),
    );
  }

  async function read(signal) {
    const pair = (takesPair && readText(ctx, "pair")) || null;
    const texts = { text: readText(ctx), pair };
    if (!texts.text.trim()) throw new Error("Enter a text.");
    const pieces = await fetchPieces(texts, signal);
    const maskedWords = readMaskedWords(pieces);
    if (canMask) drawWords(pieces, maskedWords);
    return {
      ...texts,
      pieces,
      maskedWords,
      body: { ...texts, words: maskedWords },
      hasBlank: maskedWords.length > 0 || pieces.words.some(({ text }) => text === ctx.model.mask),
    };
  }

  const element = h(
    "div",
    { class: "form" },
    textField(ctx, changeText),
    takesPair && pairField(ctx, changeText),
    wordsHolder,
    hasOneMask &&
      h(
        "p",
        { class: "soft small" },
        `Press “${getMaskedText(data)}” to mask it. ` +
          `Any other word: bertworks serve ${getModelSource(ctx)}.`,
      ),
  );
  return { element, read };
}

function pairField(ctx, onchange) {
  const { data } = ctx.source;
  if (data)
    return data.pair !== null && textField(ctx, onchange, { key: "pair", label: "Second text" });
  return textField(ctx, onchange, {
    key: "pair",
    label: "Second text (optional)",
    rows: 1,
  });
}

// The pieces of the last texts are kept.
function createPiecesCache(ctx) {
  let [cachedKey, pieces] = [null, null];
  return async (texts, signal) => {
    const key = JSON.stringify(texts);
    if (key !== cachedKey) {
      ({ pieces } = await ctx.request("pieces", texts, signal));
      cachedKey = key;
    }
    return pieces;
  };
}

// The words of a text as buttons, of which some are pressed; `isFixed(word)` makes a word no
// button.
function wordButtons(pieces, { pressedNumbers, onclick, label, isFixed }) {
  const group = h(
    "div",
    { class: "words", role: "group", "aria-label": label },
    pieces.words.map((word) =>
      isFixed(word)
        ? h("span", { class: "plain" }, word.text)
        : button(word.text, () => onclick(word.number), {
            "aria-pressed": pressedNumbers.includes(word.number),
            "data-key": `word-${word.number}`,
          }),
    ),
  );
  return group.querySelector("button") ? addArrowKeys(group) : group;
}

// Why a model predicts nothing for a text; null if it predicts something.
export function explainNoPrediction(ctx, { hasBlank, pair }) {
  const { data } = ctx.source;
  const { mask } = ctx.model;
  const missing = ctx.explainMissing("predict");
  if (missing) return missing;
  const predictsPair = pair && ctx.explainMissing("next-sentence") === null;
  if (mask && !hasBlank && !predictsPair) {
    if (!data) return NO_BLANK;
    return data.masked
      ? `Press “${getMaskedText(data)}” to mask it: this text has no blank.`
      : `This text has no blank. Write ${mask} in it, and run bertworks explain again.`;
  }
  if (ctx.explainMissing("answer") === null && !pair) {
    const advice = data ? "Give it with --pair" : "Enter it as the second text";
    return `The answer is a part of a passage. ${advice}.`;
  }
  return null;
}

const getMaskedText = (data) => data.pieces.words[data.masked.word].text;

const parseNumbers = (text) => (text ? text.split(",").map(Number) : []);
