// Vectors as strips of colour, and one number of a vector taken apart into its trained weights.
import { choice, clear, counted, field, h, percent, select, table } from "../dom.js";
import { decode, dot } from "../layer.js";
import { pixels, showTip } from "../pictures.js";

const SHOWN = 3; // how many numbers of a vector are written
const TERMS = 6; // how many products of a sum are shown one by one

// A number with about three digits.
export function brief(value) {
  const size = Math.abs(value);
  const digits = [99.95, 9.995, 0.0995, 0.00995].filter((one) => size < one).length;
  return (size < 0.00005 ? "0" : value.toFixed(digits)).replace("-", "−");
}

export const largest = (...vectors) =>
  Math.max(1e-9, ...vectors.map((one) => one.reduce((most, x) => Math.max(most, Math.abs(x)), 0)));

const says = (values, at) => `number ${at + 1}: ${brief(values[at])}`;

// All numbers of a vector side by side: blue is positive, orange negative, strong is large.
export function strip(values, scale = largest(values), name = "") {
  const canvas = h("canvas", {
    class: "strip-of",
    role: "img",
    width: values.length,
    height: 1,
    "aria-label":
      `${name ? `${name}: ` : ""}${counted(values.length, "number")} ` +
      `from ${brief(Math.min(...values))} to ${brief(Math.max(...values))}`,
  });
  const shares = Array.from(values, (one) => Math.sign(one) * Math.sqrt(Math.abs(one) / scale));
  canvas.getContext("2d").putImageData(pixels(1, values.length, shares), 0, 0);
  canvas.addEventListener("pointermove", (event) => {
    const { left, width } = canvas.getBoundingClientRect();
    const place = Math.floor(((event.clientX - left) / width) * values.length);
    showTip(event, place < 0 ? "" : says(values, Math.min(values.length - 1, place)));
  });
  canvas.addEventListener("pointerleave", (event) => showTip(event, ""));
  return canvas;
}

// Vectors under each other: [name, values], with one scale, and their first numbers.
export function vectors(rows, scale = largest(...rows.map(([, values]) => values))) {
  const strips = rows.map(([name, values]) => strip(values, scale, name));
  return readable(
    strips,
    rows.map(([, values]) => values),
    h(
      "div",
      { class: "vecs" },
      rows.map(([name, values], at) =>
        h("div", { class: "vec" }, h("span", { class: "name" }, name), strips[at], first(values)),
      ),
    ),
  );
}

// Strips under each other are one stop of the tab key; arrow keys read their numbers.
function readable(strips, vectors, group) {
  const places = strips.map(() => 0);
  const move = (row, to) => {
    const values = vectors[row];
    const at = Math.max(0, Math.min(values.length - 1, to));
    places[row] = at;
    strips[row].setAttribute("aria-valuenow", at + 1);
    strips[row].setAttribute("aria-valuetext", says(values, at));
  };
  const tell = (row) => {
    const { left, top, width } = strips[row].getBoundingClientRect();
    const clientX = left + (width * (places[row] + 0.5)) / vectors[row].length;
    showTip({ clientX, clientY: top }, says(vectors[row], places[row]));
  };
  for (const [row, canvas] of strips.entries()) {
    const range = {
      role: "slider",
      tabindex: row === 0 ? 0 : -1,
      "aria-valuemin": 1,
      "aria-valuemax": vectors[row].length,
      "aria-orientation": "horizontal",
    };
    for (const [name, value] of Object.entries(range)) canvas.setAttribute(name, value);
    move(row, 0);
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && tell(row));
    canvas.addEventListener("blur", (event) => showTip(event, ""));
    canvas.addEventListener("keydown", (event) => {
      const far = vectors[row].length;
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -far, End: far }[event.key];
      const other = strips[row + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] ?? NaN)];
      if (step === undefined && !other) return;
      event.preventDefault();
      if (other) {
        for (const one of strips) one.tabIndex = one === other ? 0 : -1;
        other.focus();
      } else {
        move(row, places[row] + step);
        tell(row);
      }
    });
  }
  return group;
}

