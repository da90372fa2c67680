// A claim such as “this head finds the previous word”, tested over sentences against a fixed
// offset.
import { explorerCallExamples } from "../calls.js";
import { button, field, select, table, textArea } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatCount, formatPercent } from "../ui/format.js";
import { splitLines } from "../ui/strings.js";
import { headHeatmap, nameHead, nameHeadInText } from "./heads.js";

const CLAIMS = {
  previous: "the previous word",
  next: "the next word",
  first: "the first word",
  "same-word": "the same word elsewhere",
  links: "the word that I specify",
};
const LINKS_HINT =
  "After each sentence, write the pairs of words, counted from 1: “The dog barks | 3-2” " +
  "means that word 3 should attend to word 2.";
const TEXTS = [
  "The old man walked slowly along the river.",
  "She opened the door because the room was warm.",
  "In the morning the children went to school.",
  "Nobody knew where the letter had come from.",
  "The king and the queen ruled the country for many years.",
].join("\n");

// `onpick(layer, head)` is called when a head of the results is pressed.
export function claimTest(ctx, onpick) {
  const results = h("div", { "aria-live": "polite" });
  const status = h("p", { class: "status", role: "status" });
  const hint = h("p", { class: "soft small" });
  const sentences = textArea(ctx.get("texts", TEXTS), () => {}, { rows: 5 });
  const getClaim = () => ctx.get("claim", "previous");
  const updateHint = () => {
    hint.textContent = getClaim() === "links" ? LINKS_HINT : "";
  };
  const changeClaim = (claim) => {
    ctx.set({ claim });
    updateHint();
  };
  const test = ctx.createUpdate(async (signal) => {
    ctx.set({ texts: sentences.value === TEXTS ? null : sentences.value });
    const body = createRequest(getClaim(), sentences.value);
    const answer = await ctx.request("claim", body, signal);
    replaceContent(
      results,
      h("p", { class: "notice" }, describeResult(answer)),
      resultCards(answer, getClaim(), onpick),
      explorerCallExamples(ctx, "claim", body),
    );
    return "";
  }, status);
  updateHint();
  return [
    h("h2", {}, "Test a claim"),
    h(
      "p",
      { class: "soft" },
      "Does a head find, say, the previous word more often than counting one to the left does? " +
        "Test it on many sentences.",
    ),
    h(
      "div",
      { class: "form" },
      field("Each word attends most to", select(Object.entries(CLAIMS), getClaim(), changeClaim)),
      hint,
      field("Sentences, one per line", sentences),
      h("div", {}, button("Test it", test)),
    ),
    status,
    results,
  ];
}

function createRequest(claim, text) {
  const lines = splitLines(text).map((line) => line.split("|").map((part) => part.trim()));
  return {
    texts: lines.map(([sentence]) => sentence),
    claim,
    links: claim === "links" ? lines.map(([, pairs = ""]) => parsePairs(pairs)) : undefined,
  };
}

// "3-2, 4-1": words counted from 1, as numbers counted from 0.
const parsePairs = (text) =>
  text
    .split(/[\s,]+/)
    .filter(Boolean)
    .map((pair) => pair.split("-").map((word) => Number(word) - 1));

function describeResult({
  num_words: numWords,
  ranked: [best],
  num_heads_above_baseline: numHeads,
  baseline: { share, offset },
}) {
  const sign = offset > 0 ? "+" : "−";
  const comparison =
    best.score > share
      ? `${numHeads} ${numHeads === 1 ? "head beats" : "heads beat"} the fixed offset.`
      : "No head beats the fixed offset.";
  return (
    `Tested on ${formatCount(numWords, "word")}: ${nameHeadInText(best.layer, best.head)} ` +
    `is correct for ${formatPercent(best.score)}; the fixed offset ${sign}${Math.abs(offset)} ` +
    `is correct for ${formatPercent(share)}. ${comparison}`
  );
}

function resultCards({ scores, ranked, baseline }, claim, onpick) {
  return h(
    "div",
    { class: "cards" },
    headHeatmap(scores, {
      title: `Heads that attend most to ${CLAIMS[claim]}`,
      name: `claim-${claim}`,
      format: formatPercent,
      max: 1,
      onpick,
    }),
    h(
      "section",
      { class: "card" },
      h("h3", {}, "Best heads"),
      table(
        [
          "Head",
          { text: "Correct", number: true },
          { text: "Compared with the offset", number: true },
        ],
        ranked.map(({ layer, head, score }) => [
          button(nameHead(layer, head), () => onpick(layer, head), { class: "small" }),
          formatPercent(score),
          compareScore(score, baseline.share),
        ]),
        { caption: "Best heads" },
      ),
    ),
  );
}

function compareScore(score, baseline) {
  if (score === baseline) return "equal";
  return score > baseline ? "better" : "worse";
}
