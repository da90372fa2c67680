// Controls that views are made of: fields, buttons, groups of buttons, tables.
import { createId, h } from "./dom.js";

// A labelled control; `note` explains it.
export function field(label, control, note = null) {
  control.id ||= createId("field");
  const hint = note && h("span", { class: "soft small", id: `${control.id}-note` }, note);
  if (hint) control.setAttribute("aria-describedby", hint.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, hint);
}

export const textArea = (value, oninput, properties = {}) =>
  h("textarea", {
    rows: 2,
    spellcheck: "false",
    value,
    oninput: (event) => oninput(event.target.value),
    ...properties,
  });

export const textInput = (value, oninput, properties = {}) =>
  h("input", {
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    value,
    oninput: (event) => oninput(event.target.value),
    ...properties,
  });

// Options are texts, or pairs of a key and a text.
export function select(options, value, onchange) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  const element = h(
    "select",
    { onchange: (event) => onchange(event.target.value) },
    pairs.map(([key, text]) => h("option", { value: key }, text)),
  );
  element.value = value ?? pairs[0]?.[0] ?? "";
  return element;
}

export function checkbox(label, isChecked, onchange) {
  const box = h("input", { type: "checkbox", onchange: (event) => onchange(event.target.checked) });
  box.checked = isChecked;
  return h("label", { class: "check" }, box, " ", label);
}

// A range with its value next to it, written by `format`.
export function slider(label, { min, max, step = 1, value, format = String }, oninput) {
  const output = h("output", {}, format(value));
  const range = h("input", {
    type: "range",
    min,
    max,
    step,
    value,
    "aria-valuetext": format(value),
    oninput: () => {
      output.textContent = format(Number(range.value));
      range.setAttribute("aria-valuetext", output.textContent);
      oninput(Number(range.value));
    },
  });
  range.id = createId("range");
  output.htmlFor = range.id;
  return h(
    "div",
    { class: "field slider" },
    h("label", { for: range.id }, label),
    h("div", { class: "row" }, range, output),
  );
}

export const button = (text, onclick, properties = {}) =>
  h("button", { type: "button", onclick, ...properties }, text);

// Make a row or grid of buttons one stop of the tab key; arrow keys move inside it.
export function addArrowKeys(group, countColumns = () => 1e9) {
  const listButtons = () => [...group.querySelectorAll("button")];
  const makeTabStop = (button) => {
    for (const other of listButtons()) other.tabIndex = other === button ? 0 : -1;
  };
  group.addEventListener("focusin", (event) => {
    if (event.target.matches("button")) makeTabStop(event.target);
  });
  group.addEventListener("keydown", (event) => {
    const buttons = listButtons();
    const index = buttons.indexOf(document.activeElement);
    const columns = Math.min(countColumns(), buttons.length);
    const rowStep = countColumns() < buttons.length ? columns : 1;
    const step = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: rowStep,
      ArrowUp: -rowStep,
      Home: -index,
      End: buttons.length - 1 - index,
    }[event.key];
    if (index < 0 || step === undefined) return;
    event.preventDefault();
    const target = buttons[index + step];
    if (!target) return;
    makeTabStop(target);
    target.focus();
  });
  const buttons = listButtons();
  makeTabStop(
    buttons.find((button) => button.getAttribute("aria-pressed") === "true") ?? buttons[0],
  );
  return group;
}

// One choice among a few: buttons of which one is pressed.
export function toggleGroup(label, options, value, onchange) {
  const press = (key) => {
    for (const option of group.children)
      option.setAttribute("aria-pressed", option.dataset.key === key);
    onchange(key);
  };
  const group = h(
    "div",
    { class: "choice", role: "group", "aria-label": label },
    options.map(([key, text]) =>
      button(text, () => press(key), { "aria-pressed": key === value, "data-key": key }),
    ),
  );
  return addArrowKeys(group);
}

// table(["Word", { text: "Probability", number: true }], rows): cells are text, numbers or nodes.
export function table(columns, rows, { caption, className = "" } = {}) {
  const headers = columns.map((column) => (typeof column === "string" ? { text: column } : column));
  const columnClass = (index) => (headers[index].number ? "number" : null);
  const headerRow = headers.map((header, index) =>
    h("th", { scope: "col", class: columnClass(index) }, header.text),
  );
  const bodyRow = (cells) =>
    cells.map((cell, index) =>
      index === 0
        ? h("th", { scope: "row", class: columnClass(index) }, cell)
        : h("td", { class: columnClass(index) }, cell),
    );
  return h(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption ?? "Table" },
    h(
      "table",
      { class: className },
      caption && h("caption", { class: "visually-hidden" }, caption),
      h("thead", {}, h("tr", {}, headerRow)),
      h(
        "tbody",
        {},
        rows.map((cells) => h("tr", {}, bodyRow(cells))),
      ),
    ),
  );
}
