import { explorerCall } from "../calls.js";
import { clear, h, percent } from "../dom.js";
import {
  answerOf,
  blankName,
  cut,
  guesses,
  NO_BLANK,
  shown,
  subject,
  sure,
  was,
} from "../parts.js";

export default {
  id: "next",
  title: "Next word, both ways",
  group: "Words in context",
  uses: "fill",
  inFile: true,
  about:
    "The same blank, predicted from the left context only, as a text generator does, " +
    "and from both sides, as BERT does.",
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
    const body = { text, words: chosen, layers: false, left: true };
    const answer = await ctx.ask("fill", body, signal);
    const many = answer.blanks.length > 1;
    clear(
      results,
      answer.blanks.map((blank, at) => [
        many && h("h2", {}, blankName(at, many), was(blank)),
        h(
          "div",
          { class: "cards" },
          card("Left side only", text, pieces, blank, blank.left, true),
          blank.both && card("Both sides", text, pieces, blank, blank.both, false),
        ),
      ]),
      ctx.model.causal &&
        h("p", { class: "notice" }, "This model is causal: it reads only from left to right."),
      isFile ? null : explorerCall(ctx, "fill", body),
    );
    return answer.blanks.map(said).join(" ");
  });
  const asked = subject(ctx, update, { fills: true, single: true });
  root.append(asked.node, ctx.status, results);
  update();
}

function card(title, text, pieces, blank, answer, isLeft) {
  const word = pieces.words[blank.word];
  const gap = h("mark", {}, "\u2003?\u2003");
  const context = word
    ? h(
        "p",
        { class: "passage" },
        cut(text, 0, word.start),
        gap,
        isLeft ? null : cut(text, word.end),
      )
    : h("p", { class: "passage" }, text, " ", gap);
  return h(
    "section",
    { class: "card" },
    h("h3", {}, title),
    context,
    guesses(answer, { caption: title }),
    h("p", { class: "soft small" }, sure(answer.entropy), answer.how && ` Note: ${answer.how}.`),
  );
}

function said(blank) {
  if (!blank.both) return `From the left: “${shown(answerOf(blank).top[0].token)}”.`;
  const hidden = blank.both.original;
  if (!hidden) {
    const [left, both] = [blank.left, blank.both].map((answer) => shown(answer.top[0].token));
    return `From the left: “${left}”. From both sides: “${both}”.`;
  }
  const [left, both] = [blank.left.original, hidden].map((piece) => percent(piece.probability));
  return `Probability of “${shown(hidden.token)}”: ${left} from the left, ${both} from both sides.`;
}