const first = (values) =>
  h(
    "span",
    { class: "first mono" },
    Array.from(values.slice(0, SHOWN), brief).join("  "),
    values.length > SHOWN ? "  …" : "",
  );

// A percentage on a bar of its size.
export const share = (value) =>
  h(
    "span",
    { class: "share", style: { "--share": `${(100 * value).toFixed(1)}%` } },
    percent(value),
  );

const strongest = (values) =>
  values.reduce((best, one, at) => (Math.abs(one) > Math.abs(values[best]) ? at : best), 0);

// `maps`: what may be taken apart, each { name, matrix, start, input, from, outputs }: outputs are
// those of the rows from `start` on, `input` the vector that they multiply, `from` its name.
export function takenApart(ctx, layer, maps) {
  const body = h("div", {});
  const result = h("div", { "aria-live": "polite" });
  let [map, number] = [maps[0], 0];
  const rows = ({ matrix, start, outputs }) =>
    ctx.source.data
      ? ctx.source.data.weights
          .filter((one) => one.layer === layer && one.matrix === matrix)
          .map((one) => one.row - start)
          .filter((at) => at >= 0 && at < outputs.length)
      : Array.from(outputs, (_, at) => at);
  async function load() {
    const { matrix, start } = map;
    const row = start + number;
    try {
      const found = await ctx.ask("weights", { layer, matrix, row });
      if (matrix !== map.matrix || row !== start + number) return; // another one is chosen by now
      clear(result, sumOf(map, number, { ...found, values: decode(found.weights).row(0) }));
    } catch (error) {
      if (error.name !== "AbortError") ctx.say(error.message, true);
    }
  }
  function draw() {
    const numbers = rows(map);
    number = ctx.source.data ? numbers[0] : strongest(map.outputs);
    clear(
      body,
      h(
        "div",
        { class: "row end" },
        maps.length > 1 &&
          choice(
            "Vector",
            maps.map((one) => [one.matrix, one.name.replace("the ", "")]),
            map.matrix,
            (matrix) => {
              map = maps.find((one) => one.matrix === matrix);
              draw();
              body.querySelector(`[data-key="${matrix}"]`).focus();
            },
          ),
        field(
          "Number",
          select(
            numbers.map((at) => [String(at), String(at + 1)]),
            String(number),
            (at) => {
              number = Number(at);
              load();
            },
          ),
        ),
      ),
      ctx.source.data &&
        h(
          "p",
          { class: "soft small" },
          "This page contains the weights of the first number. The others: bertworks serve.",
        ),
      result,
    );
    load();
  }
  return h(
    "details",
    { ontoggle: (event) => event.target.open && !body.firstChild && draw() },
    h("summary", {}, "Down to the weights: take one of these numbers apart"),
    body,
  );
}

// One output as the sum that it is: input times weight for each number, plus the bias.
function sumOf({ name, input, from, outputs }, number, { values, bias, matrix }) {
  const products = Array.from(input, (one, at) => one * values[at]);
  const order = products
    .map((_, at) => at)
    .sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]));
  const rest = order.slice(TERMS);
  const total = dot(input, values) + (bias ?? 0);
  const cells = order
    .slice(0, TERMS)
    .map((at) => [`number ${at + 1}`, brief(input[at]), brief(values[at]), brief(products[at])]);
  if (rest.length)
    cells.push([
      `${counted(rest.length, "other")}, together`,
      "",
      "",
      brief(rest.reduce((sum, at) => sum + products[at], 0)),
    ]);
  if (bias !== null) cells.push(["bias", "", "", brief(bias)]);
  cells.push([h("strong", {}, "sum"), "", "", h("strong", { class: "sum" }, brief(total))]);
  const value = h("strong", {}, brief(outputs[number]));
  return [
    h(
      "p",
      {},
      `Number ${number + 1} of ${name} is `,
      value,
      `: row ${number + 1} of its trained weights, times ${from}, number by number, added up.`,
    ),
    vectors([["weights", values]]),
    vectors([[`× ${from}`, products]]),
    table(
      [`Of ${from}`, ...["Input", "Weight", "Product"].map((text) => ({ text, number: true }))],
      cells,
      { caption: `The sum of ${matrix}`, className: "fit" },
    ),
  ];
}
