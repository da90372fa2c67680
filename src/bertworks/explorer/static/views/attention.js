import { explorerCall } from "../calls.js";
import {
  button,
  capital,
  check,
  choice,
  clear,
  counted,
  field,
  fixed,
  h,
  percent,
  redrawKeeping,
  select,
  signed,
  table,
} from "../dom.js";
import { tools } from "../export.js";
import { amount, asTarget, change, predicted, subject, unpredicted, watched } from "../parts.js";
import { KeyNeeded } from "../source.js";
import claims from "./attention-claim.js";
import { headHeat, headName, lines, maps, matrix, overview, press } from "./attention-maps.js";

export default {
  id: "attention",
  title: "Attention",
  group: "Inside the network",
  uses: "attention",
  inFile: true,
  about:
    "Which words each head attends to, how much each head matters, " +
    "and tests of claims about heads.",
  show,
};

const MEASURES = {
  distance: ["Distance", "Mean distance to the attended pieces, in pieces.", fixed],
  entropy: ["Entropy", "How widely attention is spread, in bits.", fixed],
  separator: [
    "Share on [SEP]",
    "Mean share of attention on separators. A head with nothing to do often attends to them " +
      "(Clark et al. 2019).",
    percent,
  ],
  first: [
    "Share on the first piece",
    "Mean share of attention on [CLS], or whichever piece is first.",
    percent,
  ],
  self: ["Share on itself", "Mean share of attention on the piece itself.", percent],
  previous: [
    "Share on the previous piece",
    "Mean share of attention on the previous piece.",
    percent,
  ],
  next: ["Share on the next piece", "Mean share of attention on the next piece.", percent],
};

