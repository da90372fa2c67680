import { explorerCall } from "../calls.js";
import {
  button,
  counted,
  field,
  h,
  percent,
  redrawKeeping,
  roving,
  select,
  table,
} from "../dom.js";
import { tools } from "../export.js";
import { layerSteps, moments, sees, slice } from "../layer.js";
import { subject } from "../parts.js";
import { bars } from "../pictures.js";
import { brief, largest, share, strip, takenApart, vectors } from "./layer-parts.js";

export default {
  id: "layer",
  title: "How attention works",
  group: "Inside the network",
  uses: "layer",
  inFile: true,
  show,
  about:
    "One layer, step by step, for one piece and one head, with the model’s own numbers, down " +
    "to its trained weights. “Attention is all you need” describes it in section 3.",
};

const ROWS = 8; // how many pieces are shown one by one where the others are added up

function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const layers = isFile ? ctx.source.data.layers.length : ctx.model.layers;
  let [data, call] = [];
  const at = (key, count, fallback = 0) => Math.min(ctx.number(key, fallback), count - 1);
  const update = ctx.updating(async (signal) => {
    const given = await asked.read(signal);
    const layer = at("layer", layers);
    data = await ctx.ask("layer", { ...given.body, layer }, signal);
    const word = data.pieces.words[given.chosen[0] ?? 0];
    data.start = { token: word?.tokens[0] ?? 0 };
    call = isFile ? null : explorerCall(ctx, "layer", { ...given.body, layer });
    draw();
    return (
      `Layer ${layer + 1} of ${ctx.model.layers}, ` +
      `${counted(data.pieces.tokens.length, "piece")}.`
    );
  });
  const set = (key) => (value) => {
    ctx.set({ [key]: value });
    key === "layer" ? update() : draw();
  };
  function draw() {
    const { tokens } = data.pieces;
    const token = at("token", tokens.length, data.start.token);
    data.start.head ??= typical(data, token);
    const chosen = { token, head: at("head", data.heads, data.start.head) };
    redrawKeeping(
      results,
      controls(data, layers, chosen, set),
      isFile &&
        layers < data.layers &&
        h(
          "p",
          { class: "soft small" },
          `This page contains ${layers} of ${counted(data.layers, "layer")}. All: bertworks serve.`,
        ),
      steps(ctx, data, chosen, set),
      call,
    );
  }
  const asked = subject(
    ctx,
    () => {
      ctx.set({ token: null });
      update();
    },
    {
      pair: true,
      hide: !isFile,
    },
  );
  root.append(asked.node, ctx.status, results);
  update();
}

// The head whose attention has about one half in one place: neither all nor evenly spread.
function typical(data, token) {
  const distances = layerSteps(data, token, 0).all_weights.map((one) =>
    Math.abs(Math.max(...one) - 0.5),
  );
  return distances.indexOf(Math.min(...distances));
}

const numbered = (count) => Array.from({ length: count }, (_, at) => [String(at), String(at + 1)]);

function controls(data, layers, { token, head }, set) {
  const pieces = h(
    "div",
    { class: "words", role: "group", "aria-label": "Pieces; press one to follow it" },
    data.pieces.tokens.map((one, at) =>
      button(one.token, () => set("token")(at), {
        class: "mono",
        "aria-pressed": at === token,
        "data-key": `piece-${at}`,
      }),
    ),
  );
  return h(
    "div",
    { class: "form follow" },
    h(
      "div",
      { class: "row end" },
      field("Layer", select(numbered(layers), String(data.layer), set("layer"))),
      field("Head", select(numbered(data.heads), String(head), set("head"))),
      h(
        "div",
        { class: "grow field" },
        h("span", { class: "soft small" }, "Piece to follow"),
        roving(pieces),
      ),
    ),
  );
}

const shape = (...sizes) => h("span", { class: "shape mono" }, `[${sizes.join(", ")}]`);
const formula = (...lines) =>
  h(
    "p",
    { class: "formula mono" },
    lines.filter(Boolean).map((one) => h("span", {}, indexed(one))),
  );
// "W_Q x" with its index set low.
const indexed = (text) =>
  text
    .split(/(?<=_\w)|(?=_\w)/)
    .map((part) => (/^_\w$/.test(part) ? h("sub", {}, part.slice(1)) : part));
