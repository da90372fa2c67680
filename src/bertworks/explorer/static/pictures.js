// Pictures: bars, lines over layers, matrices, maps. Each is an SVG, with a table beside it.
import { fixed, h, newId, percent, s, table } from "./dom.js";
import { colour, tools } from "./export.js";

export const SERIES = ["first", "second", "third", "fourth", "faint"];
const LETTER = 0.56; // the width of a letter, in ems

const tip = h("div", { class: "tip", "aria-hidden": "true" });
export function showTip(event, text) {
  if (!tip.isConnected) document.body.append(tip);
  tip.textContent = text ?? "";
  if (!text) return;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 4))}px`;
  const isLow = event.clientY + 18 + height > innerHeight;
  tip.style.top = `${isLow ? event.clientY - height - 8 : event.clientY + 16}px`;
}

// An element that is drawn anew for each width that it gets.
export function responsive(draw) {
  const holder = h("div", { class: "scroll" });
  let last = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (!width || width === last) return;
    last = width;
    holder.replaceChildren(draw(width));
  }).observe(holder);
  return holder;
}

// A picture with its title, what it shows, its numbers as a table, and buttons that save it.
export function figure({ title, caption, name, body, columns, rows, svg }) {
  const more =
    rows &&
    h(
      "details",
      {
        ontoggle: (event) => {
          if (event.target.open && !more.querySelector("table"))
            more.append(table(columns, rows(), { caption: title, className: "fit" }));
        },
      },
      h("summary", {}, "As a table"),
    );
  const id = newId("figure");
  return h(
    "figure",
    { "aria-labelledby": id },
    h("h3", { id }, title),
    body,
    caption && h("figcaption", {}, caption),
    more,
    tools(name, {
      svg: svg === null ? null : (svg ?? (() => body.querySelector("svg"))),
      csv: rows && (() => [columns.map((one) => one.text ?? one), ...rows()]),
    }),
  );
}

// Probabilities, or what `measure` says: a table whose second column is a bar.
export function bars(
  items,
  {
    caption,
    head = "Word",
    measure = "Probability",
    mark = "predicted",
    max = Math.max(0.1, ...items.map((one) => Math.abs(one.value))),
    format = percent,
  } = {},
) {
  return h(
    "table",
    { class: "bars" },
    caption && h("caption", { class: "hidden" }, caption),
    h(
      "thead",
      { class: "hidden" },
      h(
        "tr",
        {},
        [head, "", measure].map((text) => h("th", { scope: "col" }, text)),
      ),
    ),
    h(
      "tbody",
      {},
      items.map(({ text, value, known, note }) =>
        h(
          "tr",
          { class: known ? "known" : null },
          h(
            "th",
            { scope: "row" },
            text,
            known && h("span", { class: "hidden" }, ` (${mark})`),
            note && h("span", { class: "soft small" }, ` ${note}`),
          ),
          h(
            "td",
            { class: "track" },
            h("div", {
              style: {
                width: `${Math.max(0, (100 * Math.abs(value)) / max)}%`,
                background: value < 0 ? "var(--second)" : "",
              },
            }),
          ),
          h("td", { class: "number" }, format(value)),
        ),
      ),
    ),
  );
}

const text = (x, y, content, props = {}) =>
  s("text", { x, y, "font-size": 11, fill: "var(--soft)", ...props }, content);
const shorten = (word, most) => (word.length > most ? `${word.slice(0, most - 1)}…` : word);
const ticks = (low, high) => {
  const step = [1, 2, 5, 10]
    .map((one) => one * 10 ** Math.floor(Math.log10((high - low) / 4 || 1)))
    .find((one) => (high - low) / one <= 5);
  return Array.from({ length: 12 }, (_, at) => (Math.ceil(low / step) + at) * step).filter(
    (one) => one <= high + 1e-9,
  );
};

// Lines over layers (or steps): series are {name, values, dashed}; values may be null.
export function lineChart({ title, caption, name, x, xName, series, low, high, format = fixed }) {
  const all = series.flatMap((one) => one.values).filter((one) => one !== null);
  const bottom = low ?? Math.min(...all);
  const top = Math.max(high ?? Math.max(...all), bottom + 1e-6);
  const draw = (width) => {
    const legend = series.length > 1 ? 18 * legendRows(series, width) : 0;
    const [left, right, height] = [48, 12, 190 + legend];
    const px = (at) => left + ((width - left - right) * at) / Math.max(1, x.length - 1);
    const py = (value) =>
      height - 34 - ((height - 46 - legend) * (value - bottom)) / (top - bottom);
    const every = Math.ceil(x.length / Math.max(2, Math.floor((width - left) / 44)));
    const svg = s(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: "img",
        "aria-label": `${title}; the table below has the numbers`,
      },
      drawLegend(series, width),
      ticks(bottom, top).map((one) => [
        s("line", { x1: left, x2: width - right, y1: py(one), y2: py(one), stroke: "var(--grid)" }),
        text(left - 6, py(one) + 4, format(one), { "text-anchor": "end" }),
      ]),
      x.map(
        (label, at) =>
          at % every === 0 && text(px(at), height - 17, label, { "text-anchor": "middle" }),
      ),
      text(width - right, height - 2, xName, { "text-anchor": "end" }),
      series.map((one, at) => {
        const points = one.values
          .map((value, k) => value !== null && [px(k), py(value)])
          .filter(Boolean);
        const stroke = `var(--${one.colour ?? SERIES[at % SERIES.length]})`;
        return [
          s("polyline", {
            points: points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" "),
            fill: "none",
            stroke,
            "stroke-width": 1.8,
            "stroke-linejoin": "round",
            "stroke-dasharray": one.dashed ? "5 4" : null,
          }),
          points.map(([cx, cy]) => s("circle", { cx, cy, r: 2.6, fill: stroke })),
        ];
      }),
    );
    svg.addEventListener("pointermove", (event) => {
      const at = Math.round(
        ((event.clientX - svg.getBoundingClientRect().left - left) / (width - left - right)) *
          (x.length - 1),
      );
      const numbers = series.map((one) => {
        const number = one.values[at] === null ? "–" : format(one.values[at]);
        return series.length > 1 ? `${one.name} ${number}` : number;
      });
      showTip(event, x[at] === undefined ? "" : `${xName} ${x[at]} · ${numbers.join(" · ")}`);
    });
    svg.addEventListener("pointerleave", (event) => showTip(event, ""));
    return svg;
  };
  const number = (one) => ({ text: one.name, number: true });
  return figure({
    title,
    caption,
    name,
    body: responsive(draw),
    columns: [xName, ...series.map(number)],
    rows: () =>
      x.map((label, at) => [
        label,
        ...series.map((one) =>
          one.values[at] === null ? "" : Number(one.values[at].toPrecision(5)),
        ),
      ]),
  });
}

function legendPlaces(series, width) {
  let [x, row] = [0, 0];
  return series.map((one) => {
    const wide = 26 + one.name.length * 11 * LETTER;
    if (x > 0 && x + wide > width) [x, row] = [0, row + 1];
    const place = [x, row];
    x += wide + 10;
    return place;
  });
}
const legendRows = (series, width) => legendPlaces(series, width).at(-1)[1] + 1;
const drawLegend = (series, width) =>
  series.length > 1 &&
  legendPlaces(series, width).map(([x, row], at) => [
    s("line", {
      x1: x,
      x2: x + 16,
      y1: 8 + 18 * row,
      y2: 8 + 18 * row,
      stroke: `var(--${series[at].colour ?? SERIES[at % SERIES.length]})`,
      "stroke-width": 2.4,
      "stroke-dasharray": series[at].dashed ? "5 4" : null,
    }),
    text(x + 21, 12 + 18 * row, series[at].name, { fill: "var(--ink)" }),
  ]);

// The pixels of a matrix, row by row, from -1 to 1: strength is opacity, so that it lies on any
// paper.
export function pixels(height, width, shares) {
  const image = new ImageData(width, height);
  const [plus, minus] = ["first", "second"]
    .map((name) => rgb(name))
    .map(([red, green, blue]) => red | (green << 8) | (blue << 16));
  const words = new Uint32Array(image.data.buffer);
  for (let at = 0; at < shares.length; at++) {
    const share = shares[at];
    words[at] = (share < 0 ? minus : plus) | (Math.min(255, 255 * Math.abs(share)) << 24);
  }
  return image;
}

const known = new Map();
export const forgetColours = () => known.clear();
export function rgb(name) {
  if (!known.has(name)) {
    const context = h("canvas", { width: 1, height: 1 }).getContext("2d");
    context.fillStyle = colour(name);
    context.fillRect(0, 0, 1, 1);
    known.set(name, [...context.getImageData(0, 0, 1, 1).data].slice(0, 3));
  }
  return known.get(name);
}

// A matrix with the names of its rows and columns; onpick(row, column) makes its cells buttons'
// like.
export function heat({
  title,
  caption,
  name,
  rows,
  columns,
  value,
  low = 0,
  max = 1,
  format = fixed,
  rowName = "",
  columnName = "",
  numbers = false,
  onpick,
  most = 34,
}) {
  const draw = (width) => {
    const letters = Math.max(
      14,
      Math.min(30, Math.floor((width - most * columns.length - 14) / (11 * LETTER))),
    ); // of a row's name
    const wide = Math.min(letters, Math.max(...rows.map((one) => one.length))) * 11 * LETTER + 12;
    const cell = Math.max(
      columns.length > 64 ? 8 : 13,
      Math.min(most, Math.floor((width - wide - 2) / columns.length)),
    );
    const size = Math.min(11, cell - 1);
    const upright = columns.some((one) => one.length * size * LETTER > cell - 2);
    const above =
      (upright
        ? Math.min(12, Math.max(...columns.map((one) => one.length))) * size * LETTER + 10
        : 18) + (columnName ? 16 : 0);
    const [total, high] = [wide + cell * columns.length + 2, above + cell * rows.length + 2];
    const share = (row, column) => (value(row, column) - low) / (max - low || 1);
    const canvas = h("canvas", { width: columns.length, height: rows.length });
    canvas.getContext("2d").putImageData(
      pixels(
        rows.length,
        columns.length,
        rows.flatMap((_, row) => columns.map((__, column) => share(row, column))),
      ),
      0,
      0,
    );
    const svg = s(
      "svg",
      {
        viewBox: `0 0 ${total} ${high}`,
        width: total,
        height: high,
        style: { "max-width": "none" },
        role: "img",
        "aria-label": `${title}; the table below has the numbers`,
      },
      columnName && text(wide, 11, columnName),
      columns.map((one, at) =>
        upright
          ? text(0, 0, shorten(one, 12), {
              "font-size": size,
              transform:
                `translate(${wide + cell * (at + 0.5) + size * 0.35} ${above - 4}) ` +
                "rotate(-90)",
            })
          : text(wide + cell * (at + 0.5), above - 5, one, {
              "font-size": size,
              "text-anchor": "middle",
            }),
      ),
      rows.map((one, at) =>
        text(wide - 6, above + cell * (at + 0.5) + size * 0.35, shorten(one, letters), {
          "font-size": size,
          "text-anchor": "end",
        }),
      ),
      s("image", {
        href: canvas.toDataURL(),
        x: wide,
        y: above,
        width: cell * columns.length,
        height: cell * rows.length,
        preserveAspectRatio: "none",
        style: { "image-rendering": "pixelated" },
      }),
      s("rect", {
        x: wide,
        y: above,
        width: cell * columns.length,
        height: cell * rows.length,
        fill: "none",
        stroke: "var(--grid)",
      }),
      numbers &&
        cell >= 22 &&
        rows.map((_, row) =>
          columns.map((__, column) =>
            text(
              wide + cell * (column + 0.5),
              above + cell * (row + 0.5) + 4,
              format(value(row, column)),
              {
                "text-anchor": "middle",
                "font-size": Math.min(11, cell / 2.8),
                fill: Math.abs(share(row, column)) > 0.6 ? "var(--paper)" : "var(--ink)",
              },
            ),
          ),
        ),
    );
    const place = (event) => {
      const box = svg.getBoundingClientRect();
      return [
        Math.floor((event.clientY - box.top - above) / cell),
        Math.floor((event.clientX - box.left - wide) / cell),
      ];
    };
    const inside = ([row, column]) =>
      row >= 0 && column >= 0 && row < rows.length && column < columns.length;
    svg.addEventListener("pointermove", (event) => {
      const at = place(event);
      showTip(
        event,
        inside(at)
          ? `${rowName} ${rows[at[0]]} → ${columnName} ${columns[at[1]]}: ${format(value(...at))}`
              .replaceAll("  ", " ")
              .trim()
          : "",
      );
    });
    svg.addEventListener("pointerleave", (event) => showTip(event, ""));
    if (onpick)
      svg.addEventListener("click", (event) => inside(place(event)) && onpick(...place(event)));
    return svg;
  };
  return figure({
    title,
    caption,
    name,
    body: responsive(draw),
    columns: [rowName, ...columns.map((one) => ({ text: one, number: true }))],
    rows: () =>
      rows.map((label, row) => [
        label,
        ...columns.map((_, column) => Number(value(row, column).toPrecision(4))),
      ]),
  });
}

// Points of a plane with their names: {x, y, text, group}.
export function scatter({ title, caption, name, points }) {
  const draw = (width) => {
    const height = Math.min(440, Math.max(240, Math.round(width * 0.6)));
    const scale = (key, from, to) => {
      const values = points.map((one) => one[key]);
      const [low, high] = [Math.min(...values), Math.max(...values)];
      return (value) => from + (to - from) * (high > low ? (value - low) / (high - low) : 0.5);
    };
    const [px, py] = [scale("x", 20, width - 20), scale("y", height - 20, 26)];
    const taken = [];
    const svg = s(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: "img",
        "aria-label": `${title}; the table below has the coordinates`,
      },
      s("rect", {
        x: 0.5,
        y: 0.5,
        width: width - 1,
        height: height - 1,
        fill: "none",
        stroke: "var(--grid)",
        rx: 6,
      }),
      points.map((one) => {
        const fill = `var(--${SERIES[one.group % SERIES.length]})`;
        const label = shorten(one.text, Math.max(8, Math.floor(width / 2 / 6.4)));
        const [cx, cy] = [px(one.x), py(one.y)];
        const end = cx > width / 2;
        const long = label.length * 11 * LETTER;
        let y = cy + 4;
        const box = () => [end ? cx - 8 - long : cx + 8, y];
        const hits = () =>
          taken.some(
            ([left, top, right]) =>
              Math.abs(top - y) < 12 && box()[0] < right && box()[0] + long > left,
          );
        for (let tries = 0; hits() && tries < 12; tries++)
          y += y > height - 16 ? -12 * (tries + 1) : 12;
        taken.push([box()[0], y, box()[0] + long]);
        return [
          s("circle", { cx, cy, r: 5, fill }),
          text(end ? cx - 8 : cx + 8, y, label, {
            "text-anchor": end ? "end" : "start",
            fill: "var(--ink)",
          }),
        ];
      }),
    );
    return svg;
  };
  return figure({
    title,
    caption,
    name,
    body: responsive(draw),
    columns: ["Text", { text: "x", number: true }, { text: "y", number: true }],
    rows: () =>
      points.map((one) => [one.text, Number(one.x.toPrecision(4)), Number(one.y.toPrecision(4))]),
  });
}
