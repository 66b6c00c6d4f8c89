// Runs the model of this folder in the browser, for the chat page (see `served` in that page).
import { clear, last, load, step } from "./decoder.js";
import { Tokenizer } from "./tokenizer.js";

const PAUSE_MS = 50; // how often the page may draw
const pause = () => new Promise((done) => setTimeout(done));

async function file(name) {
  const found = await fetch(new URL(name, import.meta.url));
  if (!found.ok) throw new Error(`${name}: ${found.status} ${found.statusText}`);
  return found;
}

let loading;
const loaded = () => (loading ??= (async () => {
  const about = await (await file("about.json")).json();
  const tokenizer = new Tokenizer(await (await file("../tokenizer.json")).json());
  const bytes = new Uint8Array(await (await file(`../${about.file}`)).arrayBuffer());
  const threads = crossOriginIsolated ? about.threads : 1; // without isolation browsers give one
  return { about, tokenizer, model: await load(bytes, { ...about, threads }) };
})());

function chosen(logits, temperature, top) { // the likeliest token, or a random one of those with `top` of the probability
  const most = logits.data.reduce((most, logit) => Math.max(most, logit), -Infinity);
  if (!temperature) return BigInt(logits.data.indexOf(most));
  const likely = Array.from(logits.data, (logit, token) => ({ token, weight: Math.exp((logit - most) / temperature) }));
  likely.sort((one, other) => other.weight - one.weight);
  const all = likely.reduce((sum, { weight }) => sum + weight, 0);
  let kept = 0, count = 0;
  while (count < likely.length && kept < top * all) kept += likely[count++].weight;
  let left = Math.random() * kept;
  return BigInt((likely.slice(0, count).find(({ weight }) => (left -= weight) < 0) ?? likely[0]).token);
}

window.engine = {
  async about() {
    return (await loaded()).about;
  },

  async *answer({ prompt, max_tokens: most, temperature, top_p: top }, signal) {
    const { about, tokenizer, model } = await loaded();
    const ids = tokenizer.encode(prompt);
    if (!ids.length) ids.push(about.start);
    if (ids.length >= about.context) throw new Error(`${ids.length} tokens; the context holds ${about.context - 1}`);
    const text = tokenizer.decoder();
    await clear(model);
    const ran = () => performance.now() - (model.aside ?? 0);
    let tokens = BigInt64Array.from(ids, BigInt), decode_s = 0, drawn = performance.now();
    for (let count = 0; count < Math.min(most, about.context - ids.length); count++) {
      const start = ran();
      const token = chosen(await last(await step(model, tokens, 1)), temperature, top);
      if (count) decode_s += (ran() - start) / 1000;
      if (about.ends.includes(Number(token)) || signal?.aborted) return;
      yield { token: Number(token), text: text(Number(token)), step_s: count ? decode_s / count : null };
      tokens = BigInt64Array.of(token);
      if (performance.now() > drawn + PAUSE_MS) {
        await pause();
        drawn = performance.now();
      }
    }
  },
};
