// The call that a view makes, to be copied: as curl, Python and command line.
import { copyButton } from "./clipboard.js";
import { h } from "./ui/dom.js";

const quoteShell = (text) =>
  /^[\w./:=@%+-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`;

// A value as Python writes it.
export function formatPython(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(formatPython).join(", ")}]`;
  if (typeof value === "object") {
    const items = Object.entries(value).map(
      ([key, item]) => `${formatPython(key)}: ${formatPython(item)}`,
    );
    return `{${items.join(", ")}}`;
  }
  return JSON.stringify(value);
}

const isEmpty = (value) =>
  value === null ||
  value === undefined ||
  value === "" ||
  (Array.isArray(value) && value.length === 0);

const dropEmpty = (body) =>
  Object.fromEntries(Object.entries(body).filter(([, value]) => !isEmpty(value)));

// A command's words. Texts that look like an option or a setting are put after `--`.
const orderArguments = (verb, args, options) =>
  args.some((argument) => /^-|^[\w.]+=/.test(argument))
    ? [verb, ...options, "--", ...args]
    : [verb, ...args, ...options];

// callExamples(ctx, { path, body, python: "model.predict(…)", verb: "predict", args: ["MODEL"] })
// `files`: by name, the lines of the files that the command reads, which are written before.
export function callExamples(ctx, { path, body, python, verb, args, options = [], files = {} }) {
  const calls = [
    ["curl", formatCurl(ctx, path, body)],
    ["Python", python],
    ["Command line", formatCommand(verb, args, options, files)],
  ];
  return h(
    "details",
    {},
    h("summary", {}, "The same call as curl, Python and command line"),
    calls.map(([name, code]) =>
      h(
        "div",
        { class: "call" },
        h(
          "div",
          { class: "row" },
          name,
          copyButton(`Copy ${name}`, () => code),
        ),
        h("pre", { tabindex: 0 }, code),
      ),
    ),
  );
}

function formatCurl(ctx, path, body) {
  const origin = ctx.source.origin ?? "http://127.0.0.1:8080";
  const key = ctx.source.hasKey?.() ? " -H 'authorization: Bearer '$KEY" : "";
  const model = ctx.model.default ? {} : { model: ctx.model.name };
  const json = quoteShell(JSON.stringify({ ...model, ...dropEmpty(body) }));
  return `curl -s ${origin}${path}${key} -H 'content-type: application/json' -d ${json}`;
}

function formatCommand(verb, args, options, files) {
  const writes = Object.entries(files).map(
    ([name, lines]) => `printf '%s\\n' ${lines.map(quoteShell).join(" ")} > ${name} && `,
  );
  const words = orderArguments(verb, args, options).map(quoteShell);
  return `${writes.join("")}bertworks ${words.join(" ")}`;
}

// Examples for a view that has a function, `name`, in `bertworks.explorer`.
export function explorerCallExamples(ctx, view, body, name = view) {
  const { text, ...keywords } = dropEmpty(body);
  const args = Object.entries(keywords).map(([key, value]) => `${key}=${formatPython(value)}`);
  if (text !== undefined) args.unshift(formatPython(text));
  return callExamples(ctx, {
    path: `/explore/${view}`,
    body,
    python:
      "import bertworks as bw\nfrom bertworks import explorer\n\n" +
      `model = bw.load(${formatPython(getModelSource(ctx))})\n` +
      `explorer.${name}(model, ${args.join(", ")})`,
    verb: "explain",
    args: [getModelSource(ctx), text ?? body.texts?.[0] ?? ""],
    options: [...(body.pair ? ["--pair", body.pair] : []), "--out", "page.html"],
  });
}

// The path or name that loads the model.
export const getModelSource = (ctx) => ctx.model.source ?? ctx.model.name;

// Python that loads the model as `model`.
export const formatLoading = (ctx) =>
  `import bertworks as bw\n\nmodel = bw.load(${formatPython(getModelSource(ctx))})\n`;
