// The call behind a view, to be copied: curl, Python, command line.
import { h } from "./dom.js";
import { copyButton } from "./export.js";

export const quoted = (text) =>
  /^[\w./:=@%+-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`;

// A value as Python writes it.
export function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([key, one]) => `${python(key)}: ${python(one)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

const present = (body) =>
  Object.fromEntries(
    Object.entries(body).filter(
      ([, value]) =>
        value !== null &&
        value !== undefined &&
        value !== "" &&
        !(Array.isArray(value) && value.length === 0),
    ),
  );

// A command's words. Texts that look like an option or a setting are put after `--`.
const command = (verb, given, options) =>
  given.some((one) => /^-|^[\w.]+=/.test(one))
    ? [verb, ...options, "--", ...given]
    : [verb, ...given, ...options];

// calls(ctx, { path, body, python: "model.predict(…)", verb: "predict", given: ["MODEL", …] });
// `lines`: by name, files of lines that the command reads, which are written before.
export function calls(ctx, { path, body, python: code, verb, given, options = [], lines = {} }) {
  const files = Object.entries(lines).map(
    ([name, texts]) => `printf '%s\\n' ${texts.map(quoted).join(" ")} > ${name} && `,
  );
  const origin = ctx.source.origin ?? "http://127.0.0.1:8080";
  const sent = JSON.stringify({
    ...(ctx.model.default ? {} : { model: ctx.model.name }),
    ...present(body),
  });
  const key = ctx.source.hasKey?.() ? " -H 'authorization: Bearer '$KEY" : "";
  const texts = [
    [
      "curl",
      `curl -s ${origin}${path}${key} -H 'content-type: application/json' -d ${quoted(sent)}`,
    ],
    ["Python", code],
    [
      "Command line",
      `${files.join("")}bertworks ${command(verb, given, options).map(quoted).join(" ")}`,
    ],
  ];
  return h(
    "details",
    {},
    h("summary", {}, "The same call as curl, Python and command line"),
    texts.map(([name, text]) =>
      h(
        "div",
        { class: "call" },
        h(
          "div",
          { class: "row" },
          name,
          copyButton(`Copy ${name}`, () => text),
        ),
        h("pre", { tabindex: 0 }, text),
      ),
    ),
  );
}

// Of a view that has a function of its name in `bertworks.explorer`.
export function explorerCall(ctx, view, body, name = view) {
  const { text, ...more } = present(body);
  const given = [
    text === undefined ? null : python(text),
    ...Object.entries(more).map(([key, value]) => `${key}=${python(value)}`),
  ].filter(Boolean);
  return calls(ctx, {
    path: `/explore/${view}`,
    body,
    python:
      "import bertworks as bw\nfrom bertworks import explorer\n\n" +
      `model = bw.load(${python(modelOf(ctx))})\nexplorer.${name}(model, ${given.join(", ")})`,
    verb: "explain",
    given: [modelOf(ctx), text ?? body.texts?.[0] ?? ""],
    options: [...(body.pair ? ["--pair", body.pair] : []), "--out", "page.html"],
  });
}

export const modelOf = (ctx) => ctx.model.source ?? ctx.model.name;
export const loading = (ctx) =>
  `import bertworks as bw\n\nmodel = bw.load(${python(modelOf(ctx))})\n`;
