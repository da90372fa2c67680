// Where results come from: a server, or the data in the page (`bertworks explain`).

export class KeyRequiredError extends Error {}

const STORAGE_KEY = "bertworks-key";

// The server counts texts from 0, by the name of a route's field; people count sentences from 1.
const rewriteError = (message) =>
  message.replace(/^texts\[(\d+)\]: (?:does not hold ['"](.*)['"]$)?/, (_, index, word) => {
    const problem = word === undefined ? ": " : ` does not contain “${word}”.`;
    return `Sentence ${Number(index) + 1}${problem}`;
  });

export function createServerSource(base = new URL(".", document.baseURI)) {
  async function request(path, options, signal) {
    const key = sessionStorage.getItem(STORAGE_KEY);
    const headers = {
      accept: "application/json",
      ...(options.body && { "content-type": "application/json" }),
      ...(key && { authorization: `Bearer ${key}` }),
    };
    let response;
    try {
      response = await fetch(new URL(path.slice(1), base), { ...options, headers, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is it still running?");
    }
    if (response.status === 401) throw new KeyRequiredError("The server requires an API key.");
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({}));
    throw new Error(error ? rewriteError(error) : `The server answered ${response.status}.`);
  }

  const call = async (path, options, signal) => (await request(path, options, signal)).json();

  const post = (path, body, signal) =>
    call(path, { method: "POST", body: JSON.stringify(body) }, signal);

  const fetchModels = async (query = "") => (await call(`/explore/models${query}`, {})).models;

  return {
    origin: base.href.replace(/\/$/, ""),
    fetchModels: () => fetchModels(),
    fetchModel: async (name) =>
      (await fetchModels(`?model=${encodeURIComponent(name)}`)).find(
        (model) => model.name === name,
      ),
    post,
    // A page of the server, which may be HTML or not.
    async fetchText(name) {
      const response = await request(`/${name}`, {});
      const isPage = (response.headers.get("content-type") ?? "").startsWith("text/html");
      return { isPage, text: await response.text() };
    },
    request: (view, body, signal) => post(`/explore/${view}`, body, signal),
    setKey: (key) => sessionStorage.setItem(STORAGE_KEY, key),
    hasKey: () => sessionStorage.getItem(STORAGE_KEY) !== null,
  };
}

// The same requests, of a page that contains the results for one text.
export function createFileSource(data) {
  // The results for the text, or with the one word masked that the file has.
  function selectResults({ words = [] }) {
    if (!words.length) return data;
    return words.length === 1 && words[0] === data.masked?.word ? data.masked : null;
  }

  function hasTarget({ target, ...body }) {
    const prediction = selectResults(body)?.prediction;
    return prediction && (target?.name === undefined || target.name === prediction.target.name);
  }

  const answers = {
    pieces: () => ({ pieces: data.pieces }),
    attention: (body) => selectResults(body)?.attention,
    steps: (body) => selectResults(body)?.steps,
    heads: (body) => hasTarget(body) && selectResults(body).heads,
    occlusion: (body) => hasTarget(body) && selectResults(body).occlusion,
    layer: (body) => {
      const layer = selectResults(body) === data && data.layers[body.layer];
      return layer && { pieces: data.pieces, ...layer };
    },
    weights: (body) =>
      data.weights.find((row) =>
        ["layer", "matrix", "row"].every((name) => row[name] === body[name]),
      ),
    fill: ({ words = [] }) => {
      if (!words.length) return data.fill;
      const mask =
        words.length === 1 && !data.fill && data.masks?.find(({ word }) => word === words[0]);
      return mask && { pieces: data.pieces, blanks: mask.blanks, checkpoint: null };
    },
    predict: ({ ablated_heads: headsOff = [], ...body }) => {
      const { pieces, prediction, heads } = selectResults(body) ?? {};
      if (!prediction) return null;
      if (!headsOff.length) return { pieces, prediction };
      const change = headsOff.length === 1 && heads?.effects[headsOff[0][0]][headsOff[0][1]];
      if (typeof change !== "number") return null;
      const probability = prediction.probability + change;
      return { pieces, prediction: { ...prediction, probability, distribution: [] } };
    },
  };

  const reject = () =>
    Promise.reject(
      new Error(
        "This page contains the results for one text only. " +
          "For other results, run: bertworks serve MODEL",
      ),
    );

  return {
    data,
    fetchModels: async () => [{ ...data.model, default: true, loaded: true }],
    fetchModel: async () => data.model,
    post: reject,
    request: async (view, body) => answers[view]?.(body) || reject(),
  };
}