function show(root, ctx) {
  const options = () => ({
    merge: ctx.get("merge") === "1",
    hide: ctx.get("hide") === "1",
    mean: ctx.get("mean") === "1",
  });
  const head = () => [ctx.number("layer", 0), ctx.number("head", 0)];
  const off = () =>
    ctx.get("off")
      ? ctx
          .get("off")
          .split(",")
          .map((one) => one.split("-").map(Number))
      : [];
  const [grid, large, filter, measure, effect, claim, call] = Array.from({ length: 7 }, () =>
    h("div", {}),
  );
  const isFile = Boolean(ctx.source.data);
  let [all, answer, base, body, ranking, why] = [];

  const update = ctx.updating(async (signal) => {
    const given = await asked.read(signal);
    ({ body } = given);
    const found = await ctx.ask("attention", { ...body, off: isFile ? [] : off() }, signal);
    const none = unpredicted(ctx, given);
    const watch = none
      ? { why: none }
      : await ctx.ask("predict", body, signal).catch((error) => {
          if (error.name === "AbortError" || error instanceof KeyNeeded) throw error;
          return { why: capital(error.message) }; // attention is shown without a prediction, too
        });
    [answer, all, base, ranking, why] = [
      found,
      maps(found),
      watch?.prediction ?? null,
      null,
      watch?.why,
    ];
    draw();
    if (!isFile) clear(call, explorerCall(ctx, "attention", { ...body, off: off() }));
    const size = `${counted(all.layers, "layer")} with ${counted(all.heads, "head")}`;
    const count = counted(answer.pieces.tokens.length, "piece");
    return `${size}${all.layers > 1 ? " each" : ""}, ${count}.`;
  });

  function pick(layer, at, { from, to } = {}) {
    ctx.set({ layer, head: at, ...(from !== undefined && { from, to }) });
    press(grid, layer, options().mean ? 0 : at, options().mean ? 1 : all.heads);
    drawLarge();
    drawEffect();
  }

  function draw() {
    const [layer, at] = head();
    if (layer >= all.layers || at >= all.heads) ctx.set({ layer: 0, head: 0 });
    clear(grid, h("h2", {}, "All heads"), overview(all, options(), head(), pick));
    drawLarge();
    drawFilter();
    drawMeasure();
    drawEffect();
  }

  function drawLarge() {
    const [layer, at] = head();
    const map = all.of(layer, at, options());
    const name = options().mean ? `Layer ${layer + 1}, mean over its heads` : headName(layer, at);
    const place = (key) => {
      const value = ctx.number(key, -1);
      return value < map.count ? value : -1;
    };
    const keep = (side, word) => {
      ctx.set({ [side]: ctx.number(side, -1) === word ? null : word });
      drawLarge();
      drawFilter();
      large.querySelectorAll(`.tokens.${side} button`)[word]?.focus();
    };
    redrawKeeping(
      large,
      h("h2", {}, name),
      choice(
        "Display",
        [
          ["lines", "Lines"],
          ["matrix", "Matrix"],
        ],
        ctx.get("as", "lines"),
        (as) => {
          ctx.set({ as });
          drawLarge();
        },
      ),
      ctx.get("as", "lines") === "lines"
        ? lines(map, `${name}: lines between words`, "attention-lines", {
            from: place("from"),
            to: place("to"),
            onsay: keep,
          })
        : matrix(map, `${name}: matrix`, "attention-matrix", (row, column) => {
            ctx.set({ from: row, to: column });
            drawFilter();
          }),
    );
  }

  // From A to B: how much each head attends from one word to another.
  function drawFilter() {
    const names = all.of(0, 0, options()).names;
    const chosen = ["from", "to"].map((key) => ctx.get(key, ""));
    const list = (key, at) =>
      select(
        [["", "any word"], ...names.map((one, place) => [String(place), one])],
        chosen[at],
        (value) => {
          ctx.set({ [key]: value || null });
          drawLarge();
          drawFilter();
        },
      );
    const isPair = chosen.every((one) => one !== "" && Number(one) < names.length);
    const [i, j] = chosen.map(Number);
    redrawKeeping(
      filter,
      h("h2", {}, "From one word to another"),
      h("div", { class: "row end" }, field("From", list("from", 0)), field("To", list("to", 1))),
      isPair
        ? headHeat(
            Array.from({ length: all.layers }, (_, layer) =>
              Array.from({ length: all.heads }, (__, at) =>
                all.of(layer, at, { ...options(), mean: false }).value(i, j),
              ),
            ),
            {
              title: `From “${names[i]}” to “${names[j]}” in every head`,
              name: "attention-a-to-b",
              format: percent,
              max: 1,
              onpick: pick,
            },
          )
        : h(
            "p",
            { class: "soft small" },
            "Choose two words to see how much each head attends from the first to the second.",
          ),
    );
  }

  function drawMeasure() {
    const key = ctx.get("measure") in MEASURES ? ctx.get("measure") : "distance";
    const [name, caption, format] = MEASURES[key];
    redrawKeeping(
      measure,
      h("h2", {}, "What each head does"),
      field(
        "Measure",
        select(
          Object.entries(MEASURES).map(([one, [text]]) => [one, text]),
          key,
          (one) => {
            ctx.set({ measure: one });
            drawMeasure();
          },
        ),
      ),
      headHeat(answer.measures[key], {
        title: name,
        caption,
        name: `heads-${key}`,
        format,
        low: Math.min(...answer.measures[key].flat()) * 0.9,
        max: Math.max(...answer.measures[key].flat()),
        onpick: pick,
      }),
    );
  }

  const switchOff = ctx.updating(async (signal) => {
    drawEffect();
    if (!off().length) return "All heads are on.";
    const { prediction } = await ctx.ask(
      "predict",
      { ...body, target: asTarget(base.target), off: off() },
      signal,
    );
    drawEffect(prediction);
    const names = off().map(([layer, at]) => headName(layer, at).toLowerCase());
    const [value, before] = [prediction, base].map((one) => amount(base.target, one.probability));
    return `Without ${names.join("; ")}: ${value}, before ${before}.`;
  });
  const rank = ctx.updating(async (signal) => {
    ranking = await ctx.ask(
      "heads",
      { ...body, target: isFile ? null : asTarget(base.target) },
      signal,
    );
    drawEffect();
    const [first] = ranking.ranked;
    const name = headName(first.layer, first.head).toLowerCase();
    return `The head that matters most: ${name}, ${change(base.target, first.change)}.`;
  });
  let last = null;
  function drawEffect(prediction = null) {
    last = off().length ? (prediction ?? last) : null;
    const line = base ? null : why;
    if (line) {
      clear(effect, h("h2", {}, "Switch a head off"), h("p", { class: "notice" }, line));
      return;
    }
    const [layer, at] = head();
    const isOff = off().some(([l, k]) => l === layer && k === at);
    const toggle = (l, k) => {
      const rest = off().filter(([x, y]) => x !== l || y !== k);
      const changed = rest.length < off().length ? rest : isFile ? [[l, k]] : [...rest, [l, k]];
      ctx.set({ off: changed.map((one) => one.join("-")).join(",") || null });
      switchOff();
    };
    redrawKeeping(
      effect,
      h("h2", {}, "Switch a head off"),
      h("p", {}, `The prediction: ${watched(base)}.`),
      h(
        "div",
        { class: "row" },
        button(
          `${isOff ? "Switch on" : "Switch off"}: ${headName(layer, at).toLowerCase()}`,
          () => toggle(layer, at),
          { "aria-pressed": isOff, "data-key": "toggle" },
        ),
        off().length > 0 &&
          button(
            "Switch all on",
            () => {
              ctx.set({ off: null });
              switchOff();
            },
            {
              "data-key": "on",
            },
          ),
        !ranking && button("Rank all heads by their effect", rank, { "data-key": "rank" }),
      ),
      h(
        "div",
        { class: "cards apart" },
        h("section", { class: "card" }, h("h3", {}, "With all heads"), predicted(base)),
        last &&
          h(
            "section",
            { class: "card" },
            h(
              "h3",
              {},
              `Without ${off()
                .map(([l, k]) => headName(l, k).toLowerCase())
                .join("; ")}`,
            ),
            h(
              "p",
              {},
              `${watched(base)}: ${amount(base.target, last.probability)} ` +
                `(${change(base.target, last.probability - base.probability)})`,
            ),
            last.distribution.length > 0 && predicted(last),
          ),
      ),
      ranking && ranked(ranking, pick),
    );
  }

  const box = (key, label) =>
    check(label, ctx.get(key) === "1", (on) => {
      ctx.set({ [key]: on ? 1 : null, from: null, to: null });
      draw();
    });
  const asked = subject(
    ctx,
    () => {
      ctx.set({ off: null, from: null, to: null });
      update();
    },
    {
      pair: true,
    },
  );
  asked.node.append(
    h(
      "div",
      { class: "row", role: "group", "aria-label": "Display options" },
      box("merge", "Merge pieces into words"),
      box("hide", "Hide special tokens"),
      box("mean", "Mean over the heads of a layer"),
    ),
  );
  root.append(
    asked.node,
    ctx.status,
    h("div", { class: "beside" }, grid, large),
    filter,
    measure,
    effect,
    claim,
    call,
  );
  update().then(() => off().length && base && switchOff());
  if (!isFile)
    claims(claim, ctx, (layer, at) => {
      pick(layer, at);
      large.scrollIntoView();
    });
}

