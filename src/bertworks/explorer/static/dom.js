// Elements, and the small parts that all views are made of.

const SVG = "http://www.w3.org/2000/svg";

// h("button", { class: "chip", onclick: f, "aria-pressed": true }, "text", node, [more])
export function h(name, props = {}, ...children) {
  return fill(document.createElement(name), props, children);
}

export function s(name, props = {}, ...children) {
  return fill(document.createElementNS(SVG, name), props, children);
}

function fill(element, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style")
      for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : value);
  }
  element.append(
    ...children
      .flat(Infinity)
      .filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

// Replace an element's content; what was unfolded stays so if there are as many parts as before.
export function clear(element, ...children) {
  const before = [...element.querySelectorAll("details")].map((one) => one.open);
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  const now = element.querySelectorAll("details");
  if (now.length === before.length)
    for (const [at, open] of before.entries()) now[at].open ||= open;
  return element;
}

let serial = 0;
export const newId = (name) => `${name}-${++serial}`;

// A labelled control; `note` explains it.
export function field(label, control, note = null) {
  control.id ||= newId("field");
  const hint = note && h("span", { class: "soft small", id: `${control.id}-note` }, note);
  if (hint) control.setAttribute("aria-describedby", hint.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, hint);
}

export const area = (value, oninput, props = {}) =>
  h("textarea", {
    rows: 2,
    spellcheck: "false",
    value,
    oninput: (event) => oninput(event.target.value),
    ...props,
  });

export const line = (value, oninput, props = {}) =>
  h("input", {
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    value,
    oninput: (event) => oninput(event.target.value),
    ...props,
  });

export function select(options, value, onchange) {
  const list = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const element = h(
    "select",
    { onchange: (event) => onchange(event.target.value) },
    list.map(([key, text]) => h("option", { value: key }, text)),
  );
  element.value = value ?? list[0]?.[0] ?? "";
  return element;
}

export function check(label, checked, onchange) {
  const box = h("input", { type: "checkbox", onchange: (event) => onchange(event.target.checked) });
  box.checked = checked;
  return h("label", { class: "check" }, box, " ", label);
}

export function slider(label, { min, max, step = 1, value, text = String }, oninput) {
  const shown = h("output", {}, text(value));
  const range = h("input", {
    type: "range",
    min,
    max,
    step,
    value,
    "aria-valuetext": text(value),
    oninput: () => {
      shown.textContent = text(Number(range.value));
      range.setAttribute("aria-valuetext", shown.textContent);
      oninput(Number(range.value));
    },
  });
  range.id = newId("range");
  shown.htmlFor = range.id;
  return h(
    "div",
    { class: "field slider" },
    h("label", { for: range.id }, label),
    h("div", { class: "row" }, range, shown),
  );
}

export const button = (text, onclick, props = {}) =>
  h("button", { type: "button", onclick, ...props }, text);

// One tab stop for a row or grid of buttons: arrow keys move inside it.
export function roving(group, columns = () => 1e9) {
  const items = () => [...group.querySelectorAll("button")];
  const focus = (to) => {
    for (const item of items()) item.tabIndex = item === to ? 0 : -1;
  };
  group.addEventListener(
    "focusin",
    (event) => event.target.matches("button") && focus(event.target),
  );
  group.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    const wide = Math.min(columns(), all.length);
    const step = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: columns() < all.length ? wide : 1,
      ArrowUp: columns() < all.length ? -wide : -1,
      Home: -at,
      End: all.length - 1 - at,
    }[event.key];
    if (at < 0 || step === undefined) return;
    const to = all[at + step];
    event.preventDefault();
    if (!to) return;
    focus(to);
    to.focus();
  });
  const first = items();
  focus(first.find((one) => one.getAttribute("aria-pressed") === "true") ?? first[0]);
  return group;
}

// Tabs in the sense of one choice among a few: buttons of which one is pressed.
export function choice(label, options, value, onchange) {
  const group = h(
    "div",
    { class: "choice", role: "group", "aria-label": label },
    options.map(([key, text]) =>
      button(
        text,
        () => {
          for (const one of group.children)
            one.setAttribute("aria-pressed", one.dataset.key === key);
          onchange(key);
        },
        { "aria-pressed": key === value, "data-key": key },
      ),
    ),
  );
  return roving(group);
}

// table(["Word", { text: "Probability", number: true }], rows): cells are text, numbers or nodes.
export function table(columns, rows, { caption, className = "" } = {}) {
  const heads = columns.map((one) => (typeof one === "string" ? { text: one } : one));
  const kind = (at) => (heads[at].number ? "number" : null);
  return h(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption ?? "Table" },
    h(
      "table",
      { class: className },
      caption && h("caption", { class: "hidden" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((one, at) => h("th", { scope: "col", class: kind(at) }, one.text)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            row.map((cell, at) =>
              at === 0
                ? h("th", { scope: "row", class: kind(at) }, cell)
                : h("td", { class: kind(at) }, cell),
            ),
          ),
        ),
      ),
    ),
  );
}

// Work that is begun again while it runs: only the last one's outcome counts.
export function latest(work) {
  let controller = new AbortController();
  return async (...given) => {
    controller.abort();
    controller = new AbortController();
    return work(controller.signal, ...given);
  };
}

export function later(work, milliseconds = 250) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}

export const capital = (text) => text.replace(/^[a-z]/, (letter) => letter.toUpperCase());

// "1 layer", "4 layers".
export const counted = (count, noun) =>
  `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

export const percent = (value) =>
  value >= 0.0995
    ? `${(100 * value).toFixed(0)} %`
    : value >= 0.000995
      ? `${(100 * value).toFixed(1)} %`
      : value >= 1e-6
        ? `${(100 * value).toFixed(4).replace(/(\.0*[1-9]).*/, "$1")} %`
        : value > 0
          ? "< 0.0001 %"
          : "0 %";

const minus = (text) => (Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−"));
export const fixed = (value, digits = 2) => minus(value.toFixed(digits));
export const signed = (value, digits = 3) => (value > 0 ? "+" : "") + fixed(value, digits);
export const points = (value) => `${signed(100 * value, 1)} points`;

// Replace an element's content; the keyboard stays at the control that has the same place or name.
export function redrawKeeping(holder, ...children) {
  const active = holder.contains(document.activeElement) ? document.activeElement : null;
  const controls = () => [...holder.querySelectorAll("button, select, input")];
  const key = active?.dataset.key;
  const at = active ? controls().indexOf(active) : -1;
  clear(holder, children);
  if (active) ((key && holder.querySelector(`[data-key="${key}"]`)) || controls()[at])?.focus();
}