const say = (...content) => h("p", {}, content);

function steps(ctx, data, chosen, set) {
  const found = layerSteps(data, chosen.token, chosen.head);
  const names = data.pieces.tokens.map((one) => one.token);
  const here = {
    ctx,
    data,
    found,
    set,
    names,
    ...chosen,
    piece: `“${names[chosen.token]}”`,
    root: Math.sqrt(data.head_size),
  };
  const cards = [
    inputCard,
    mapsCard,
    scoresCard,
    softmaxCard,
    valuesCard,
    headsCard,
    outputCard,
    sumCard,
    innerCard,
    secondMapCard,
    lastCard,
  ].map((make) => make(here));
  const list = h(
    "ol",
    { class: "steps" },
    cards.map(({ title, size, body }, at) =>
      h(
        "li",
        { class: "card", tabindex: -1 },
        h("h2", {}, `${at + 1}. ${title} `, shape(...size)),
        body,
      ),
    ),
  );
  const go = (at) => {
    list.children[at].scrollIntoView({ block: "start" });
    list.children[at].focus({ preventScroll: true });
  };
  const flow = h(
    "div",
    { class: "flow", role: "group", "aria-label": "Steps; press one to go to it" },
    cards.map((one, at) => button(`${at + 1} ${one.short}`, () => go(at), { class: "small" })),
  );
  return [facts(here), roving(flow), list];
}

// What is special about this layer, as sentences.
function facts({ data }) {
  const { same_weights: same, window, layers, rope_theta: theta } = data;
  const lines = [
    data.causal && "This model is causal: a piece attends only to itself and to earlier pieces.",
    window !== null && `This layer is local: a piece attends to pieces at most ${window} away.`,
    theta !== null &&
      "Positions are rotary: queries and keys are rotated, and no position is " +
        "added to the embeddings.",
    data.norm_first &&
      "This model normalises before each half of a layer (pre-norm), where BERT " +
        "normalises after it.",
    same.length > 1 &&
      (same.length === layers
        ? `All ${layers} layers share these weights.`
        : `Layers ${same.map((one) => one + 1).join(", ")} share these weights.`),
  ].filter(Boolean);
  return lines.length > 0 && h("p", { class: "notice" }, lines.join(" "));
}

function spread(values) {
  const { mean, variance } = moments(values);
  const deviation = brief(Math.sqrt(variance));
  return `Here the mean is ${brief(mean)} and the standard deviation ${deviation}.`;
}

const normFormula = (data, step, name) =>
  `norm(${name}) = γ · (${name} − mean(${name})) / ` +
  `√(variance(${name}) + ε)${data.norms[step].bias ? " + β" : ""}`;
// "z = W_1 m + b_1", or without a bias where the model has none.
const mapFormula = (data, name, index, input) =>
  `${name} = W_${index} ${input}${data.bias ? ` + b_${index}` : ""}`;

const answerLink = () =>
  h("a", { href: location.hash.replace("#/layer", "#/steps") }, "From text to answer");

function inputCard({ data, found, piece }) {
  const from =
    data.layer === 0
      ? [`The embedding of ${piece}: see `, answerLink(), "."]
      : `What layer ${data.layer} computed for ${piece}.`;
  const hasNorm = "attention_input" in data.norms;
  return {
    title: "The input",
    short: "Input",
    size: [data.hidden_size],
    body: [
      say(
        from,
        " A strip shows all numbers of a vector: blue ones are positive, orange ones " +
          "negative, strong ones large. Point at it, or use the arrow keys, to read one.",
      ),
      vectors([["x", found.input]]),
      !data.norm_first
        ? null
        : hasNorm
          ? [
              formula(`n = ${normFormula(data, "attention_input", "x")}`),
              say(spread(found.input)),
              vectors([["n", found.attention_input]]),
            ]
          : say("This layer has no norm here: n = x."),
    ],
  };
}

