// A blank predicted from its left side, and from both sides.
import { explorerCallExamples } from "../calls.js";
import { blankBars, describeEntropy, describeOriginal, nameBlank } from "../predictions.js";
import { NO_BLANK, textForm } from "../text-form.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatPercent, formatToken } from "../ui/format.js";
import { sliceText } from "../ui/strings.js";

export function show(root, ctx) {
  const results = h("div", {});
  const update = ctx.createUpdate(async (signal) => {
    const { text, pieces, maskedWords, hasBlank } = await form.read(signal);
    if (!hasBlank && !ctx.model.causal) {
      replaceContent(results);
      return NO_BLANK;
    }
    const body = { text, words: maskedWords, layers: false, left: true };
    const { blanks } = await ctx.request("fill", body, signal);
    const hasMany = blanks.length > 1;
    replaceContent(
      results,
      blanks.map((blank, index) => [
        hasMany && h("h2", {}, nameBlank(index, hasMany), describeOriginal(blank)),
        sideCards(text, pieces.words[blank.word], blank),
      ]),
      ctx.model.causal &&
        h("p", { class: "notice" }, "This model is causal: it reads only from left to right."),
      ctx.source.data ? null : explorerCallExamples(ctx, "fill", body),
    );
    return blanks.map(describeBlank).join(" ");
  });
  const form = textForm(ctx, update, { readsMasks: true, isSingle: true });
  root.append(form.element, ctx.status, results);
  update();
}

// The word of a blank; without one, the blank is after the text.
function sideCards(text, word, { left, both }) {
  const leftText = word ? sliceText(text, 0, word.start) : [text, " "];
  const rightText = word ? sliceText(text, word.end) : null;
  return h(
    "div",
    { class: "cards" },
    sideCard("Left side only", [leftText, gap()], left),
    both && sideCard("Both sides", [leftText, gap(), rightText], both),
  );
}

const gap = () => h("mark", {}, "\u2003?\u2003");

const sideCard = (title, context, answer) =>
  h(
    "section",
    { class: "card" },
    h("h3", {}, title),
    h("p", { class: "passage" }, context),
    blankBars(answer, { caption: title }),
    h(
      "p",
      { class: "soft small" },
      describeEntropy(answer.entropy),
      answer.how && ` Note: ${answer.how}.`,
    ),
  );

function describeBlank({ left, both }) {
  if (!both) return `From the left: “${formatToken(left.top[0].token)}”.`;
  const { original } = both;
  if (!original) {
    const [leftToken, bothToken] = [left, both].map(({ top }) => formatToken(top[0].token));
    return `From the left: “${leftToken}”. From both sides: “${bothToken}”.`;
  }
  return (
    `Probability of “${formatToken(original.token)}”: ` +
    `${formatPercent(left.original.probability)} from the left, ` +
    `${formatPercent(original.probability)} from both sides.`
  );
}
