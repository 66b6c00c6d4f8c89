// A GGUF model in wllama, llama.cpp in WebAssembly, with the functions of decoder.js. It runs in a worker, one sequence.
import { Wllama } from "./index.min.js";

const LEAST = 2 ** -149; // the least positive number of FP32

export class Tensor {
  constructor(type, data, dims) {
    Object.assign(this, { type, data, dims });
  }
}

export async function load(bytes, { threads, capacity, cache }) { // `cache`: format of keys and values
  const errors = [], none = () => {}, at = (name) => new URL(name, import.meta.url).href;
  const logger = { debug: none, log: none, warn: none, error: (text) => errors.push(text) };
  const files = { "single-thread/wllama.wasm": at("single-thread-wllama.wasm"),
    "multi-thread/wllama.wasm": at("multi-thread-wllama.wasm") };
  const wllama = new Wllama(files, { logger });
  const session = { inputNames: ["tokens"], release: () => wllama.exit() };
  try {
    await wllama.loadModel([new Blob([bytes])], {
      n_ctx: capacity, n_batch: capacity, n_threads: threads, cache_type_k: cache, cache_type_v: cache,
      flash_attn: cache === "f32" ? false : undefined, // its kernel rounds to FP16
    });
  } catch (error) {
    await session.release().catch(none);
    throw new Error(`llama.cpp cannot load this model: ${errors[0] ?? error.message}`);
  }
  return { session, wllama, aside: 0 };
}

export const clear = ({ wllama }) => wllama.kvClear();

export async function step(model, tokens) {
  await model.wllama.decode(Array.from(tokens, Number), {});
  return model;
}

async function likeliest(model, count) { // sorts the vocabulary; no time includes these milliseconds, `aside`
  const start = performance.now(), found = await model.wllama.getLogits(count);
  model.aside += performance.now() - start;
  return found;
}

export async function greedy(model) {
  const [{ token }] = await likeliest(model, 1);
  return BigInt64Array.of(BigInt(token));
}

export async function last(model) { // wllama gives probabilities; their logarithms are logits but for a constant
  const found = await likeliest(model, -1), logits = new Float32Array(found.length);
  for (const { token, p } of found) logits[token] = Math.log(Math.max(p, LEAST));
  return new Tensor("float32", logits, [1, 1, logits.length]);
}
