// Where answers come from: a server, or the data that lies in the page (`bertworks explain`).

export class KeyNeeded extends Error {}
export class NeedsServer extends Error {}

const KEY = "bertworks-key";

// The server counts texts from 0, by the name of a route's field; people count sentences from 1.
const readable = (error) =>
  error.replace(
    /^texts\[(\d+)\]: (?:does not hold ['"](.*)['"]$)?/,
    (_, at, word) =>
      `Sentence ${Number(at) + 1}${word === undefined ? ": " : ` does not contain “${word}”.`}`,
  );

export function server(base = new URL(".", document.baseURI)) {
  async function call(path, options, signal) {
    const key = sessionStorage.getItem(KEY);
    const headers = {
      accept: "application/json",
      ...(options.body && { "content-type": "application/json" }),
      ...(key && { authorization: `Bearer ${key}` }),
    };
    let answer;
    try {
      answer = await fetch(new URL(path.slice(1), base), { ...options, headers, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is it still running?");
    }
    if (answer.status === 401) throw new KeyNeeded("The server requires an API key.");
    if (answer.ok) return answer.json();
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error ? readable(error) : `The server answered ${answer.status}.`);
  }
  const post = (path, body, signal) =>
    call(path, { method: "POST", body: JSON.stringify(body) }, signal);
  return {
    origin: base.href.replace(/\/$/, ""),
    models: async () => (await call("/explore/models", {})).models,
    model: async (name) =>
      (await call(`/explore/models?model=${encodeURIComponent(name)}`, {})).models.find(
        (one) => one.name === name,
      ),
    post,
    ask: (view, body, signal) => post(`/explore/${view}`, body, signal),
    setKey: (key) => sessionStorage.setItem(KEY, key),
    hasKey: () => sessionStorage.getItem(KEY) !== null,
  };
}

// The same questions, of a page that holds the answers about one text.
export function file(data) {
  // The results for the text, or with the one word masked that the file has.
  const of = ({ words = [] }) => {
    if (!words.length) return data;
    return words.length === 1 && words[0] === data.masked?.word ? data.masked : null;
  };
  const answers = {
    pieces: () => ({ pieces: data.pieces }),
    attention: (body) => of(body)?.attention,
    steps: (body) => of(body)?.steps,
    heads: (body) => sameTarget(body) && of(body).heads,
    occlusion: (body) => sameTarget(body) && of(body).occlusion,
    layer: (body) => {
      const found = of(body) === data && data.layers[body.layer];
      return found && { pieces: data.pieces, ...found };
    },
    weights: (body) =>
      data.weights.find((one) =>
        ["layer", "matrix", "row"].every((name) => one[name] === body[name]),
      ),
    fill: ({ words = [] }) => {
      if (!words.length) return data.fill;
      const found =
        words.length === 1 && !data.fill && data.masks?.find((one) => one.word === words[0]);
      return found && { pieces: data.pieces, blanks: found.blanks, checkpoint: null };
    },
    predict: ({ off = [], ...body }) => {
      const { pieces, prediction, heads } = of(body) ?? {};
      if (!prediction) return null;
      if (!off.length) return { pieces, prediction };
      const change = off.length === 1 && heads?.effects[off[0][0]][off[0][1]];
      const probability = prediction.probability + change;
      return (
        typeof change === "number" && {
          pieces,
          prediction: { ...prediction, probability, distribution: [] },
        }
      );
    },
  };
  const sameTarget = ({ target, ...body }) =>
    of(body)?.prediction &&
    (!target || target.name === undefined || target.name === of(body).prediction.target.name);
  const refuse = () =>
    Promise.reject(
      new NeedsServer(
        "This page contains the results for one text only. " +
          "For other results, run: bertworks serve MODEL",
      ),
    );
  return {
    data,
    models: async () => [{ ...data.model, default: true, loaded: true }],
    model: async () => data.model,
    post: refuse,
    ask: async (view, body) => answers[view]?.(body) || refuse(),
  };
}
