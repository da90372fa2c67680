// What several views have: the text, its words as buttons, a blank's guesses.
import { modelOf } from "./calls.js";
import {
  area,
  button,
  clear,
  field,
  fixed,
  h,
  later,
  line,
  percent,
  points,
  roving,
  signed,
} from "./dom.js";
import { example, SENTENCE } from "./examples.js";
import { bars } from "./pictures.js";

// Offsets count code points; JavaScript's strings do not.
export const cut = (text, start, end) => [...text].slice(start, end).join("");

// A text that a view is about; in a file it cannot be changed.
export function textField(
  ctx,
  onchange,
  { key = "text", label = "Text", fallback = example(ctx.model)[key] ?? "", single = false } = {},
) {
  if (ctx.source.data)
    return h(
      "div",
      { class: "field" },
      h("span", { class: "soft small" }, label),
      h("p", { class: "passage" }, text(ctx, key)),
    );
  const make = single ? line : area;
  return field(
    label,
    make(
      ctx.get(key, fallback),
      later((value) => {
        ctx.set({ [key]: value });
        onchange();
      }, 300),
    ),
  );
}

// What most views ask about: a text, perhaps a second one, and words of them that are hidden.
// In a file, `fills` has each word masked once; other views have one masked word, or none.
export function subject(
  ctx,
  changed,
  {
    pair = false,
    fills = false,
    masked = fills || !ctx.source.data,
    single = false,
    hide: hides = true,
    hint = "Words; press one to mask it",
  } = {},
) {
  const words = h("div", {});
  const { data } = ctx.source;
  const hide = hides && Boolean(ctx.model.mask) && (!data || fills || Boolean(data.masked));
  const isOne = hide && data && !fills; // the file has one masked word
  let [pieces, key] = [null, null];
  const edited = () => {
    ctx.set({ words: null });
    changed();
  };
  // Of the sentence that is there at first, a word is hidden, so that there is something to see.
  const first = () => {
    if (!masked || ctx.get("text", null) !== null) return "";
    return data ? String(data.masked?.word ?? "") : String(SENTENCE.word);
  };
  const isMask = (word) =>
    word.text === ctx.model.mask || (isOne && word.number !== data.masked.word);
  async function read(signal) {
    const given = { text: text(ctx), pair: pair ? text(ctx, "pair") || null : null };
    if (!given.text.trim()) throw new Error("Enter a text.");
    if (JSON.stringify(given) !== key) {
      pieces = (await ctx.ask("pieces", given, signal)).pieces;
      key = JSON.stringify(given);
    }
    let chosen = hide
      ? numbers(ctx.get("words", first())).filter(
          (one) => one < pieces.words.length && !isMask(pieces.words[one]),
        )
      : [];
    if (hide)
      redraw(
        words,
        wordButtons(pieces, {
          pressed: chosen,
          label: hint,
          disabled: isMask,
          onclick: (word) => {
            chosen = chosen.includes(word)
              ? chosen.filter((one) => one !== word)
              : single
                ? [word]
                : [...chosen, word];
            ctx.set({ words: chosen.sort((a, b) => a - b).join(",") });
            changed();
          },
        }),
      );
    return {
      ...given,
      pieces,
      chosen,
      body: { ...given, words: chosen },
      hasBlank: chosen.length > 0 || pieces.words.some((word) => word.text === ctx.model.mask),
    };
  }
  return {
    read,
    node: h(
      "div",
      { class: "form" },
      textField(ctx, edited),
      pair &&
        (ctx.source.data
          ? ctx.source.data.pair !== null &&
            textField(ctx, edited, { key: "pair", label: "Second text" })
          : textField(ctx, edited, { key: "pair", label: "Second text (optional)", single: true })),
      words,
      isOne &&
        h(
          "p",
          { class: "soft small" },
          `Press “${maskedWord(data)}” to mask it. ` +
            `Any other word: bertworks serve ${modelOf(ctx)}.`,
        ),
    ),
  };
}

export const text = (ctx, key = "text") =>
  ctx.source.data ? (ctx.source.data[key] ?? "") : ctx.get(key, example(ctx.model)[key] ?? "");
const maskedWord = (data) => data.pieces.words[data.masked.word].text;

export const NO_BLANK = "Press a word to mask it: this text has no blank.";

