// Heads switched off: what the model predicts without them, and which matter most.
import { saveButtons } from "../export.js";
import { predictionBars } from "../predictions.js";
import {
  describeTarget,
  formatTargetChange,
  formatTargetValue,
  isNumber,
  toRequestTarget,
} from "../targets.js";
import { button, table } from "../ui/controls.js";
import { h, replaceContent, replaceKeepingFocus } from "../ui/dom.js";
import { formatSigned } from "../ui/format.js";
import { headHeatmap, nameHead, nameHeadInText } from "./heads.js";

const MAX_ROWS = 10;

// The heads of a link that are switched off: "0-3,1-2".
export function parseHeads(text) {
  return text ? text.split(",").map((head) => head.split("-").map(Number)) : [];
}

const formatHeads = (heads) => heads.map((head) => head.join("-")).join(",");

const nameHeads = (heads) => heads.map(([layer, head]) => nameHeadInText(layer, head)).join("; ");

// `getHead()` is the head that is shown large; `onpick(layer, head)` is called when another one is
// pressed. Returns { element, show, draw, update }: `show(input)` is called with the body of the
// request, the prediction with all heads, and why there is none.
export function headEffects(ctx, { getHead, onpick }) {
  const element = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const getHeadsOff = () => parseHeads(ctx.get("off"));
  let [body, base, reason, ranking, prediction] = [];

  function show(input) {
    ({ body, prediction: base, reason } = input);
    ranking = null;
    draw();
  }

  const update = ctx.createUpdate(async (signal) => {
    draw();
    const headsOff = getHeadsOff();
    if (!headsOff.length) return "All heads are on.";
    const { target } = base;
    const request = { ...body, target: toRequestTarget(target), ablated_heads: headsOff };
    ({ prediction } = await ctx.request("predict", request, signal));
    draw();
    const [value, baseValue] = [prediction, base].map(({ probability }) =>
      formatTargetValue(target, probability),
    );
    return `Without ${nameHeads(getHeadsOff())}: ${value}, before ${baseValue}.`;
  });

  const rank = ctx.createUpdate(async (signal) => {
    const target = isFile ? null : toRequestTarget(base.target);
    ranking = await ctx.request("heads", { ...body, target }, signal);
    draw();
    const [{ layer, head, change }] = ranking.ranked;
    return (
      `The head that matters most: ${nameHeadInText(layer, head)}, ` +
      `${formatTargetChange(base.target, change)}.`
    );
  });

  function toggle(layer, head) {
    const headsOff = getHeadsOff();
    const others = headsOff.filter((other) => other[0] !== layer || other[1] !== head);
    const isOff = others.length < headsOff.length;
    if (!isOff) {
      if (isFile) others.length = 0; // a file has the prediction without one head
      others.push([layer, head]);
    }
    ctx.set({ off: formatHeads(others) || null });
    update();
  }

  function switchAllOn() {
    ctx.set({ off: null });
    update();
  }

  function draw() {
    const headsOff = getHeadsOff();
    if (!headsOff.length) prediction = null;
    const heading = h("h2", {}, "Switch a head off");
    if (!base && reason) {
      replaceContent(element, heading, h("p", { class: "notice" }, reason));
      return;
    }
    const [layer, head] = getHead();
    const isOff = headsOff.some((other) => other[0] === layer && other[1] === head);
    replaceKeepingFocus(
      element,
      heading,
      h("p", {}, `The prediction: ${describeTarget(base.target)}.`),
      h(
        "div",
        { class: "row" },
        button(
          `${isOff ? "Switch on" : "Switch off"}: ${nameHeadInText(layer, head)}`,
          () => toggle(layer, head),
          { "aria-pressed": isOff, "data-key": "toggle" },
        ),
        headsOff.length > 0 && button("Switch all on", switchAllOn, { "data-key": "on" }),
        !ranking && button("Rank all heads by their effect", rank, { "data-key": "rank" }),
      ),
      h(
        "div",
        { class: "cards spaced" },
        h("section", { class: "card" }, h("h3", {}, "With all heads"), predictionBars(base)),
        prediction && changedPrediction(prediction, base, headsOff),
      ),
      ranking && headRanking(ranking, onpick),
    );
  }

  return { element, show, draw, update };
}

function changedPrediction(prediction, base, headsOff) {
  const { target } = base;
  const value = formatTargetValue(target, prediction.probability);
  const change = formatTargetChange(target, prediction.probability - base.probability);
  return h(
    "section",
    { class: "card" },
    h("h3", {}, `Without ${nameHeads(headsOff)}`),
    h("p", {}, `${describeTarget(target)}: ${value} (${change})`),
    prediction.distribution.length > 0 && predictionBars(prediction),
  );
}

function headRanking({ effects, ranked, prediction: { target } }, onpick) {
  const csv = () => [
    ["layer", "head", "probability", "change"],
    ...ranked.map(({ layer, head, probability, change }) => [
      layer + 1,
      head + 1,
      probability,
      change,
    ]),
  ];
  return h(
    "div",
    { class: "cards spaced" },
    headHeatmap(effects, {
      title: "Effect of switching each head off",
      name: "head-effects",
      format: (value) => (isNumber(target) ? formatSigned(value, 2) : formatSigned(100 * value, 1)),
      onpick,
      // Falling values are blue, as where words are hidden.
      max: -Math.max(1e-9, ...effects.flat().map(Math.abs)),
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
        ranked
          .slice(0, MAX_ROWS)
          .map(({ layer, head, probability, change }) => [
            button(nameHead(layer, head), () => onpick(layer, head), { class: "small" }),
            formatTargetValue(target, probability),
            formatTargetChange(target, change),
          ]),
        { caption: "Heads by their effect" },
      ),
      saveButtons("heads-by-effect", { csv }),
    ),
  );
}