function mapsCard({ ctx, data, found, head, piece, token }) {
  const x = data.norm_first ? "n" : "x";
  const input = found.attention_input ?? found.input;
  const start = head * data.head_size;
  const maps = ["query", "key", "value"].map((matrix) => ({
    name: `the ${matrix}`,
    matrix,
    start,
    input,
    from: x,
    outputs: found[matrix],
  }));
  const rotated = found.rotated_query && [
    say(
      "Rotary positions turn query and key: each pair of numbers r and r + d/2, counted from 0, " +
        "by an angle that grows with the position p. The scores then depend on distances.",
    ),
    formula(
      "angle = p · θ^(−2r/d)",
      `p = ${token}`,
      `θ = ${data.rope_theta.toLocaleString("en")}`,
      `d = ${data.head_size}`,
    ),
    vectors([
      ["q, rotated", found.rotated_query],
      ["k, rotated", found.rotated_key],
    ]),
  ];
  const [title, short] = ["Query, key and value", "Query, key, value"];
  return {
    title,
    short,
    size: [data.head_size],
    body: [
      say(
        `Three trained maps turn ${x} into three vectors of head ${head + 1}. ` +
          `The query says what ${piece} looks for, the key what it offers to others, the value what it passes on.`,
      ),
      formula(...["q", "k", "v"].map((name) => mapFormula(data, name, name.toUpperCase(), x))),
      vectors([
        ["query q", found.query],
        ["key k", found.key],
        ["value v", found.value],
      ]),
      rotated,
      takenApart(ctx, data.layer, maps),
    ],
  };
}

function scoresCard({ data, found, names, token, piece, root }) {
  const query = found.rotated_query ?? found.query;
  const products = found.keys.map((key) => query.map((one, at) => one * key[at]));
  const scale = largest(...products);
  const rows = names.map((name, at) => [
    h("span", { class: "mono" }, name),
    ...(sees(data, token, at)
      ? [
          strip(products[at], scale, `q × k of ${name}`),
          brief(found.scores[at] * root),
          brief(found.scores[at]),
        ]
      : [h("span", { class: "soft" }, "not seen"), "", "−∞"]),
  ]);
  const title = "Scores: the query times every key";
  const rooted = `√${data.head_size}${Number.isInteger(root) ? ` = ${root}` : ""}`;
  return {
    title,
    short: "Scores",
    size: [names.length],
    body: [
      say(
        `The query of ${piece} is multiplied by the key of every piece, number by number (the ` +
          `strips), and added up: q · k. Divided by ${rooted}, the scores do not grow with ` +
          "the size of the vectors.",
      ),
      formula(
        `score(j) = q · k_j / √${data.head_size}`,
        found.rotated_query ? "q and k rotated" : "",
      ),
      table(
        [
          "Piece j",
          { text: indexed("q × k_j") },
          { text: indexed("q · k_j"), number: true },
          { text: "score", number: true },
        ],
        rows,
        { caption: "Scores", className: "scores" },
      ),
    ],
  };
}

// The pieces with the largest weights, and the others, which are shown together.
function ranked(weights) {
  const order = weights.map((_, at) => at).sort((a, b) => weights[b] - weights[a]);
  const many = order.filter((at, rank) => rank < ROWS && (rank < 3 || weights[at] >= 0.001)).length;
  const rest = order.slice(many);
  return {
    shown: order.slice(0, many),
    rest,
    others: {
      name: `${counted(rest.length, "other")}, together`,
      weight: rest.reduce((sum, at) => sum + weights[at], 0),
    },
  };
}

function softmaxCard({ found, names, piece }) {
  const { shown, rest, others } = ranked(found.weights);
  const items = shown.map((at) => ({ text: names[at], value: found.weights[at] }));
  if (rest.length) items.push({ text: others.name, value: others.weight });
  return {
    title: "Softmax: scores become weights",
    short: "Softmax",
    size: [names.length],
    body: [
      say(
        `The softmax makes positive numbers of the scores that add up to 100 %: how ${piece} ` +
          "divides its attention.",
      ),
      formula("weight(j) = exp(score(j)) / Σ exp(score)"),
      bars(items, { caption: "Weights", head: "Piece", measure: "Weight" }),
    ],
  };
}