function ranked(ranking, pick) {
  const rows = ranking.ranked.slice(0, 10);
  return h(
    "div",
    { class: "cards apart" },
    headHeat(ranking.effects, {
      title: "Effect of switching each head off",
      name: "head-effects",
      format: (value) =>
        ranking.prediction.target.kind === "value" ? signed(value, 2) : signed(100 * value, 1),
      onpick: pick,
      // Blue is what falls, as where words are hidden.
      max: -Math.max(1e-9, ...ranking.effects.flat().map(Math.abs)),
      caption:
        "Change of the value, or of the probability in points, without the head. " +
        "Blue heads raise it, orange heads lower it.",
    }),
    h(
      "section",
      { class: "card" },
      h("h3", {}, "Heads that matter most"),
      table(
        ["Head", { text: "Without it", number: true }, { text: "Change", number: true }],
        rows.map((one) => [
          button(headName(one.layer, one.head), () => pick(one.layer, one.head), {
            class: "small",
          }),
          amount(ranking.prediction.target, one.probability),
          change(ranking.prediction.target, one.change),
        ]),
        { caption: "Heads by their effect" },
      ),
      tools("heads-by-effect", {
        csv: () => [
          ["layer", "head", "probability", "change"],
          ...ranking.ranked.map((one) => [
            one.layer + 1,
            one.head + 1,
            one.probability,
            one.change,
          ]),
        ],
      }),
    ),
  );
}