// Why a model predicts nothing for a text; null if it predicts something.
export function unpredicted(ctx, { hasBlank, pair }) {
  const { data } = ctx.source;
  if (ctx.lacks("predict")) return ctx.lacks("predict");
  if (ctx.model.mask && !hasBlank && !(pair && ctx.lacks("next-sentence") === null)) {
    if (!data) return NO_BLANK;
    return data.masked
      ? `Press “${maskedWord(data)}” to mask it: this text has no blank.`
      : `This text has no blank. Write ${ctx.model.mask} in it, and run bertworks explain again.`;
  }
  if (ctx.lacks("answer") === null && !pair) {
    const advice = data ? "Give it with --pair" : "Enter it as the second text";
    return `The answer is a part of a passage. ${advice}.`;
  }
  return null;
}

export const numbers = (value) => (value ? value.split(",").map(Number) : []);
export const linesOf = (value) =>
  value
    .split("\n")
    .map((one) => one.trim())
    .filter(Boolean);

// The words of a text as buttons, of which some are pressed; what is between them stays.
export function wordButtons(pieces, { pressed = [], onclick, label, disabled = () => false }) {
  const group = h(
    "div",
    { class: "words", role: "group", "aria-label": label },
    pieces.words.map((word) =>
      disabled(word)
        ? h("span", { class: "plain" }, word.text)
        : button(word.text, () => onclick(word.number), {
            "aria-pressed": pressed.includes(word.number),
            "data-word": word.number,
          }),
    ),
  );
  return group.querySelector("button") ? roving(group) : group;
}

// Replace an element's content and keep the keyboard where it was.
export function redraw(holder, ...children) {
  const word = holder.contains(document.activeElement) ? document.activeElement.dataset.word : null;
  clear(holder, children);
  if (word !== null && word !== undefined) holder.querySelector(`[data-word="${word}"]`)?.focus();
}

export const shown = (token) => token.replace(/^##/, "·").replace(/^[Ġ▁]/, "");

// Predictions for a blank: the most probable pieces, and the original if it is known.
export function guesses(answer, { most = 10, caption } = {}) {
  const { top, original } = answer;
  const items = top.slice(0, most).map((one) => ({
    text: shown(one.token),
    value: one.probability,
    known: one.id === original?.id,
  }));
  if (original && !items.some((one) => one.known))
    items.push({
      text: shown(original.token),
      value: original.probability,
      known: true,
      note: `(rank ${original.rank})`,
    });
  return bars(items, { caption, mark: "the original" });
}

export function sure(bits) {
  const count = 2 ** bits;
  const many = count < 9.5 ? count.toFixed(1) : Math.round(count).toLocaleString("en");
  return (
    `Entropy ${bits.toFixed(1)} bits: ` +
    `as uncertain as a choice among ${many} equally probable pieces.`
  );
}

export const answerOf = (blank) => blank.both ?? blank.left;
export const was = (blank) =>
  answerOf(blank).original ? ` · was “${shown(answerOf(blank).original.token)}”` : "";
export const blankName = (at, many) => (many ? `Blank ${at + 1}` : "The blank");

export const facts = (items) =>
  h(
    "dl",
    { class: "figures" },
    items.map(([name, value, note]) =>
      h(
        "div",
        {},
        h("dt", {}, name),
        h("dd", {}, value, note && h("span", { class: "note" }, note)),
      ),
    ),
  );

// A prediction: what is watched, and what else there is.
export function predicted({ target, probability, distribution }) {
  if (!distribution.length) return facts([["Predicted", amount(target, probability), target.name]]);
  return bars(
    distribution.map((one) => ({
      text: shown(one.name),
      value: one.probability,
      known: one.name === target.name,
    })),
    { caption: "Prediction", head: "Prediction" },
  );
}

// A target as it is asked for: the server's echo says more.
const ASKED = {
  blank: ["blank", "token"],
  next: ["token"],
  label: ["label"],
  tag: ["word", "tag"],
  answer: ["start", "end"],
  replaced: ["position"],
};
export const asTarget = (target) =>
  Object.fromEntries(["kind", ...(ASKED[target.kind] ?? [])].map((key) => [key, target[key]]));

export const KINDS = {
  blank: "the blank",
  next: "the next piece",
  "next-sentence": "whether the second text follows",
  label: "the label",
  value: "the value",
  tag: "the tag",
  answer: "the answer",
  replaced: "whether the piece was replaced",
};
export function watched({ target: { kind, name } }) {
  return `${KINDS[kind] ?? kind}${kind === "value" ? "" : ` “${shown(name)}”`}`;
}

// Of a regression a value is watched, of all others a probability.
export const amount = ({ kind }, value) => (kind === "value" ? fixed(value, 3) : percent(value));
export const change = ({ kind }, value) => (kind === "value" ? signed(value) : points(value));