function valuesCard({ data, found, names, head, piece }) {
  const weighted = found.values.map((value, at) => value.map((one) => one * found.weights[at]));
  const { shown, rest, others } = ranked(found.weights);
  const total = slice(Float32Array.from(found.context), head, data.head_size);
  const rows = shown.map((at) => [
    h("span", { class: "mono" }, names[at]),
    share(found.weights[at]),
    weighted[at],
  ]);
  const together = (_, k) => rest.reduce((sum, at) => sum + weighted[at][k], 0);
  if (rest.length) rows.push([others.name, share(others.weight), total.map(together)]);
  const scale = largest(total, ...rows.map(([, , values]) => values));
  const cells = [...rows, [h("strong", {}, "c, their sum"), "", total]];
  return {
    title: "The weighted values",
    short: "Values",
    size: [data.head_size],
    body: [
      say(
        "The values of all pieces are multiplied by the weights and added. The sum is what head " +
          `${head + 1} tells ${piece} about the text.`,
      ),
      formula("c = Σ weight(j) · v_j"),
      table(
        ["Piece j", "Weight", { text: indexed("Weight × v_j") }],
        cells.map(([name, weight, values]) => [name, weight, strip(values, scale)]),
        { caption: "Weighted values", className: "scores" },
      ),
    ],
  };
}

function headsCard({ data, found, names, head, set, piece }) {
  const context = Float32Array.from(found.context);
  const rows = found.all_weights.map((weights, at) => {
    const best = weights.indexOf(Math.max(...weights));
    return h(
      "div",
      { class: `vec${at === head ? " chosen" : ""}` },
      button(`Head ${at + 1}`, () => set("head")(at), {
        class: "small name",
        "aria-pressed": at === head,
        "data-key": `head-${at}`,
      }),
      strip(slice(context, at, data.head_size), largest(context), `Head ${at + 1}`),
      h(
        "span",
        { class: "first" },
        "mostly ",
        h("span", { class: "mono" }, names[best]),
        ` ${percent(weights[best])}`,
      ),
    );
  });
  return {
    title: "All heads, joined",
    short: "All heads",
    size: [data.hidden_size],
    body: [
      say(
        data.heads > 1 ? `${data.heads} heads do this, each with maps of its own. ` : "",
        `The results for ${piece} are joined: ${data.heads} × ${data.head_size} = ` +
          `${data.hidden_size} numbers. Press a head to follow it.`,
      ),
      formula("c = [c of head 1, …, c of head h]"),
      h("div", { class: "vecs" }, rows),
    ],
  };
}

function outputCard({ ctx, data, found }) {
  return {
    title: "The output map",
    short: "Output map",
    size: [data.hidden_size],
    body: [
      say("One more trained map mixes the heads."),
      formula(mapFormula(data, "o", "O", "c")),
      vectors([["c", Float32Array.from(found.context)]]),
      vectors([["o", found.attention_output]]),
      takenApart(ctx, data.layer, [
        {
          name: "o",
          matrix: "attention_output",
          start: 0,
          input: found.context,
          from: "c",
          outputs: found.attention_output,
        },
      ]),
    ],
  };
}

function sumCard({ data, found }) {
  const [sum, after] = [found.attention_sum, found.feed_forward_input];
  const [title, short] = ["Add the input, normalise", "Add and norm"];
  return {
    title,
    short,
    size: [data.hidden_size],
    body: [
      say(
        "The result is added to the input (the residual connection), so a layer changes its " +
          "input rather than replacing it. The norm brings all vectors to a common size, then " +
          "scales each number by trained weights. ",
        data.norm_first && "The sum s itself goes on to step 11.",
      ),
      formula("s = x + o", `m = ${normFormula(data, "feed_forward_input", "s")}`),
      say(spread(sum)),
      vectors([
        ["x", found.input],
        ["o", found.attention_output],
        ["s", sum],
      ]),
      vectors([["m", after]]),
    ],
  };
}

const CURVES = {
  gelu: "gelu(z) = z · Φ(z)",
  relu: "relu(z) = max(0, z)",
  tanh: "tanh(z) = (e^z − e^−z) / (e^z + e^−z)",
  silu: "silu(z) = z / (1 + e^−z)",
  gelu_new: "gelu(z) = z/2 · (1 + tanh(√(2/π) · (z + 0.0447 z³)))",
};

