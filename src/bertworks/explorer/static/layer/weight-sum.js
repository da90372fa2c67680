// One number of a vector, computed from the trained weights.
import { dotProduct } from "../math.js";
import { field, select, table, toggleGroup } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatCount } from "../ui/format.js";
import { decodeMatrix } from "./steps.js";
import { formatShort, vectorStrips } from "./vectors.js";

const MAX_TERMS = 6; // products of a sum that are shown one by one

// Maps are { name, matrix, start, input, inputName, outputs }: `outputs` are those of the rows from
// `start` on, `input` is the vector that they multiply. A number of the outputs can be chosen.
export function weightSum(ctx, layer, maps) {
  const body = h("div", {});
  const result = h("div", { "aria-live": "polite" });
  const { data } = ctx.source;
  let [map, number] = [maps[0], 0];

  async function drawSum() {
    const { matrix, start } = map;
    const row = start + number;
    try {
      const answer = await ctx.request("weights", { layer, matrix, row });
      if (matrix !== map.matrix || row !== start + number) return; // another one was chosen since
      const weights = decodeMatrix(answer.weights).row(0);
      replaceContent(result, sumParts(map, number, weights, answer.bias));
    } catch (error) {
      if (error.name !== "AbortError") ctx.showStatus(error.message, true);
    }
  }

  function draw() {
    const numbers = listNumbers(data, layer, map);
    number = data ? numbers[0] : findStrongest(map.outputs);
    const changeNumber = (index) => {
      number = Number(index);
      drawSum();
    };
    const options = numbers.map((index) => [String(index), String(index + 1)]);
    replaceContent(
      body,
      h(
        "div",
        { class: "row end" },
        maps.length > 1 && mapToggle(maps, map, changeMap),
        field("Number", select(options, String(number), changeNumber)),
      ),
      data &&
        h(
          "p",
          { class: "soft small" },
          "This page contains the weights of the first number. The others: bertworks serve.",
        ),
      result,
    );
    drawSum();
  }

  function changeMap(matrix) {
    map = maps.find((other) => other.matrix === matrix);
    draw();
    body.querySelector(`[data-key="${matrix}"]`).focus();
  }

  const open = (event) => {
    if (event.target.open && !body.firstChild) draw();
  };
  return h(
    "details",
    { ontoggle: open },
    h("summary", {}, "Down to the weights: take one of these numbers apart"),
    body,
  );
}

const mapToggle = (maps, map, onchange) =>
  toggleGroup(
    "Vector",
    maps.map(({ matrix, name }) => [matrix, name.replace("the ", "")]),
    map.matrix,
    onchange,
  );

// The numbers whose weights the page can have: in a file, those of some rows only.
function listNumbers(data, layer, { matrix, start, outputs }) {
  if (!data) return Array.from(outputs, (_, index) => index);
  return data.weights
    .filter((weights) => weights.layer === layer && weights.matrix === matrix)
    .map(({ row }) => row - start)
    .filter((index) => index >= 0 && index < outputs.length);
}

const findStrongest = (values) =>
  values.reduce(
    (strongest, value, index) =>
      Math.abs(value) > Math.abs(values[strongest]) ? index : strongest,
    0,
  );

// A number as the sum of input times weight, plus the bias.
function sumParts({ name, matrix, input, inputName, outputs }, number, weights, bias) {
  const products = Array.from(input, (value, index) => value * weights[index]);
  return [
    h(
      "p",
      {},
      `Number ${number + 1} of ${name} is `,
      h("strong", {}, formatShort(outputs[number])),
      `: row ${number + 1} of its trained weights, times ${inputName}, number by number, added up.`,
    ),
    vectorStrips([["weights", weights]]),
    vectorStrips([[`× ${inputName}`, products]]),
    table(
      [
        `Of ${inputName}`,
        ...["Input", "Weight", "Product"].map((text) => ({ text, number: true })),
      ],
      termRows(input, weights, products, bias),
      { caption: `The sum of ${matrix}`, className: "fit" },
    ),
  ];
}

// The largest products one by one, the others together, the bias, and the sum.
function termRows(input, weights, products, bias) {
  const order = products
    .map((_, index) => index)
    .sort((first, second) => Math.abs(products[second]) - Math.abs(products[first]));
  const others = order.slice(MAX_TERMS);
  const rows = order
    .slice(0, MAX_TERMS)
    .map((index) => [
      `number ${index + 1}`,
      ...[input, weights, products].map((values) => formatShort(values[index])),
    ]);
  const addRow = (name, value) => rows.push([name, "", "", value]);
  if (others.length) {
    const total = others.reduce((sum, index) => sum + products[index], 0);
    addRow(`${formatCount(others.length, "other")}, together`, formatShort(total));
  }
  if (bias !== null) addRow("bias", formatShort(bias));
  const sum = formatShort(dotProduct(input, weights) + (bias ?? 0));
  addRow(h("strong", {}, "sum"), h("strong", { class: "sum" }, sum));
  return rows;
}
