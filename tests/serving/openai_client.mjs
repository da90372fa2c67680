// What OpenAI's JavaScript client makes of the server: prints JSON for test_openai.py.
import OpenAI from "openai";

const [url, ...texts] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "unused", maxRetries: 0 });
const usual = await client.embeddings.create({ model: "encoder", input: texts });
const floats = await client.embeddings.create({
  model: "encoder",
  input: texts,
  encoding_format: "float",
});
const names = [];
for await (const model of client.models.list()) names.push(model.id);
let refused;
try {
  await client.embeddings.create({ model: "none", input: "a" });
} catch (error) {
  refused = { status: error.status, code: error.code, param: error.param };
}
const vectors = (answer) => answer.data.map((entry) => Array.from(entry.embedding));
console.log(
  JSON.stringify({ usual: vectors(usual), floats: vectors(floats), names, refused }),
);