function innerCard({ ctx, data, found }) {
  const { activated, intermediate, gate, feed_forward_input: input } = found;
  const order = activated
    .map((_, at) => at)
    .sort((a, b) => Math.abs(activated[b]) - Math.abs(activated[a]))
    .slice(0, ROWS);
  const columns = [
    "Number",
    ["z", intermediate],
    ...(gate ? [["gate g", gate]] : []),
    ["a", activated],
  ];
  const on = activated.filter((one) => Math.abs(one) > 0.1).length;
  const gates = gate ? [["the gate g", "gate", gate]] : [];
  const maps = [["z", "intermediate", intermediate], ...gates].map(([name, matrix, outputs]) => ({
    name,
    matrix,
    start: 0,
    input,
    from: "m",
    outputs,
  }));
  const rows = order.map((at) => [
    `number ${at + 1}`,
    ...columns.slice(1).map(([, values]) => brief(values[at])),
  ]);
  const curve = CURVES[data.activation];
  return {
    title: "Feed-forward: a wider vector, an activation",
    short: "Feed-forward",
    size: [data.intermediate_size],
    body: [
      say(
        `A map to ${data.intermediate_size.toLocaleString("en")} numbers, each of which detects ` +
          `something in m. The activation lets large ones pass and holds others back: ` +
          `${on.toLocaleString("en")} are beyond ±0.1 here. `,
        gate && "This model is gated: a second map g multiplies the result (GLU).",
      ),
      formula(
        mapFormula(data, "z", "1", "m"),
        gate ? mapFormula(data, "g", "g", "m") : "",
        `a = ${curve.split("(")[0]}(z)${gate ? " · g" : ""}`,
        curve,
      ),
      vectors([["z", intermediate], ...(gate ? [["g", gate]] : [])]),
      vectors([["a", activated]]),
      h("h3", { class: "apart" }, "The largest"),
      table(
        columns.map((one, at) => (at ? { text: one[0], number: true } : one)),
        rows,
        { caption: "The largest activations", className: "fit" },
      ),
      takenApart(ctx, data.layer, maps),
    ],
  };
}

function secondMapCard({ ctx, data, found }) {
  return {
    title: "Feed-forward: back to the layer’s width",
    short: "Second map",
    size: [data.hidden_size],
    body: [
      say(`A last trained map brings the vector back to ${data.hidden_size} numbers.`),
      formula(mapFormula(data, "f", "2", "a")),
      vectors([["a", found.activated]]),
      vectors([["f", found.feed_forward_output]]),
      takenApart(ctx, data.layer, [
        {
          name: "f",
          matrix: "feed_forward_output",
          start: 0,
          input: found.activated,
          from: "a",
          outputs: found.feed_forward_output,
        },
      ]),
    ],
  };
}

function lastCard({ ctx, data, found, set, piece, token, head }) {
  const isLast = data.layer === data.layers - 1;
  const hasNorm = "output" in data.norms;
  const [before, name] = data.norm_first
    ? [found.attention_sum, "s"]
    : [found.feed_forward_input, "m"];
  const next = data.layer + 1 < (ctx.source.data?.layers.length ?? data.layers);
  const csv = () => [
    ["step", "piece", "head", "numbers"],
    ...Object.entries(found)
      .filter(([, values]) => typeof values[0] === "number")
      .map(([step, values]) => [step, token, head, ...values]),
  ];
  return {
    title: hasNorm ? "Add, normalise: the layer’s output" : "Add: the layer’s output",
    short: "Output",
    size: [data.hidden_size],
    body: [
      formula(`t = ${name} + f`, hasNorm ? `y = ${normFormula(data, "output", "t")}` : "y = t"),
      hasNorm && say(spread(found.feed_forward_sum)),
      vectors([
        [name, before],
        ["f", found.feed_forward_output],
        ["t", found.feed_forward_sum],
      ]),
      vectors([["y", found.output]]),
      say(
        isLast
          ? [
              "y is the final vector of ",
              piece,
              ". A head turns such vectors into logits: ",
              answerLink(),
              ".",
            ]
          : [
              `y is the input of layer ${data.layer + 2}. `,
              next &&
                button(`Go on to layer ${data.layer + 2}`, () => set("layer")(data.layer + 1), {
                  "data-key": "next",
                }),
            ],
      ),
      h(
        "p",
        { class: "soft small" },
        `Computed again from the numbers above, y differs from the ` +
          `network’s own by at most ${found.difference.toExponential(0)}. Dropout is off outside ` +
          "training.",
      ),
      tools("layer", { csv }),
    ],
  };
}
