import { explorerCall } from "../calls.js";
import { button, clear, field, h, line, percent, slider, table } from "../dom.js";
import { answerOf, blankName, guesses, shown, subject, sure, was } from "../parts.js";
import { lineChart } from "../pictures.js";

export default {
  id: "guess",
  title: "What a blank would be",
  group: "Words in context",
  uses: "fill",
  inFile: true,
  about:
    "Guess a masked word yourself, then see how the model’s prediction forms, layer by layer " +
    "and checkpoint by checkpoint.",
  show,
};

function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const steps = ctx.model.checkpoints ?? [];
  const input = line(ctx.get("guess"), () => {});
  let checkpoint = null;
  const update = ctx.updating(async (signal) => {
    const { text, body, hasBlank } = await asked.read(signal);
    reveal.disabled = !hasBlank && !ctx.model.causal;
    if (reveal.disabled || !ctx.get("shown")) {
      clear(results);
      return reveal.disabled ? "Press the word to guess." : "Type your guess, then press Reveal.";
    }
    const guess = ctx.get("guess").trim();
    const asking = {
      text,
      words: body.words,
      top_k: 10,
      layers: true,
      left: ctx.model.causal,
      candidates: isFile || !guess ? [] : [guess],
      checkpoint,
    };
    const answer = await ctx.ask("fill", asking, signal);
    const many = answer.blanks.length > 1;
    clear(
      results,
      answer.blanks.map((blank, at) => section(blank, blankName(at, many), guess)),
      steps.length > 1 &&
        h(
          "div",
          { class: "apart" },
          button("Compare all checkpoints", (event) => overSteps(event.target, asking)),
        ),
      isFile ? null : explorerCall(ctx, "fill", { ...asking, left: undefined, top_k: undefined }),
    );
    return verdict(answer.blanks[0], guess);
  });
  const asked = subject(
    ctx,
    () => {
      ctx.set({ shown: null });
      update();
    },
    {
      fills: true,
      single: true,
      hint: "Words; press the one to guess",
    },
  );
  const reveal = button(
    "Reveal",
    () => {
      ctx.set({ shown: 1, guess: input.value.trim() || null });
      update();
    },
    { class: "main", type: "submit" },
  );
  const form = h(
    "form",
    { class: "row end", onsubmit: (event) => event.preventDefault() },
    h("div", { class: "grow" }, field("Your guess", input)),
    reveal,
  );
  asked.node.append(form);
  if (steps.length) {
    const at = steps.indexOf(Number(ctx.get("checkpoint")));
    checkpoint = at < 0 ? null : steps[at];
    asked.node.append(
      slider(
        "Checkpoint",
        {
          min: 0,
          max: steps.length,
          value: at < 0 ? steps.length : at,
          text: (one) =>
            steps[one] === undefined ? "the model" : `step ${steps[one].toLocaleString("en")}`,
        },
        (one) => {
          checkpoint = steps[one] ?? null;
          ctx.set({ checkpoint });
          update();
        },
      ),
    );
  }
  // The same blank at each step, one after the other, so that the server stays free for others.
  async function overSteps(pressed, asking) {
    pressed.disabled = true;
    const found = [];
    try {
      for (const step of steps) {
        ctx.say(`Checkpoint ${found.length + 1} of ${steps.length} …`);
        const answer = await ctx.ask("fill", { ...asking, layers: false, checkpoint: step });
        found.push(answerOf(answer.blanks[0]));
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      ctx.say(error.message, true);
      return;
    }
    ctx.say("All checkpoints are done.");
    pressed.replaceWith(
      chart(
        "Probability by checkpoint",
        "checkpoints",
        steps.map(String),
        "checkpoint",
        found,
        asking.candidates[0],
      ),
    );
  }
  root.append(asked.node, ctx.status, results);
  update();
}

function section(blank, name, guess) {
  const found = answerOf(blank);
  return h(
    "section",
    {},
    h("h2", {}, name, was(blank)),
    h(
      "div",
      { class: "cards" },
      h(
        "div",
        { class: "card" },
        h("h3", {}, "The model’s prediction"),
        guesses(found, { caption: name }),
        h("p", { class: "soft small" }, sure(found.entropy)),
      ),
      blank.layers &&
        chart(
          "Probability by layer",
          "layers",
          blank.layers.map((_, at) => String(at)),
          "after layer",
          blank.layers,
          guess,
        ),
    ),
    blank.layers && [
      h("h3", { class: "apart" }, "Most probable at each layer"),
      table(
        ["After layer", "Most probable", { text: "Entropy, bits", number: true }],
        blank.layers.map((one, at) => [
          at === 0 ? "0 (embeddings)" : String(at),
          one.top
            .slice(0, 4)
            .map((piece) => `${shown(piece.token)} ${percent(piece.probability)}`)
            .join(" · "),
          one.entropy.toFixed(1),
        ]),
        { caption: `Most probable pieces for ${name} at each layer`, className: "fit" },
      ),
    ],
  );
}

function chart(title, name, x, xName, answers, guess) {
  const of = answers.map((one) => one.original ?? null);
  const series = [
    of.every(Boolean) && {
      name: `“${shown(of[0].token)}” (original)`,
      values: of.map((one) => one.probability),
      colour: "third",
    },
    guess &&
      answers.every((one) => one.candidates?.length) && {
        name: `“${guess}” (yours)`,
        values: answers.map((one) => one.candidates[0].probability),
        colour: "second",
      },
    {
      name: "most probable",
      values: answers.map((one) => one.top[0].probability),
      dashed: true,
      colour: "first",
    },
  ].filter(Boolean);
  return lineChart({
    title,
    name,
    x,
    xName,
    series,
    low: 0,
    format: percent,
    caption:
      name === "layers"
        ? "The prediction head applied to the hidden state after each layer; " +
          "layer 0 is the embeddings."
        : "One point for each checkpoint of the run.",
  });
}

function verdict(blank, guess) {
  const found = answerOf(blank);
  const top = found.top[0];
  const yours =
    found.candidates?.[0]?.probability ??
    found.top.find((one) => one.token === guess.toLowerCase())?.probability;
  const said = `The model predicts “${shown(top.token)}” with ${percent(top.probability)}.`;
  if (!guess) return said;
  return yours === undefined
    ? `${said} Your “${guess}” is not among its top ${found.top.length}.`
    : `${said} It gives your “${guess}” ${percent(yours)}.`;
}
