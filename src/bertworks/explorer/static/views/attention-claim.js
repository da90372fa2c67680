// A claim such as “this head finds the previous word”, tested over sentences against a fixed
// offset.

import { explorerCall } from "../calls.js";
import { area, button, clear, counted, field, h, percent, select, table } from "../dom.js";
import { linesOf } from "../parts.js";
import { headHeat, headName } from "./attention-maps.js";

const CLAIMS = {
  previous: "the previous word",
  next: "the next word",
  first: "the first word",
  "same-word": "the same word elsewhere",
  links: "the word that I specify",
};
const TEXTS = [
  "The old man walked slowly along the river.",
  "She opened the door because the room was warm.",
  "In the morning the children went to school.",
  "Nobody knew where the letter had come from.",
  "The king and the queen ruled the country for many years.",
].join("\n");

export default function claims(root, ctx, pick) {
  const results = h("div", { "aria-live": "polite" });
  const status = h("p", { class: "status", role: "status" });
  const explain = h("p", { class: "soft small" });
  const sentences = area(ctx.get("texts", TEXTS), () => {}, { rows: 5 });
  const kind = () => ctx.get("claim", "previous");
  const note = () =>
    (explain.textContent =
      kind() === "links"
        ? "After each sentence, write the pairs of words, counted from 1: “The dog barks | 3-2” " +
          "means that word 3 should attend to word 2."
        : "");
  note();
  const run = ctx.updating(async (signal) => {
    ctx.set({ texts: sentences.value === TEXTS ? null : sentences.value });
    const parted = linesOf(sentences.value).map((one) => one.split("|").map((part) => part.trim()));
    const links =
      kind() === "links"
        ? parted.map(([, pairs = ""]) =>
            pairs
              .split(/[\s,]+/)
              .filter(Boolean)
              .map((pair) => pair.split("-").map((word) => Number(word) - 1)),
          )
        : undefined;
    const body = { texts: parted.map(([text]) => text), claim: kind(), links };
    const found = await ctx.ask("claim", body, signal);
    const best = found.ranked[0];
    const { share, offset } = found.baseline;
    const holds = best.score > share;
    const name = headName(best.layer, best.head).toLowerCase();
    const verdict =
      `Tested on ${counted(found.words, "word")}: ${name} is correct for ${percent(best.score)}; ` +
      `the fixed offset ${offset > 0 ? "+" : "−"}${Math.abs(offset)} is correct for ` +
      `${percent(share)}. ` +
      (holds
        ? `${found.beats} ${found.beats === 1 ? "head beats" : "heads beat"} the fixed offset.`
        : "No head beats the fixed offset.");
    clear(
      results,
      h("p", { class: "notice" }, verdict),
      h(
        "div",
        { class: "cards" },
        headHeat(found.scores, {
          title: `Heads that attend most to ${CLAIMS[kind()]}`,
          name: `claim-${kind()}`,
          format: percent,
          max: 1,
          onpick: pick,
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
            found.ranked.map((one) => [
              button(headName(one.layer, one.head), () => pick(one.layer, one.head), {
                class: "small",
              }),
              percent(one.score),
              one.score > found.baseline.share
                ? "better"
                : one.score === found.baseline.share
                  ? "equal"
                  : "worse",
            ]),
            { caption: "Best heads" },
          ),
        ),
      ),
      explorerCall(ctx, "claim", body),
    );
    return "";
  }, status);
  root.append(
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
      field(
        "Each word attends most to",
        select(Object.entries(CLAIMS), kind(), (claim) => {
          ctx.set({ claim });
          note();
        }),
      ),
      explain,
      field("Sentences, one per line", sentences),
      h("div", {}, button("Test it", run)),
    ),
    status,
    results,
  );
}
