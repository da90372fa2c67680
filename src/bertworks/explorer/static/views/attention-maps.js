// Attention as matrices: read from bytes, merged into words, and drawn small, as lines, or large.
import { button, fixed, h, newId, percent, roving, s } from "../dom.js";
import { tools } from "../export.js";
import { heat, pixels, rgb } from "../pictures.js";

const ROW = 24;

// The weights of an answer: `of(layer, head, options)` is a matrix with the names of its rows.
export function maps({ pieces, weights }) {
  const [layers, heads, n] = weights.shape;
  const letters = atob(weights.base64);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = letters.charCodeAt(at);
  const size = n * n;

  // Which tokens make a row: those of a word where words are merged, and no special ones
  // if they are hidden.
  function groups({ merge, hide }) {
    const found = [];
    for (const [at, token] of pieces.tokens.entries()) {
      if (hide && token.special) continue;
      const last = found.at(-1);
      if (merge && last && token.word !== null && last.word === token.word) last.tokens.push(at);
      else
        found.push({
          word: token.word,
          tokens: [at],
          name:
            merge && token.word !== null && token.token !== "[MASK]"
              ? pieces.words[token.word].text
              : token.token,
        });
    }
    return found;
  }

  // Rows sum to 1 over all tokens: to a word its pieces' sum, from a word their mean
  // (Clark et al. 2019).
  function of(layer, head, options) {
    const rows = groups(options);
    const count = rows.length;
    const place = new Int32Array(n).fill(-1);
    for (const [at, row] of rows.entries()) for (const token of row.tokens) place[token] = at;
    const values = new Float32Array(count * count);
    const [first, last] = options.mean ? [0, heads - 1] : [head, head];
    for (let one = first; one <= last; one++)
      for (let from = 0, at = (layer * heads + one) * size; from < n; from++) {
        const row = place[from];
        const unit =
          row < 0 ? 0 : 1 / (weights.scale * rows[row].tokens.length * (last - first + 1));
        for (let to = 0; to < n; to++, at++)
          if (unit && place[to] >= 0) values[row * count + place[to]] += bytes[at] * unit;
      }
    return {
      count,
      values,
      names: rows.map((one) => one.name),
      value: (row, column) => values[row * count + column],
    };
  }
  return { layers, heads, of, groups };
}

export const headName = (layer, head) => `Layer ${layer + 1}, head ${head + 1}`;

// All heads, small: one canvas with a button over each head.
export function overview(all, options, chosen, onpick, name = "attention-heads") {
  const heads = options.mean ? 1 : all.heads;
  const canvas = h("canvas", {
    "aria-hidden": "true",
    style: { "grid-area": `1 / 2 / ${all.layers + 1} / ${heads + 2}` },
  });
  const { count } = all.of(0, 0, options);
  [canvas.width, canvas.height] = [heads * count, all.layers * count];
  canvas.style.setProperty("image-rendering", count > 48 ? "auto" : "pixelated");
  const context = canvas.getContext("2d");
  for (let layer = 0; layer < all.layers; layer++)
    for (let head = 0; head < heads; head++)
      context.putImageData(
        pixels(count, count, all.of(layer, head, options).values.map(Math.sqrt)),
        head * count,
        layer * count,
      );
  const cells = Array.from({ length: all.layers }, (_, layer) => [
    h(
      "span",
      { class: "soft small", "aria-hidden": "true", style: { "grid-area": `${layer + 1} / 1` } },
      layer + 1,
    ),
    Array.from({ length: heads }, (__, head) => {
      const label = options.mean
        ? `Layer ${layer + 1}, mean over its heads`
        : headName(layer, head);
      return button("", () => onpick(layer, head), {
        "aria-label": label,
        title: label,
        style: { "grid-area": `${layer + 1} / ${head + 2}` },
        "aria-pressed": layer === chosen[0] && (head === chosen[1] || options.mean),
      });
    }),
  ]);
  const grid = h(
    "div",
    {
      class: "heads",
      role: "group",
      "aria-label": "Heads; press one to enlarge it",
      style: { "--heads": heads },
    },
    canvas,
    cells,
  );
  const svg = () =>
    s(
      "svg",
      { viewBox: `0 0 ${heads * 64 + 20} ${all.layers * 64}` },
      s("image", {
        href: canvas.toDataURL(),
        x: 20,
        y: 0,
        width: heads * 64,
        height: all.layers * 64,
        preserveAspectRatio: "none",
        style: { "image-rendering": "pixelated" },
      }),
      Array.from({ length: all.layers }, (_, layer) => [
        s(
          "text",
          { x: 14, y: layer * 64 + 36, "font-size": 11, "text-anchor": "end", fill: "var(--soft)" },
          layer + 1,
        ),
        Array.from({ length: heads }, (__, head) =>
          s("rect", {
            x: 20 + head * 64,
            y: layer * 64,
            width: 64,
            height: 64,
            fill: "none",
            stroke: "var(--card)",
            "stroke-width": 4,
          }),
        ),
      ]),
    );
  return [
    h(
      "div",
      { class: "scroll" },
      roving(grid, () => heads),
    ),
    h(
      "p",
      { class: "soft small" },
      "One row of heads per layer; in each head, one row per attending piece. Stronger colour " +
        "means more attention (square-root scale, so that small weights are visible).",
    ),
    tools(name, { svg }),
  ];
}

