// Runs a model in ONNX Runtime Web; for a decoder: its cache, passes over tokens, and the likeliest next token.
import * as ort from "./ort.wasm.bundle.min.mjs";

export { ort };
export const { Tensor } = ort;

export async function load(bytes, { threads, optimise, cache }) { // `cache`: shapes before the first token, by name
  ort.env.wasm.numThreads = threads;
  ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;
  const session = await ort.InferenceSession.create(bytes, {
    executionProviders: ["wasm"], graphOptimizationLevel: optimise, logSeverityLevel: 3, enableMemPattern: true,
  });
  const inputs = session.inputNames.filter((name) => !name.startsWith("past."));
  return { session, inputs, cache: Object.keys(cache), empty: cache, past: {}, length: 0 };
}

export function clear(model) { // begins new sequences
  model.length = 0;
  for (const [name, dims] of Object.entries(model.empty)) {
    const size = dims.reduce((product, size) => product * size, 1);
    model.past[`past.${name}`] = new ort.Tensor("float32", new Float32Array(size), dims);
  }
}

export function greedy(logits) { // the likeliest token of each sequence, at the last position
  const [batch, length, vocab] = logits.dims;
  const tokens = new BigInt64Array(batch);
  for (let row = 0; row < batch; row++) {
    const start = (row * length + length - 1) * vocab;
    let best = start;
    for (let i = start; i < start + vocab; i++) if (logits.data[i] > logits.data[best]) best = i;
    tokens[row] = BigInt(best - start);
  }
  return tokens;
}

export function last(logits) { // the last position of each sequence
  const [batch, length, vocab] = logits.dims;
  if (length === 1) return logits;
  const kept = new Float32Array(batch * vocab);
  for (let row = 0; row < batch; row++) {
    const start = (row * length + length - 1) * vocab;
    kept.set(logits.data.subarray(start, start + vocab), row * vocab);
  }
  return new ort.Tensor("float32", kept, [batch, 1, vocab]);
}

export async function step(model, tokens, batch) { // logits of `tokens`, which continue the model's sequences
  const length = tokens.length / batch, total = model.length + length, feeds = { ...model.past };
  const given = {
    tokens: () => new ort.Tensor("int64", tokens, [batch, length]),
    positions: () => new ort.Tensor("int64",
      BigInt64Array.from(tokens, (_, i) => BigInt(model.length + i % length)), [batch, length]),
    seqlens_k: () => new ort.Tensor("int32", new Int32Array(batch).fill(total - 1), [batch]),
    total_sequence_length: () => new ort.Tensor("int32", Int32Array.of(total), []),
  };
  for (const name of model.inputs) feeds[name] = given[name]();
  const found = await model.session.run(feeds);
  for (const name of model.cache) model.past[`past.${name}`] = found[`present.${name}`];
  model.length = total;
  return found.logits;
}
