// Numbers as bars.
import { h } from "../ui/dom.js";
import { formatPercent } from "../ui/format.js";

// Items are { text, value, isMarked, note }: probabilities, or what `measure` names.
// A table whose second column is a bar.
export function bars(
  items,
  {
    caption,
    header = "Word",
    measure = "Probability",
    mark = "predicted",
    max = Math.max(0.1, ...items.map((item) => Math.abs(item.value))),
    format = formatPercent,
  } = {},
) {
  const headers = [header, "", measure].map((text) => h("th", { scope: "col" }, text));
  return h(
    "table",
    { class: "bars" },
    caption && h("caption", { class: "visually-hidden" }, caption),
    h("thead", { class: "visually-hidden" }, h("tr", {}, headers)),
    h(
      "tbody",
      {},
      items.map(({ text, value, isMarked, note }) =>
        h(
          "tr",
          { class: isMarked ? "marked" : null },
          h(
            "th",
            { scope: "row" },
            text,
            isMarked && h("span", { class: "visually-hidden" }, ` (${mark})`),
            note && h("span", { class: "soft small" }, ` ${note}`),
          ),
          h("td", { class: "track" }, bar(value, max)),
          h("td", { class: "number" }, format(value)),
        ),
      ),
    ),
  );
}

const bar = (value, max) =>
  h("div", {
    style: {
      width: `${Math.max(0, (100 * Math.abs(value)) / max)}%`,
      background: value < 0 ? "var(--second)" : "",
    },
  });