export function press(grid, layer, head, heads) {
  for (const [at, one] of [...grid.querySelectorAll("button")].entries())
    one.setAttribute("aria-pressed", at === layer * heads + head);
}

// Lines from each word (left) to the words that it attends to (right); only one word’s while
// it is pointed at.
export function lines(map, title, name, { from = -1, to = -1, onsay }) {
  const { count, names, value } = map;
  const canvas = h("canvas", { "aria-hidden": "true" });
  let pointed = { from, to };
  const column = (side) =>
    roving(
      h(
        "div",
        {
          class: `tokens ${side}`,
          role: "group",
          "aria-label": side === "from" ? "Attending words" : "Attended words",
        },
        names.map((one, at) => {
          const set = () => point(side === "from" ? { from: at, to } : { from, to: at });
          return button(one, () => onsay(side, at), {
            onpointerenter: set,
            onfocus: set,
            "aria-pressed": at === (side === "from" ? from : to),
          });
        }),
      ),
    );
  const [left, right] = [column("from"), column("to")];
  const said = h("p", { class: "small soft", "aria-live": "polite" });
  const shows = (i, j) =>
    (pointed.from < 0 || pointed.from === i) && (pointed.to < 0 || pointed.to === j);
  const strength = (weight) => (weight < 0.02 ? 0 : Math.min(1, weight ** 0.7));
  function draw(width) {
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = count * ROW * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${count * ROW}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.lineWidth = 2;
    const ink = rgb("first").join(" ");
    // Lines of nearly the same strength are drawn together.
    const levels = Array.from({ length: 20 }, () => new Path2D());
    for (let i = 0; i < count; i++)
      for (let j = 0; j < count; j++) {
        const alpha = shows(i, j) && strength(value(i, j));
        if (!alpha) continue;
        const path = levels[Math.min(19, Math.floor(20 * alpha))];
        path.moveTo(0, (i + 0.5) * ROW);
        path.bezierCurveTo(
          width / 2,
          (i + 0.5) * ROW,
          width / 2,
          (j + 0.5) * ROW,
          width,
          (j + 0.5) * ROW,
        );
      }
    for (const [at, path] of levels.entries()) {
      context.strokeStyle = `rgb(${ink} / ${(at + 0.5) / 20})`;
      context.stroke(path);
    }
  }
  const tint = (buttons, share) => {
    for (const [at, one] of [...buttons.children].entries()) {
      const strong = share ? `${Math.round(70 * share(at))}%` : "0%";
      if (one.style.getPropertyValue("--share") !== strong)
        one.style.setProperty("--share", strong);
    }
  };
  function point(next) {
    pointed = next;
    draw(middle.clientWidth);
    tint(right, pointed.from >= 0 && ((at) => value(pointed.from, at)));
    tint(left, pointed.to >= 0 && ((at) => value(at, pointed.to)));
    const looking = pointed.from >= 0;
    const at = looking ? pointed.from : pointed.to;
    if (at < 0)
      said.textContent =
        "Point at a word, or move to it with the keyboard, to see only its lines. " +
        "Press it to keep them.";
    else if (looking && pointed.to >= 0)
      said.textContent = `From “${names[at]}” to “${names[pointed.to]}”: ${percent(
        value(at, pointed.to),
      )}.`;
    else {
      const best = names
        .map((one, k) => [one, looking ? value(at, k) : value(k, at)])
        .sort((a, b) => b[1] - a[1])
        .slice(0, 4);
      const verb = looking ? "attends to" : "receives attention from";
      const others = best.map(([one, weight]) => `${one} ${percent(weight)}`).join(", ");
      said.textContent = `“${names[at]}” ${verb} ${others}.`;
    }
  }
  const middle = h("div", { class: "between" }, canvas);
  new ResizeObserver(([entry]) => {
    if (!entry.contentRect.width) return;
    draw(entry.contentRect.width);
    if (canvas.dataset.ready) return;
    point(pointed);
    canvas.dataset.ready = "1";
  }).observe(middle);
  const body = h(
    "div",
    { class: "lines", onpointerleave: () => point({ from, to }) },
    left,
    middle,
    right,
  );
  const svg = () => {
    const [edge, wide] = [120, 560];
    const place = (at) => (at + 0.5) * ROW;
    const label = (one, at, x, anchor) =>
      s(
        "text",
        { x, y: place(at) + 4, "font-size": 12, fill: "var(--ink)", "text-anchor": anchor },
        one,
      );
    return s(
      "svg",
      { viewBox: `0 0 ${wide} ${count * ROW}` },
      names.map((one, at) => [
        label(one, at, edge - 8, "end"),
        label(one, at, wide - edge + 8, "start"),
      ]),
      names.map((_, i) =>
        names.map(
          (__, j) =>
            shows(i, j) &&
            strength(value(i, j)) > 0 &&
            s("path", {
              d:
                `M${edge} ${place(i)}C${wide / 2} ${place(i)} ` +
                `${wide / 2} ${place(j)} ${wide - edge} ${place(j)}`,
              fill: "none",
              stroke: "var(--first)",
              "stroke-width": 2,
              "stroke-opacity": strength(value(i, j)).toFixed(3),
            }),
        ),
      ),
    );
  };
  const id = newId("lines");
  const csv = () => [
    ["", ...names],
    ...names.map((one, i) => [one, ...names.map((_, j) => value(i, j).toFixed(4))]),
  ];
  return h(
    "figure",
    { "aria-labelledby": id },
    h("h3", { id }, title),
    said,
    body,
    tools(name, { svg, csv }),
  );
}

export const matrix = (map, title, name, onpick) =>
  heat({
    title,
    name,
    rows: map.names,
    columns: map.names,
    value: map.value,
    max: Math.max(...map.values),
    rowName: "from",
    columnName: "to",
    format: percent,
    onpick,
    caption:
      "One row per attending word, one column per attended word. " +
      "Rows sum to 100 % if nothing is hidden.",
  });

// A number for each head: layers down, heads across.
export const headHeat = (values, { title, name, format = fixed, low = 0, max, caption, onpick }) =>
  heat({
    title,
    name,
    caption,
    format,
    onpick,
    most: 44,
    numbers: true,
    low,
    rows: values.map((_, at) => `Layer ${at + 1}`),
    columns: values[0].map((_, at) => String(at + 1)),
    columnName: "head",
    rowName: "",
    value: (row, column) => values[row][column],
    max: max ?? Math.max(1e-9, ...values.flat().map(Math.abs)),
  });
